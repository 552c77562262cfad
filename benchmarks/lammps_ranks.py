"""Time steps of silicon in LAMMPS, and count the halo of a rank.

mpirun -n 2 python -m benchmarks.lammps_ranks RUN [--cells 5]
"""

import argparse
import time

import numpy as np

from eqfuse import lammps as eqfuse_lammps
from eqfuse.lammps.mpi import import_lammps, load_mpi

CRYSTAL = """
units metal
lattice diamond 5.43
region box block 0 {cells} 0 {cells} 0 {cells}
create_box 1 box
create_atoms 1 box
mass 1 28.0855
velocity all create 300.0 1 loop geom
fix move all nve
thermo 100000
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--cells", type=int, default=5, help="cubic cells of 8 atoms along a side")
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    comm = load_mpi().COMM_WORLD
    lmp = import_lammps().lammps(cmdargs=["-log", "none", "-screen", "none"], comm=comm)
    lmp.commands_string(CRYSTAL.format(cells=options.cells))
    attached = eqfuse_lammps.attach(lmp, options.run, ["Si"])
    lmp.command("run 3")
    steps, networks = [], []
    evaluate = attached._evaluator.apply

    def timed(*arguments, **keywords):
        start = time.perf_counter()
        result = evaluate(*arguments, **keywords)
        networks.append(time.perf_counter() - start)
        return result

    attached._evaluator.apply = timed
    for _ in range(options.steps):
        comm.barrier()
        start = time.perf_counter()
        lmp.command("run 1 pre no post no")
        steps.append(time.perf_counter() - start)
    networks = networks[-len(steps) :]
    mine = attached.num_own, attached.num_nodes, attached.num_edges
    own, nodes, edges = np.mean(comm.gather(mine) or [[0, 0, 0]], axis=0)
    if comm.rank == 0:
        low, median, high = np.percentile(steps, [25, 50, 75]) * 1e3
        print(
            f"| {comm.size} | {8 * options.cells**3:,} | {own:,.0f} | "
            f"{nodes / own:.1f} | {edges / own:.0f} | {median:.0f} ({low:.0f} to {high:.0f}) | "
            f"{np.median(networks) * 1e3:.0f} |",
            flush=True,
        )
    lmp.close()


if __name__ == "__main__":
    main()
