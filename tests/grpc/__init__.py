"""The gRPC transport, over real connections on loopback."""
