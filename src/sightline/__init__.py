"""Reinforcement learning guided by vision-language models."""

__version__ = "0.1.0"
