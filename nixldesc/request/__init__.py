"""A request: block lists that meet by position, and the descriptor ids of both sides."""
