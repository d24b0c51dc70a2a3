"""What a teacher is asked, and how a reward learns from its answers: one file for each kind of feedback."""
