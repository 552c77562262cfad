"""Write energies, forces and stress as a program of StableHLO, with its weights in one file."""

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

from eqfuse import __version__
from eqfuse.inference.predict import Network
from eqfuse.ops import Edges
from eqfuse.train.run.files import write_whole
from eqfuse.train.settings.schema import ConfigError

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
"""What the program is called with, in this order; floating-point arrays in its dtype."""
RESULTS = {
    "energies": "[n] eV, of the atoms, with their reference energies; their sum is the energy",
    "forces": "[n, 3] eV/Å",
    "stress": "[3, 3] eV/Å^3, positive under tension; zeros without a volume",
}


def export(run, file, *, which: str | None = None, dtype: str | None = None) -> dict:
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
    Returns:
      the metadata of the file, as text.
    Raises:
      CheckpointError: no readable checkpoint.
      ConfigError: a file that exists or cannot be written, or no flatbuffers.
    """
    file = Path(file)
    if importlib.util.find_spec("flatbuffers") is None:
        raise ConfigError("exporting needs flatbuffers: pip install 'eqfuse[export]'")
    if os.path.lexists(file):
        raise ConfigError(f"{file} exists already and is not overwritten; name another file")
    network = Network(run, which=which, dtype=dtype, backend="xla")
    leaves, structure = jax.tree.flatten(network._params)
    with network._precision():
        shapes = _shapes(leaves, network.dtype)
        function = jax.jit(_function(network, structure))
        program = jax.export.export(function, platforms=PLATFORMS)(*shapes).serialize()
    metadata = {
        "format": "eqfuse program 1",
        "eqfuse": __version__,
        "jax": jax.__version__,
        "dtype": network.dtype,
        "cutoff": repr(network.cutoff),
        "elements": " ".join(chemical_symbols[z] for z in network.species),
        "arguments": json.dumps(ARGUMENTS, ensure_ascii=False),
        "results": json.dumps(RESULTS, ensure_ascii=False),
    }
    arrays = {f"weights.{k:04}": np.asarray(leaf) for k, leaf in enumerate(leaves)}
    arrays["program"] = np.frombuffer(program, np.uint8)
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


def _function(network: Network, structure):
    """Return the function of `ARGUMENTS` that computes `RESULTS`."""
    potential = network._potential
    # tables are chosen by the number of edges, which is a symbol
    potential = potential.clone(model=potential.model.clone(radial="network"))
    species_of = np.full(len(chemical_symbols), -1, np.int32)
    species_of[list(network.species)] = np.arange(len(network.species))

    def function(weights, numbers, positions, cell, senders, receivers, shifts):
        params = jax.tree.unflatten(structure, weights)
        species = jnp.asarray(species_of)[numbers]
        vectors = positions[senders] + shifts - positions[receivers]
        near = jnp.sum(vectors**2, axis=1, keepdims=True) < network.cutoff**2
        vectors = jnp.where(near, vectors, 0)  # zero: padding
        edges = _edges(senders, receivers, positions.shape[0])

        def total(vectors):
            known = jnp.maximum(species, 0)
            energies = potential.apply(params, vectors, known, edges)
            return jnp.sum(energies), energies

        gradient, energies = jax.grad(total, has_aux=True)(vectors)
        forces = jnp.zeros_like(positions).at[receivers].add(gradient).at[senders].add(-gradient)
        energies += jnp.asarray(network.references, energies.dtype)[species]
        energies = jnp.where(species < 0, jnp.nan, energies)
        virial = vectors.T @ gradient
        volume = jnp.abs(jnp.dot(cell[0], jnp.cross(cell[1], cell[2])))
        safe = jnp.where(volume > 0, volume, 1)
        return energies, forces, jnp.where(volume > 0, (virial + virial.T) / (2 * safe), 0)

    return function


def _edges(senders, receivers, num_nodes) -> Edges:
    """Return edges of symbolic numbers, for which `Edges.from_arrays` is not."""

    def grouped(index):
        numbers = jax.lax.iota(jnp.int32, index.shape[0])
        order = jax.lax.sort((index, numbers), num_keys=1, is_stable=True)[1]
        counts = jnp.zeros(num_nodes, jnp.int32).at[index].add(1)
        ends = jnp.cumsum(counts, dtype=jnp.int32)
        return order, jnp.concatenate([jnp.zeros(1, jnp.int32), ends])

    return Edges(senders, receivers, *grouped(receivers), *grouped(senders), num_nodes)
