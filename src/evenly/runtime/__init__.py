"""Drive the two façades on an event loop, for any transport."""
