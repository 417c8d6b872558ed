"""The serving side of `grpc.aio`: a server or an interceptor around any handler."""
