"""What runs the façades on an event loop, whatever the transport."""
