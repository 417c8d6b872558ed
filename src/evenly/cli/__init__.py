"""The `evenly` command."""
