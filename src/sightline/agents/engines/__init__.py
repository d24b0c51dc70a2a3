"""On how many processes a model learns, and how they share the work. Rollouts, credit and losses know nothing of it."""
