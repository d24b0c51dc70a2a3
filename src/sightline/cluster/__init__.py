"""Work on the machines of a Ray cluster: encoders' frames, and the cells of sweeps. Nothing else imports Ray."""
