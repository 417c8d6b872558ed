"""The connection layer against servers that nobody here wrote."""
