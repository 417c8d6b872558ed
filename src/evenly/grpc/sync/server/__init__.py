"""The serving side of gRPC for threads."""
