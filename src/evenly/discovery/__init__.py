"""Name to backend list: what a target string means, now and as it changes."""
