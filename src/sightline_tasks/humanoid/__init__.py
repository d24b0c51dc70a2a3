"""Gymnasium's humanoid, asked for poses in words: its body, poses with geometric checks, two looks, and the task."""
