"""The features of atoms in the layers of a network, which describe their surroundings."""

import jax
import jax.numpy as jnp

from eqfuse.models.allegro import Allegro
from eqfuse.models.mace import MACE
from eqfuse.models.radial import lengths_and_directions


def layer_features(
    potential, params, vectors, species, edges, *, layers, invariants_only: bool = True
):
    """Return the features of the nodes in layers, one after another.

    Those of Allegro belong to edges, and are added up at their receivers, over the square root of
    the average number of neighbours.

    Args:
      potential: a `Potential`.
      params: its variables.
      vectors, species, edges: operands of the potential.
      layers: how many, from the first on, or their numbers, from 0.
      invariants_only: whether only the scalars (0e) are returned, and not all irreps (mul_ir).
    Returns:
      [n_nodes, n_features], in the dtype of the parameters.
    Raises:
      ValueError: all irreps of Allegro.
    """
    names = [f"layer_{k}" for k in (range(layers) if isinstance(layers, int) else layers)]

    def wanted(module, method: str) -> bool:
        return method == "__call__" and module.path in [("model", name) for name in names]

    _, kept = potential.apply(
        params,
        *(vectors, species, edges),
        capture_intermediates=wanted,
        mutable=["intermediates"],
    )
    outputs = [kept["intermediates"]["model"][name]["__call__"][0] for name in names]
    if isinstance(potential.model, Allegro):
        if not invariants_only:
            raise ValueError("Allegro has no features of atoms, only the invariants of its edges")
        width, mean = potential.model.latent_dim, potential.model.avg_num_neighbors
        latents = jnp.concatenate([x[:, -width:] for x, *_ in outputs], axis=1)
        latents = jnp.where(lengths_and_directions(vectors)[2][:, None], latents, 0)
        latents = jax.ops.segment_sum(latents, edges.receivers, edges.num_nodes)
        return latents / mean**0.5
    kept = [h.filter(keep="0e") if invariants_only else h for h in outputs]
    return jnp.concatenate([h.array for h in kept], axis=1)


def readout_features(potential, params, vectors, species, edges):
    """Return the scalars that the energy of each node is read from, times the scale of its species.

    They are those of the last layer; of all layers for MACE, whose energy is a sum over them, and
    for Allegro, whose readout reads them. The readouts of MACE, but the last, and that of NequIP
    are linear in them. Arguments and result are those of `layer_features`.
    """
    model = potential.model
    of_all = isinstance(model, Allegro) or (isinstance(model, MACE) and not model.last_readout_only)
    layers = range(model.layers) if of_all else [model.layers - 1]
    rows = layer_features(potential, params, vectors, species, edges, layers=layers)
    return params["params"]["scale"][species][:, None] * rows
