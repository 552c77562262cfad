"""Descriptors of atoms: the features of each in the layers of a trained network."""

import os

import numpy as np

from eqfuse.data.readers import frames_of, is_one
from eqfuse.inference.evaluator import Evaluator
from eqfuse.inference.network import Network, load_networks
from eqfuse.inference.predict import as_structures
from eqfuse.models.features import layer_features


def descriptors(
    run, atoms=None, *, invariants_only: bool = True, num_layers: int = -1
) -> np.ndarray | list[np.ndarray]:
    """Return the features of each atom in the layers of a trained network, one layer after another.

        features = eqfuse.descriptors("runs/first", atoms)  # [n_atoms, n_features]

    They describe an atom and its surroundings as the network sees them: invariant to rotation,
    inversion and translation, and in the order of the atoms. NequIP and MACE have features of
    atoms. Those of Allegro belong to pairs: the latents of the edges to an atom are added up, and
    divided by the square root of the average number of neighbours.

    Args:
      run: the folder of a run, a file of its network, or a `Network`; or left out, for the
        `eqfuse.Calculator` that the atoms have.
      atoms: `ase.Atoms` or `eqfuse.data.Structure`, or several in any form, see `eqfuse.predict`.
      invariants_only: whether only the scalars (0e) are returned, and not all irreps, which turn
        with the atoms (mul_ir).
      num_layers: of how many layers, counted from the first; -1 for all, as in mace.
    Returns:
      [n_atoms, n_features] float64; a list of them unless one structure was given.
    Raises:
      CheckpointError: no readable checkpoint.
      DataError: see `eqfuse.predict`.
      ValueError: no run, and atoms without a calculator of eqfuse; a committee; more layers than
        there are; or all irreps of Allegro.
    """
    if atoms is None:
        run, atoms = None, run
    if (run is None and isinstance(atoms, str | os.PathLike)) or isinstance(atoms, Network):
        raise TypeError(f"descriptors takes (run, atoms), got {atoms!r} as the atoms")
    several = frames_of(atoms)
    networks = load_networks(_network_of(several) if run is None else run)
    if len(networks) > 1:
        raise ValueError(f"{run} is a committee of {len(networks)} runs; descriptors are of one")
    [network] = networks
    layers = network.module.potential.model.layers
    if num_layers != -1 and not 1 <= num_layers <= layers:
        raise ValueError(f"num_layers must be from 1 to {layers}, or -1 for all, got {num_layers}")
    layers = layers if num_layers == -1 else num_layers
    chosen = {"layers": layers, "invariants_only": invariants_only}
    evaluator, found = Evaluator(network), []
    for structure in as_structures(several):
        listed = evaluator.list([structure])
        features = evaluator.apply(_features, listed, **chosen)
        found.append(features.reshape(listed.sizes.nodes, -1).take(listed.number, axis=0))
    return found[0] if is_one(atoms) else found


def _features(module, params, near, geometry, *, layers: int, invariants_only: bool):
    """Return the features of the nodes in the first layers, [n_nodes, n_features]."""
    operands = near.vectors.astype(module.dtype), geometry.species, near.edges
    chosen = {"layers": layers, "invariants_only": invariants_only}
    return layer_features(module.potential, params, *operands, **chosen)


def _network_of(several) -> Network:
    networks = {getattr(getattr(atoms, "calc", None), "network", None): None for atoms in several}
    if len(networks) != 1 or None in networks:
        raise ValueError("give the run of a network, or atoms whose calc is an eqfuse.Calculator")
    return networks.popitem()[0]
