"""Training engines: one process, DDP or FSDP2. Rollouts, advantages and losses do not know which of them runs."""
