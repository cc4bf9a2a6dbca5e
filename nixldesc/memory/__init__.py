"""What a rank has: sections, regions, and the Layout in which every byte has an address and an id."""
