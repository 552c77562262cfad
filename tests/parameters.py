"""First parameters by NumPy: XLA takes 3 s to compile the random numbers of a small network."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import random as source


def drawn(module, *arguments, seed: int = 3):
    """Return variables of a module, of the distributions of its initializers."""
    rng = np.random.default_rng(seed)

    def normal(key, shape=(), dtype=float, **_):
        return jnp.asarray(rng.normal(size=shape), dtype)

    def truncated_normal(key, lower, upper, shape=(), dtype=float, **_):
        return jnp.clip(normal(key, shape, dtype), lower, upper)

    draws = {"normal": normal, "truncated_normal": truncated_normal}
    with mock.patch.multiple(jax.random, **draws), mock.patch.multiple(source, **draws):
        return jax.jit(lambda *a: module.init(jax.random.key(seed), *a))(*arguments)
