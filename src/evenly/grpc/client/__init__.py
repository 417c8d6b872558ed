"""The calling side of `grpc.aio`: a channel, its calls and its connections."""
