"""Run an exported network without eqfuse: python consumer.py FILE IN.npz OUT.npz."""

import hashlib
import sys

import jax
import numpy as np
import safetensors
from ase.neighborlist import primitive_neighbor_list

with safetensors.safe_open(sys.argv[1], framework="numpy") as file:
    metadata = file.metadata()
    arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
sha256 = metadata.pop("sha256")
content = "".join(map("".join, sorted(metadata.items()))).encode()
content += b"".join(array.tobytes() for array in arrays.values())
if hashlib.sha256(content).hexdigest() != sha256:
    raise ValueError("the file is damaged; export the network again")
program = jax.export.deserialize(bytearray(arrays.pop("program").tobytes()))
weights = list(arrays.values())

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
