"""Show a running service in the terminal, from its metrics end points (`evenly top`)."""
