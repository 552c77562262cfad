"""Trained networks at work: predictions, ASE's calculator, errors on a file."""
