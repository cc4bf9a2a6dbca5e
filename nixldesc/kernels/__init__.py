"""The loops, in Cython: memory that is already proven goes in, positions come out, never an error's words."""
