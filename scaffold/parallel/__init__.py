"""Running on many ranks: who am I, deciding together, failing together."""
