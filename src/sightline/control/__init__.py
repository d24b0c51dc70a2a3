"""Policies that act on states and learn from rewards that come later: collection, replay, scoring, learning."""
