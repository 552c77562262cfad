"""Fuzz runs, settings, labels and networks: `python -m tests.fuzz`.

Every case is made from a number, its seed. It ends in an outcome that a user may see, or fails.
What is found becomes a test of its own where the code is tested that was wrong.
"""
