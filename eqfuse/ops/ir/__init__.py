"""Products, Linears, gates and their derivatives as data: pure Python, without JAX."""
