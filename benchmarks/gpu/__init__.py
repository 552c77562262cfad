"""Parity, and times of ops and training steps, on one GPU: see `command`."""
