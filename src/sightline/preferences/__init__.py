"""Preference learning: choose queries, ask a teacher, and fit a reward model to its answers."""
