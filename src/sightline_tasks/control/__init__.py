"""Control tasks: environments whose state is a vector of numbers."""
