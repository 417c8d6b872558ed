"""Chapter 20: which backend gets a request."""
