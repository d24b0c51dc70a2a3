"""The tasks that come with Sightline: environments and recipes, known to it by entry points as anybody's are."""
