"""Evaluation: fixed panels of task seeds, deterministic episodes on them, confidence intervals, teacher agreement."""
