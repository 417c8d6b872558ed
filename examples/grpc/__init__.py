"""gRPC: the two-line change, and the book's stack of services under overload."""
