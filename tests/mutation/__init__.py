"""Faults that are planted in a copy of the package, to see that the tests catch them.

`python -m tests.mutation` plants each and runs the tests that should fail.
"""
