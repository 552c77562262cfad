"""Run an exported network without eqfuse: python consumer.py FILE IN.npz OUT.npz."""

import sys

import jax
import numpy as np
import safetensors
from ase.neighborlist import primitive_neighbor_list

with safetensors.safe_open(sys.argv[1], framework="numpy") as file:
    metadata = file.metadata()
    names = sorted(name for name in file.keys() if name.startswith("weights."))  # noqa: SIM118
    weights = [file.get_tensor(name) for name in names]
    program = jax.export.deserialize(bytearray(file.get_tensor("program").tobytes()))

dtype = metadata["dtype"]
jax.config.update("jax_enable_x64", dtype == "float64")
with np.load(sys.argv[2]) as structures:
    structures = dict(structures)
results = {}
for k in range(int(structures["count"])):
    numbers, positions, cell, pbc = (
        structures[f"{k}_{name}"] for name in ("numbers", "positions", "cell", "pbc")
    )
    receivers, senders, images = primitive_neighbor_list(
        "ijS", pbc, cell, positions, float(metadata["cutoff"])
    )
    arrays = (
        numbers.astype(np.int32),
        positions.astype(dtype),
        cell.astype(dtype),
        senders.astype(np.int32),
        receivers.astype(np.int32),
        (images @ cell).astype(dtype),
    )
    energies, forces, stress = program.call(weights, *arrays)
    results |= {f"{k}_energies": energies, f"{k}_forces": forces, f"{k}_stress": stress}
assert not [name for name in sys.modules if name.startswith(("eqfuse", "flax", "e3nn"))]
np.savez(sys.argv[3], **results)
