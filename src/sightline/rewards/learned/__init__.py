"""A reward learned from preferences, ratings or scores: networks, losses, fitting, and the reward itself."""
