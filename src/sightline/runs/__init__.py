"""A run: one folder that holds everything a recipe produced."""
