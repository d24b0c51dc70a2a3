"""Reinforcement learning guided by vision-language models."""
