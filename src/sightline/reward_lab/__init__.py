"""The reward lab: is a reward worth training on? Answered before training; `sightline lab`, `sl.lab`."""
