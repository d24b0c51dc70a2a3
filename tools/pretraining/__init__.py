"""Training of the small models that Sightline ships, on pictures and words of our own making."""
