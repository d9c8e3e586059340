"""Training until the target: loop, objective, metrics, checkpoints, statistics."""
