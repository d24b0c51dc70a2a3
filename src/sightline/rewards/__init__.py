"""Reward models: from frames, states and words to rewards."""
