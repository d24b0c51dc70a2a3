"""Answers of reward servers and judges that are kept."""
