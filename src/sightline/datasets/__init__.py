"""Episodes as data: what was played or recorded, whatever it is read from or written to."""
