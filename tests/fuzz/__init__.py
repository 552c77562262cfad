"""An attack on training, data and settings that can be run again: `python -m tests.fuzz`.

Every attack is made from a number, its seed, and ends in one row of a table. An outcome is either
one of those that a user may see, or a fault, which somebody has to mend.
"""
