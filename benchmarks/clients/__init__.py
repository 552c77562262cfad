"""Networks of other programs: existing e3nn-jax code, and converted networks of mace."""
