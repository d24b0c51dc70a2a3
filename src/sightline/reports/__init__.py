"""What a run looks like: plots, videos and one self-contained page."""
