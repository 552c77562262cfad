"""Generate the data that ships in eqfuse/data/readers/embedded: molecular dynamics with GFN2-xTB.

    pip install tblite ase && python scripts/generate_data.py [FOLDER]
    python scripts/generate_data.py --check [FOLDER]

Takes about twenty minutes on one core, most of it for the crystal. The check compares forces and
stresses of three frames of each file with central differences of the energy.
Units: Å, eV, eV/Å, eV/Å^3.
References: Bannwarth, Ehlert and Grimme 2019, doi:10.1021/acs.jctc.8b01176 (GFN2-xTB).
"""

import dataclasses
import pathlib
import sys

import ase.build
import numpy as np
from ase import units
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution, Stationary
from ase.optimize import BFGS
from tblite.ase import TBLite

SEED = 20261121
FRICTION = 0.02 / units.fs
DEFAULT_FOLDER = pathlib.Path(__file__).parents[1] / "eqfuse" / "data" / "readers" / "embedded"


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """Settings of one piece of Langevin dynamics.

    Attributes:
      config_type: its name in the file.
      temperature: K.
      frames: how many are kept.
      stride: steps between two of them.
      equilibration: steps before the first of them.
      timestep: fs.
      scale: of the cell and positions before the start; 1 for a molecule.
    """

    config_type: str
    temperature: float
    frames: int
    stride: int
    equilibration: int
    timestep: float
    scale: float = 1.0


ETHANOL = (
    Trajectory("300K", 300, 500, 20, 1000, 0.5),
    Trajectory("500K", 500, 500, 20, 1000, 0.5),
)
LITHIUM_FLUORIDE = (
    Trajectory("300K", 300, 30, 6, 100, 1.0),
    Trajectory("300K_compressed", 300, 30, 6, 100, 1.0, 0.98),
    Trajectory("300K_expanded", 300, 30, 6, 100, 1.0, 1.02),
)


def calculator(accuracy: float = 0.1) -> TBLite:
    return TBLite(method="GFN2-xTB", accuracy=accuracy, verbosity=0)


def sample(atoms, trajectory: Trajectory, rng: np.random.Generator) -> list[dict]:
    """Frames of a trajectory from `atoms`, labelled at positions rounded to float32."""
    atoms = atoms.copy()
    if trajectory.scale != 1:
        atoms.set_cell(atoms.cell * trajectory.scale, scale_atoms=True)
    atoms.calc = calculator()
    MaxwellBoltzmannDistribution(atoms, temperature_K=trajectory.temperature, rng=rng)
    Stationary(atoms)
    dynamics = Langevin(
        atoms,
        trajectory.timestep * units.fs,
        temperature_K=trajectory.temperature,
        friction=FRICTION,
        rng=rng,
    )
    dynamics.run(trajectory.equilibration)
    frames = []
    for _ in range(trajectory.frames):
        dynamics.run(trajectory.stride)
        frames.append(label(atoms))
    return frames


def label(atoms) -> dict:
    """Energy, forces and stress of a frame at its positions rounded to float32."""
    rounded = atoms.copy()
    rounded.positions = (atoms.positions - atoms.positions.mean(axis=0)).astype(np.float32)
    rounded.calc = calculator()
    frame = {
        "positions": rounded.positions.astype(np.float32),
        "energy": rounded.get_potential_energy(),
        "forces": rounded.get_forces().astype(np.float32),
    }
    if rounded.pbc.any():
        frame["cell"] = rounded.cell.array
        frame["stress"] = rounded.get_stress(voigt=False).astype(np.float32)
    return frame


def write(path: pathlib.Path, atoms, trajectories, seed: int):
    """Run the trajectories and write one compressed npz file."""
    rng = np.random.default_rng(seed)
    frames, names = [], []
    for trajectory in trajectories:
        frames += sample(atoms, trajectory, rng)
        names += [trajectory.config_type] * trajectory.frames
        print(f"{path.name}: {trajectory.config_type} done", flush=True)
    arrays = {key: np.stack([frame[key] for frame in frames]) for key in frames[0]}
    np.savez_compressed(
        path, numbers=atoms.numbers.astype(np.int32), config_type=np.array(names), **arrays
    )
    print(f"{path}: {len(frames)} frames, {path.stat().st_size / 1000:.0f} kB", flush=True)


def check(path: pathlib.Path):
    """Print how far forces and stresses of a file are from central differences of the energy."""
    with np.load(path) as arrays:
        data = {key: arrays[key] for key in arrays.files}
    count = len(data["positions"])
    for k in (0, count // 2, count - 1):
        atoms = ase.Atoms(data["numbers"], data["positions"][k].astype(np.float64))
        if "cell" in data:
            atoms.cell, atoms.pbc = data["cell"][k], True
        slopes = [
            [-_slope(atoms, lambda a, s, i=i, j=j: _shift(a, i, j, s), 1e-3) for j in range(3)]
            for i in range(len(atoms))
        ]
        difference = np.abs(data["forces"][k] - slopes).max()
        line = f"{path.name}, frame {k}: forces {difference:.1e} eV/Å"
        if "stress" in data:
            pairs = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
            volume = atoms.get_volume()
            strained = [
                _slope(atoms, lambda a, s, p=p: _strain(a, p, s), 1e-3) / volume for p in pairs
            ]
            difference = [data["stress"][k][p] for p in pairs] - np.array(strained)
            line += f", stress {np.abs(difference).max():.1e} eV/Å^3"
        print(line, flush=True)


def _slope(atoms, change, step: float) -> float:
    """Return the central difference of the energy under `change(atoms, amount)`, eV."""
    energies = []
    for sign in (1, -1):
        moved = atoms.copy()
        change(moved, sign * step)
        moved.calc = calculator(accuracy=0.01)
        energies.append(moved.get_potential_energy())
    return (energies[0] - energies[1]) / (2 * step)


def _shift(atoms, i: int, j: int, amount: float):
    atoms.positions[i, j] += amount


def _strain(atoms, pair: tuple[int, int], amount: float):
    strain = np.eye(3)
    strain[pair] += amount / 2
    strain[pair[::-1]] += amount / 2
    atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)


def main():
    arguments = sys.argv[1:]
    checks = arguments[:1] == ["--check"]
    folder = pathlib.Path((arguments[checks:] or [DEFAULT_FOLDER])[0])
    if checks:
        for name in ("ethanol.npz", "lif.npz"):
            check(folder / name)
        return
    folder.mkdir(parents=True, exist_ok=True)
    ethanol = ase.build.molecule("CH3CH2OH")
    ethanol.calc = calculator()
    BFGS(ethanol, logfile=None).run(fmax=0.01)
    write(folder / "ethanol.npz", ethanol, ETHANOL, SEED)
    crystal = ase.build.bulk("LiF", "rocksalt", a=4.03, cubic=True)
    write(folder / "lif.npz", crystal, LITHIUM_FLUORIDE, SEED + 1)


if __name__ == "__main__":
    main()
