"""The decisions: standard library only, no I/O; time and luck are passed in."""
