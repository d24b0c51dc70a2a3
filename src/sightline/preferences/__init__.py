"""A reward learned from a teacher's answers: what to ask, how to learn from it."""
