"""Questions, answers, and the store in which no answer is ever lost."""
