"""Parity, kernels and training steps on one GPU: see `__main__`."""
