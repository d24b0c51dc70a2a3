"""Reward servers: what travels to them and back, the client, and our own server (`docs/reward-servers.md`)."""
