"""The simulated world around core: the same two façades on a simulated clock."""
