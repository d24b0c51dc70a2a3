"""Trainable vision-language models: load one by name, generate replies to pictures and text, and compute their
log-probabilities token by token. Nothing here depends on a model family: prompts, tokens and pictures are prepared by
the model's own processor and chat template."""
