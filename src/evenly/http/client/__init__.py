"""The calling side of HTTP: `Session`, `Transport`, and what drives a request for both."""
