"""Household tasks in words and pictures, by the rules of ALFWorld."""
