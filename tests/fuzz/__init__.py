"""Fuzz training, data and settings: `python -m tests.fuzz`.

Every case is made from a number, its seed, and ends in one row of a table. An outcome is either
one of those that a user may see, or a failure, which somebody has to mend.
"""
