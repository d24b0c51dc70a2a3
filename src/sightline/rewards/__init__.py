"""From frames to numbers."""
