"""NVE dynamics with a trained run, and a picture of the energy drift.

python train.py data=ethanol run=runs/ethanol max_minutes=5
python examples/nve.py runs/ethanol START.xyz
"""

import argparse

import ase.io
import matplotlib.figure
import numpy as np
from ase import units
from ase.io.formats import UnknownFileTypeError
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse

SHORTEST = 0.05  # ps; bonds to hydrogen take 10 fs to swing, and the total energy follows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("structure", help="file that ASE reads; its last frame is the start")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--temperature", type=float, default=300.0, help="of the start, K")
    parser.add_argument("--picture", default="nve.png")
    parser.add_argument("--trajectory", default="nve.xyz", help="extended XYZ file to write")
    parser.add_argument("--every", type=int, default=10, help="steps between its frames")
    options = parser.parse_args()
    try:
        atoms = ase.io.read(options.structure)
        atoms.calc = eqfuse.Calculator(options.run)
        atoms.get_potential_energy()
    except (OSError, ValueError, UnknownFileTypeError) as error:
        parser.error(str(error))
    rng = np.random.default_rng(0)
    thermalize_momenta(atoms, options.temperature, rng=rng)
    Stationary(atoms)
    dynamics = VelocityVerlet(atoms, options.timestep * units.fs)
    total, kinetic = [], []
    with open(options.trajectory, "w", encoding="utf-8") as trajectory:
        for step in range(options.steps):
            if step % options.every == 0:
                ase.io.write(trajectory, atoms, format="extxyz")
            dynamics.run(1)
            total.append(1e3 * atoms.get_total_energy() / len(atoms))
            kinetic.append(1e3 * atoms.get_kinetic_energy() / len(atoms))
    time = options.timestep * np.arange(1, options.steps + 1) / 1e3  # ps
    drift = None
    if time[-1] > SHORTEST:
        drift = np.polyfit(time, total, 1)[0]
        print(f"drift {drift:.4f} meV/atom/ps over {time[-1]:g} ps", end="")
    else:
        print(f"{time[-1]:g} ps are too short to fit a drift to", end="")
    programs = "program" if atoms.calc.num_compilations == 1 else "programs"
    print(f", compiled {atoms.calc.num_compilations} {programs}", end="")
    print(f", trajectory in {options.trajectory}")
    plot(time, np.array(total), np.array(kinetic), drift, options.picture)


def plot(time, total, kinetic, drift: float | None, target: str):
    """Plot total and kinetic energy [n_steps] meV/atom against time [n_steps] ps."""
    slope = "" if drift is None else f": {drift:.3f} meV/atom/ps"
    figure = matplotlib.figure.Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(time, kinetic - kinetic[0], color="0.7", linewidth=0.8, label="kinetic energy")
    axes.plot(time, total - total[0], color="#0072b2", label=f"total energy{slope}")
    axes.set(xlabel="time (ps)", ylabel="energy change (meV/atom)")
    figure.legend(frameon=False, ncols=2, loc="outside upper center")
    axes.grid(alpha=0.3, linewidth=0.5)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main()
