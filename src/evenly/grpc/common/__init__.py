"""What both sides of gRPC share, awaited or in threads: its words, its names, its questions."""
