"""Training steps on a CPU."""
