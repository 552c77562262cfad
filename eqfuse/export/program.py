"""A trained network as one program to take along: StableHLO and weights in one file."""

import hashlib
import importlib.util
import json
import os
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from ase.data import chemical_symbols
from jax.interpreters import partial_eval

from eqfuse import __version__
from eqfuse.inference import Network
from eqfuse.inference.evaluator import add_forces, energies_and_gradient
from eqfuse.ops import Edges
from eqfuse.ops._edges import orders
from eqfuse.runs import ConfigError, write_whole

RADIAL = ("auto", "network", "table")
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
ARGUMENTS = {
    "weights": "list of the arrays weights.0000, weights.0001, ... of the file",
    "numbers": "[n] int32, atomic numbers",
    "positions": "[n, 3] Å",
    "cell": "[3, 3] Å, rows are lattice vectors; zeros for a molecule",
    "senders": "[e] int32, neighbours",
    "receivers": "[e] int32, centres",
    "shifts": "[e, 3] Å, of the senders: vectors are positions[senders] + shifts - "
    "positions[receivers]",
}
"""The arguments of the program, in this order; floating-point arrays in its dtype."""
RESULTS = {
    "energies": "[n] eV, of the atoms, with their reference energies; their sum is the energy",
    "forces": "[n, 3] eV/Å",
    "stress": "[3, 3] eV/Å^3, positive under tension; zeros without a volume",
}


def export(
    run,
    file,
    *,
    which: str | None = None,
    dtype: str | None = None,
    radial: str = "auto",
    dispersion: str | None = None,
) -> dict:
    """Write the program of a trained network to a file of safetensors.

    It has any numbers of atoms and edges, and runs on CPUs, NVIDIA and AMD GPUs and TPUs by JAX
    alone (`jax.export.deserialize`). Edges are all ordered pairs within the cutoff; pairs beyond
    it, and padding that joins an atom to itself, contribute nothing. An element that the network
    does not know has an energy of NaN.

    Args:
      run: the run's folder, or a file of its network.
      file: to write; it must not exist.
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      radial: "network", or "table" for tables of its radial functions in the place of the networks
        that compute them, with forces that are the networks' to about 1e-7. "auto" is the network
        here, since XLA reads tables more slowly on a CPU.
      dispersion: "none" for a run with `data.dispersion`, whose network alone is written.
    Returns:
      the metadata of the file, as text.
    Raises:
      CheckpointError: no readable checkpoint.
      ConfigError: a file that exists or cannot be written, or no flatbuffers.
      ValueError: tables of a network that can have none, or another `radial`.
    """
    file = Path(file)
    if importlib.util.find_spec("flatbuffers") is None:
        raise ConfigError("exporting needs flatbuffers: pip install 'eqfuse[export]'")
    if os.path.lexists(file):
        raise ConfigError(f"{file} exists already and is not overwritten; name another file")
    if radial not in RADIAL:
        raise ValueError(f"radial must be one of {', '.join(RADIAL)}, got {radial!r}")
    radial = "network" if radial == "auto" else radial
    how = {"backend": "xla", "radial": radial, "dispersion": dispersion}
    network = Network(run, which=which, dtype=dtype, **how)
    network.require_alone("an exported program")
    leaves, structure = jax.tree.flatten(network.params)
    with network.precision():
        shapes = _shapes(leaves, network.dtype)
        jaxpr = jax.make_jaxpr(_function(network, structure, range(len(leaves))))(*shapes).jaxpr
        _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        read = [k for k in range(len(leaves)) if used[k]]  # tables in the place of their networks
        leaves = [leaves[k] for k in read]
        function = jax.jit(_function(network, structure, read))
        shapes = _shapes(leaves, network.dtype)
        program = jax.export.export(function, platforms=PLATFORMS)(*shapes).serialize()
    metadata = {
        "format": "eqfuse program 1",
        "eqfuse": __version__,
        "jax": jax.__version__,
        "dtype": network.dtype,
        "cutoff": repr(network.cutoff),
        "radial": radial,
        "elements": " ".join(chemical_symbols[z] for z in network.species),
        "arguments": json.dumps(ARGUMENTS, ensure_ascii=False),
        "results": json.dumps(RESULTS, ensure_ascii=False),
    }
    arrays = {f"weights.{k:04}": np.asarray(leaf) for k, leaf in enumerate(leaves)}
    arrays["program"] = np.frombuffer(program, np.uint8)
    # of names and values, and of the arrays by name: see the reader in docs/how-to/export.md
    digest = hashlib.sha256("".join(map("".join, sorted(metadata.items()))).encode())
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    metadata["sha256"] = digest.hexdigest()
    data = safetensors.numpy.save(arrays, metadata)
    try:
        write_whole(file, data)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    return metadata


def _shapes(weights, dtype: str) -> tuple:
    """Return the shapes of the arguments, with symbols for the numbers of atoms and edges."""
    n, e = jax.export.symbolic_shape("n, e", constraints=["n >= 1", "e >= 1"])
    shape = jax.ShapeDtypeStruct
    real, whole = np.dtype(dtype), np.dtype(np.int32)
    return (
        [shape(leaf.shape, leaf.dtype) for leaf in weights],
        shape((n,), whole),
        shape((n, 3), real),
        shape((3, 3), real),
        shape((e,), whole),
        shape((e,), whole),
        shape((e, 3), real),
    )


def _function(network: Network, structure, read):
    """Return the function of `ARGUMENTS` that computes `RESULTS`.

    Only the variables of the numbers `read` are weights; the others are in no result.
    """

    def function(weights, numbers, positions, cell, senders, receivers, shifts):
        variables = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(network.params)]
        for k, weight in zip(read, weights, strict=True):
            variables[k] = weight
        params = jax.tree.unflatten(structure, variables)
        vectors = positions[senders] + shifts - positions[receivers]
        count = numbers.shape[0]
        edges = Edges(senders, receivers, *orders((receivers, senders), count), count)
        atoms = jnp.ones(numbers.shape, bool)
        energies, gradient = of_vectors(network, params, numbers, vectors, edges, atoms)
        forces = add_forces(gradient, edges, jnp.zeros_like(positions))
        strain = vectors.T @ gradient
        virial = (strain + strain.T) / 2
        species = species_of(network)[numbers]
        energies += jnp.asarray(network.references, energies.dtype)[species]
        volume = jnp.abs(jnp.dot(cell[0], jnp.cross(cell[1], cell[2])))
        safe = jnp.where(volume > 0, volume, 1)
        return energies, forces, jnp.where(volume > 0, virial / safe, 0)

    return function


def species_of(network: Network):
    """Return the species of atomic numbers, -1 for elements that the network does not know."""
    species = np.full(len(chemical_symbols), -1, np.int32)
    species[list(network.species)] = np.arange(len(network.species))
    return jnp.asarray(species)


def of_vectors(network: Network, params, numbers, vectors, edges: Edges, atoms):
    """Return energies [n_receivers] without references, and the derivative by vectors, [e, 3].

    Atoms for which `atoms` [n_receivers] is false have no energy; unknown elements that of NaN.
    Vectors beyond the cutoff are taken for padding, whose derivative is zero.
    """
    species = species_of(network)[numbers]
    near = jnp.sum(vectors**2, axis=1, keepdims=True) < network.cutoff**2
    vectors = jnp.where(near, vectors, 0)
    gradient, energies = energies_and_gradient(
        network.module.potential, params, vectors, jnp.maximum(species, 0), edges, atoms
    )
    energies = jnp.where(atoms & (edges.of_receivers(species) < 0), jnp.nan, energies)
    return energies, jnp.where(near, gradient, 0)
