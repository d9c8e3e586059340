"""Fast ops of the training step. Knows nothing of the model or the config."""
