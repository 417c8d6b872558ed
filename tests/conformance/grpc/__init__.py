"""One set of cases for gRPC itself and for evenly: what is observed is the same."""
