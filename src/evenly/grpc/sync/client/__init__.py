"""The calling side of gRPC for threads: a channel, its calls and its connections."""
