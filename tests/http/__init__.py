"""The HTTP transport, over real connections on loopback."""
