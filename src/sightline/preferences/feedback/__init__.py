"""Kinds of feedback, one file each: the query to a teacher, and how a reward model learns from its answers."""
