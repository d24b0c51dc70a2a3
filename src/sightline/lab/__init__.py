"""The lab: is this reward worth training on? Measures, sweeps and figures of any rewards, before any training."""
