"""Write forces of a MACE to a folder, or compare with those that another machine wrote there."""

import pathlib
import platform
import sys

import ase.build
import numpy as np

import eqfuse
from tests.lammps.untrained import untrained_run

TOLERANCES = {"float32": 4e-6, "float64": 1e-13}  # of the largest; under qemu it is 8e-7 and 3e-15

folder = pathlib.Path(sys.argv[1])
file, run = folder / "forces.npz", folder / "mace"
if not run.exists():
    untrained_run(folder, "mace", numbers=(29,), channels=24)
atoms, found = ase.build.bulk("Cu", cubic=True), {}
atoms.rattle(0.05, seed=3)
for dtype in TOLERANCES:
    atoms.calc = eqfuse.Calculator(run, dtype=dtype, backend="llvm")
    found[dtype] = np.vstack([atoms.get_forces(), [[atoms.get_potential_energy(), 0, 0]]])
if not file.exists():
    np.savez(file, machine=platform.machine(), **found)
    sys.exit()
written = np.load(file)
print(f"{platform.machine()} beside {written['machine']}:")
assert platform.machine() != str(written["machine"]), "the same machine says nothing"
for dtype, limit in TOLERANCES.items():
    difference = abs(found[dtype] - written[dtype]).max() / abs(written[dtype][:-1]).max()
    print(f"  {dtype}: {difference:.1e} of the largest force")
    assert difference < limit
