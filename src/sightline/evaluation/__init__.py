"""Measuring honestly: fixed panels of task seeds, intervals, and deterministic episodes on them."""
