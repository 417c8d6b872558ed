"""A transport of one's own: a request is a line of JSON over TCP, and so is its answer."""
