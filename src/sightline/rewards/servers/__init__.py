"""Reward servers: what travels to them and back, the client, our own server; and answers that are kept."""
