"""Control tasks whose state is a vector of numbers."""
