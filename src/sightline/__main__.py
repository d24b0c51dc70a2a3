"""`python -m sightline`."""

from sightline.cli import command

if __name__ == "__main__":
    command()
