"""Cloth, rope and water, simulated by plain MuJoCo."""
