"""Run folders: recipe, metrics, checkpoints and everything else that a run produces."""
