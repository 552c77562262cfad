"""Descriptors of atoms: the features of each in the layers of a trained network."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.data import Batcher
from eqfuse.data.samples import prepare_samples
from eqfuse.graph import Graph
from eqfuse.inference.predict import Network, as_structures, load_networks
from eqfuse.models import Allegro, Potential


def descriptors(
    atoms, run=None, *, invariants_only: bool = True, num_layers: int = -1
) -> np.ndarray | list[np.ndarray]:
    """Return the features of each atom in the layers of a trained network, one layer after another.

        features = eqfuse.descriptors(atoms, "runs/first")  # [n_atoms, n_features]

    They describe an atom and its surroundings as the network sees them: invariant to rotation,
    inversion and translation, and in the order of the atoms. NequIP and MACE have features of
    atoms. Those of Allegro belong to pairs: the latents of the edges to an atom are added up, and
    divided by the square root of the average number of neighbours.

    Args:
      atoms: `ase.Atoms` or `eqfuse.data.Structure`, or a sequence of them.
      run: the folder of a run, a file of its network, or a `Network`; None for that of
        `atoms.calc`, an `eqfuse.Calculator`.
      invariants_only: whether only the scalars (0e) are returned, and not all irreps, which turn
        with the atoms (mul_ir).
      num_layers: of how many layers, counted from the first; -1 for all, as in mace.
    Returns:
      [n_atoms, n_features] float64; a list of them for a sequence.
    Raises:
      CheckpointError: no readable checkpoint.
      DataError: see `eqfuse.predict`.
      ValueError: no run, and atoms without a calculator of eqfuse; a committee; more layers than
        there are; or all irreps of Allegro.
    """
    if isinstance(atoms, Sequence):
        given = {"invariants_only": invariants_only, "num_layers": num_layers}
        return [descriptors(one, run, **given) for one in atoms]
    networks = load_networks(_network_of(atoms) if run is None else run)
    if len(networks) > 1:
        raise ValueError(f"{run} is a committee of {len(networks)} runs; descriptors are of one")
    [network] = networks
    [structure] = as_structures(atoms)
    samples = prepare_samples([structure], network.cutoff, network.species, None)
    [batch] = Batcher(samples, 1, dtype=network.dtype).batches(shuffle=False)
    [sample] = samples
    chosen = _layers(network, num_layers), invariants_only
    key = "descriptors", *chosen
    if key not in network._compiled:
        network._compiled[key] = jax.jit(partial(features, network._potential, *chosen))
    with network._precision():
        of_nodes = network._compiled[key](network._params, batch.graph)
    return sample.in_structure(np.asarray(of_nodes[: sample.num_atoms], np.float64))


def features(potential: Potential, layers: int, invariants_only: bool, params, graph: Graph):
    """Return the features of the nodes of a graph, [n_nodes, n_features], see `descriptors`.

    Args:
      potential: the module.
      layers: number of layers, from the first, whose features are returned.
      invariants_only: see `descriptors`.
      params: its variables.
      graph: one or several structures.
    Raises:
      ValueError: all irreps of Allegro.
    """
    names = [f"layer_{k}" for k in range(layers)]

    def wanted(module, method: str) -> bool:
        return method == "__call__" and module.path in [("model", name) for name in names]

    arguments = graph.vectors, graph.species, graph.edges
    _, kept = potential.apply(
        params, *arguments, capture_intermediates=wanted, mutable=["intermediates"]
    )
    outputs = [kept["intermediates"]["model"][name]["__call__"][0] for name in names]
    if isinstance(potential.model, Allegro):
        if not invariants_only:
            raise ValueError("Allegro has no features of atoms, only the invariants of its edges")
        width, mean = potential.model.latent_dim, potential.model.avg_num_neighbors
        real = (graph.vectors != 0).any(axis=1, keepdims=True)  # not padding
        latents = jnp.concatenate([x[:, -width:] for x, *_ in outputs], axis=1)
        to, count = graph.edges.receivers, graph.edges.num_nodes
        return jax.ops.segment_sum(jnp.where(real, latents, 0), to, count) / mean**0.5
    kept = [h.filter(keep="0e") if invariants_only else h for h in outputs]
    return jnp.concatenate([h.array for h in kept], axis=1)


def _layers(network: Network, asked: int) -> int:
    layers = network._potential.model.layers
    if asked != -1 and not 1 <= asked <= layers:
        raise ValueError(f"num_layers must be from 1 to {layers}, or -1 for all, got {asked}")
    return layers if asked == -1 else asked


def _network_of(atoms) -> Network:
    network = getattr(getattr(atoms, "calc", None), "network", None)
    if network is None:
        raise ValueError("give the run of a network, or atoms whose calc is an eqfuse.Calculator")
    return network
