"""The version of the library: the one place that says it (pyproject.toml reads it from here)."""

__version__ = "0.1.0"
