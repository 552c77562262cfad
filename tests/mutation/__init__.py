"""Mutants of the package, mistakes made in a copy of it, to see that the tests catch them.

`python -m tests.mutation` applies each and runs the tests that should fail.
"""
