"""Frames of a molecule with GFN2-xTB, for the network that a run on better data starts from.

pip install tblite
python examples/xtb_frames.py START.xyz FRAMES.xyz
python train.py data=extxyz data.path=FRAMES.xyz run=XTB max_minutes=30
python train.py start_from=XTB data=extxyz data.path=DFT.xyz data.reference_energies=fit lr=0.003

Langevin dynamics from START, a trajectory on each core; a frame of every tenth femtosecond, with
`energy` (eV) and `forces` (eV/Å).
Reference: Bannwarth, Ehlert and Grimme 2019, doi:10.1021/acs.jctc.8b01176 (GFN2-xTB).
"""

import argparse
import concurrent.futures
import importlib.util
import itertools
import multiprocessing
import os

import ase.io
import numpy as np
from ase import units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.formats import UnknownFileTypeError
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta
from ase.optimize import BFGS

TIMESTEP = 1.0  # fs
FRICTION = 0.02  # 1/fs
STRIDE, EQUILIBRATION = 10, 1000  # steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("structure", help="file that ASE reads; its last frame is the start")
    parser.add_argument("frames", help="extended XYZ file to write")
    parser.add_argument("--count", type=int, default=10_000, help="number of frames")
    parser.add_argument("--temperature", type=float, default=500.0, help="K")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        start = ase.io.read(options.structure)
    except (OSError, ValueError, UnknownFileTypeError) as error:
        parser.error(f"{options.structure}: {error}")
    if options.count < 1:
        parser.error(f"--count must be at least 1, got {options.count}")
    if importlib.util.find_spec("tblite") is None:
        parser.error("GFN2-xTB is computed by tblite: pip install tblite")
    workers = min(os.cpu_count(), options.count)
    counts = [len(part) for part in np.array_split(np.arange(options.count), workers)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each trajectory
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        seeds = [(options.seed, number) for number in range(workers)]
        arguments = itertools.repeat(start), counts, itertools.repeat(options.temperature), seeds
        frames = [frame for part in pool.map(with_xtb, *arguments) for frame in part]
    ase.io.write(options.frames, frames, format="extxyz")
    print(f"{len(frames)} frames in {options.frames}")


def with_xtb(start, count: int, temperature: float, seed) -> list:
    """Return `trajectory` with GFN2-xTB."""
    from tblite.ase import TBLite

    return trajectory(start, TBLite(method="GFN2-xTB", verbosity=0), count, temperature, seed)


def trajectory(start, calculator, count: int, temperature: float, seed) -> list:
    """Return frames of Langevin dynamics from the minimum next to `start`, with their labels.

    Args:
      start: ase.Atoms.
      calculator: of ASE.
      count: number of frames.
      temperature: K.
      seed: what `numpy.random.default_rng` takes.
    """
    rng = np.random.default_rng(seed)
    atoms = start.copy()
    atoms.calc = calculator
    BFGS(atoms, logfile=None).run(fmax=0.05)
    thermalize_momenta(atoms, temperature, rng=rng)
    settings = {"temperature_K": temperature, "friction": FRICTION / units.fs, "fixcm": False}
    dynamics = Langevin(atoms, TIMESTEP * units.fs, rng=rng, **settings)
    dynamics.run(EQUILIBRATION)
    frames = []
    for _ in range(count):
        dynamics.run(STRIDE)
        frame = atoms.copy()
        del frame.arrays["momenta"]
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        frame.calc = SinglePointCalculator(frame, energy=energy, forces=forces)
        frames.append(frame)
    return frames


if __name__ == "__main__":
    main()
