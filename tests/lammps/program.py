"""What the tests run in LAMMPS, on one or several ranks.

    python program.py CASE RUN OUT.npz RADIAL

The first rank writes what LAMMPS has to OUT.npz: what each rank has of the fix, and all atoms.
"""

import sys

import numpy as np

from eqfuse import lammps as eqfuse_lammps
from eqfuse.lammps.mpi import import_lammps, load_mpi

# Smaller than the cutoff of 4 Å along z; skewed, with two elements and a wall along no direction.
ALLOY = """
units metal
boundary p p p
lattice fcc 4.0
region box prism 0 2 0 2 0 1 0.3 0.2 0.1
create_box 2 box
create_atoms 1 box
set type 1 type/fraction 2 0.4 7
mass 1 26.98
mass 2 63.546
displace_atoms all random 0.15 0.15 0.15 3
"""
# Two clusters far apart, between which ranks have no atoms, in a box whose walls follow them.
CLUSTERS = """
units metal
boundary s p s
processors * 1 1
region box block 0 40 0 30 0 30
region left block 0 4 10 14 10 14
region right block 36 40 10 14 10 14
create_box 2 box
create_atoms 1 random 4 5 left overlap 1.8
create_atoms 2 random 3 6 right overlap 1.8
mass 1 26.98
mass 2 63.546
"""
DYNAMICS = """
fix move all {ensemble}
timestep 0.001
run {steps}
"""


def main(case: str, run: str, out: str, radial: str):
    mpi = load_mpi()
    comm = mpi.COMM_WORLD
    lmp = import_lammps().lammps(cmdargs=["-log", "none", "-screen", "none"], comm=comm)
    lmp.commands_string(CLUSTERS if case == "clusters" else ALLOY)
    if case in ("nve", "npt", "fails"):
        lmp.commands_string("replicate 2 1 2\nvelocity all create 3000.0 11 loop geom")
    attached = eqfuse_lammps.attach(lmp, run, ["Al", "Cu"], radial=radial)
    lmp.commands_string(
        "compute energy all pe/atom\ncompute stress all stress/atom NULL virial\n"
        "thermo_style custom step pe press pxx pyy pzz pxy pxz pyz etotal econserve\n"
        "dump keep all custom 1000000 /dev/null id c_energy c_stress[1]\n"  # computes them
    )
    if case == "fails":
        _fail_in_step_2(attached, comm)
    results = {"own_before": comm.gather(_tags(lmp))}
    lmp.command("run 0")
    results |= {f"before_{name}": value for name, value in _atoms(lmp).items()}
    if case in ("nve", "fails"):
        lmp.commands_string(DYNAMICS.format(ensemble="nve", steps=60))
    if case == "npt":
        npt = "npt temp 3000 3000 0.1 tri 20000 20000 0.2"
        lmp.commands_string(DYNAMICS.format(ensemble=npt, steps=60))
    results |= _atoms(lmp)
    names = "pe", "press", "pxx", "pyy", "pzz", "pxy", "pxz", "pyz", "etotal", "econserve"
    results["thermo"] = comm.gather([lmp.get_thermo(name) for name in names])
    results["fix_energy"] = comm.gather(lmp.extract_fix(attached.fix, 0, 0))
    counts = attached.num_lists, attached.num_compilations, attached.num_own, attached.num_nodes
    results["counts"] = comm.gather(counts)
    results["own_after"] = comm.gather(_tags(lmp))
    if comm.rank == 0:
        for name in ("own_before", "own_after"):
            for rank, tags in enumerate(results.pop(name)):
                results[f"{name}_{rank}"] = tags
        np.savez(out, **results)
    lmp.close()


def _fail_in_step_2(attached, comm):
    """Let the last rank fail in its fourth evaluation: two are of step 0."""
    evaluate = attached._compute

    def failing(*arguments):
        if attached.num_steps == 3 and comm.rank == comm.size - 1:
            raise RuntimeError("this step fails")
        return evaluate(*arguments)

    attached._compute = failing


def _tags(lmp):
    count = lmp.extract_setting("nlocal")
    return lmp.numpy.extract_atom("id", nelem=count).copy() if count else np.zeros(0)


def _atoms(lmp) -> dict:
    """Return all atoms by ID, and the box; all ranks call it together."""

    def gathered(name, kind, width):
        return np.array(lmp.gather(name, kind, width)).reshape(-1, width)

    low, high, xy, yz, xz, *_ = lmp.extract_box()
    lx, ly, lz = np.subtract(high, low)
    return {
        "x": np.array(lmp.gather_atoms("x", 1, 3)).reshape(-1, 3),
        "v": np.array(lmp.gather_atoms("v", 1, 3)).reshape(-1, 3),
        "f": np.array(lmp.gather_atoms("f", 1, 3)).reshape(-1, 3),
        "type": np.array(lmp.gather_atoms("type", 0, 1)),
        "energies": gathered("c_energy", 1, 1)[:, 0],
        "stresses": gathered("c_stress", 1, 6),
        "cell": np.array([[lx, 0, 0], [xy, ly, 0], [xz, yz, lz]]),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
