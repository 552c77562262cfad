"""LoRA: a network is tuned by a product of two narrow matrices beside each of its matrices."""

import dataclasses

import jax
import jax.numpy as jnp

from eqfuse.train.flat import Flat


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Matrices W + a b / sqrt(rank) of a network, of which a [rows, rank] and b [rank, columns].

    It has Linears and dense layers; a matrix that has fewer numbers than its a and b is trained
    itself, as a change of W, and all other parameters stay as they are. Before the first step b is
    zero, and the network is as it was.

    Attributes:
      base: the variables of the network before.
      initial: what is trained: a nested dict with `a` and `b`, or `change`, by parameter.
      layout: of what is trained, in one array; see `laid_out`.

    References: Hu et al. 2021, arXiv:2106.09685.
    """

    base: dict
    initial: dict
    layout: Flat | None = None

    @classmethod
    def of(cls, params: dict, rank: int, seed: int) -> "Adapter":
        """Return the adapter of a network, whose a are random."""
        leaves, _ = jax.tree.flatten_with_path(params)
        initial: dict = {}
        for number, (path, w) in enumerate(leaves):
            *above, name = [key.key for key in path]
            if w.ndim != 2 or not name.startswith(("w[", "kernel")):
                continue
            rows, columns = w.shape
            parts = {"change": jnp.zeros_like(w)}
            if rank * (rows + columns) < rows * columns:
                key = jax.random.fold_in(jax.random.key(seed), number)
                a = jax.random.normal(key, (rows, rank), w.dtype)
                parts = {"a": a, "b": jnp.zeros((rank, columns), w.dtype)}
            node = initial
            for key in above:
                node = node.setdefault(key, {})
            node[name] = parts
        return cls(params, initial)

    def merged(self, trained: dict) -> dict:
        """Return the variables of the network with what was trained."""
        return _merged(self.base, trained)

    def laid_out(self, layout: Flat) -> "Adapter":
        """Return this adapter for arrays of such a layout, with the methods of `Flat`."""
        return dataclasses.replace(self, layout=layout)

    def flatten(self, trained: dict) -> jax.Array:
        """Return what is trained as one array."""
        return self.layout.flatten(trained)

    def unflatten(self, array) -> dict:
        """Return the variables of the network for such an array."""
        return self.merged(self.layout.unflatten(array))


def _merged(base, trained: dict):
    if "change" in trained:
        return base + trained["change"]
    if "a" in trained:
        a, b = trained["a"], trained["b"]
        return base + (a @ b) * a.shape[1] ** -0.5
    return base | {name: _merged(base[name], own) for name, own in trained.items()}
