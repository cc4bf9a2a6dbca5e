"""Who sends what: the overlap of one destination layout and all sources', every byte exactly once."""
