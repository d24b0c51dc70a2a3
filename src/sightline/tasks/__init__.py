"""Tasks: an environment, the words for its goal, and what success is."""
