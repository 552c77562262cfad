"""Run trained networks: the calculator of ASE, and errors on a file."""
