"""Phonons of networks that were trained with Hessians and without, against their teacher.

    python -m benchmarks.hessians RUN --out FOLDER

RUN is a network (`eqfuse convert 7net-0 RUN`), which labels strained and displaced supercells of
silicon, germanium and SiGe, of 16 atoms, with energies, forces and Hessians. Small networks learn
from them, with `training.hessian_weight` of `WAYS` and three seeds. Printed are the errors of the
frequencies of supercells of 54 to 72 atoms: of silicon, of silicon with longer bonds than any that
was trained on, and of two crystals that were not; and the time of a step. Results in FOLDER are
used again.
"""

import argparse
import csv
from pathlib import Path

import ase
import ase.io
import matplotlib.pyplot as plt
import numpy as np
from ase import units
from ase.build import bulk
from ase.spacegroup import crystal

import eqfuse
from eqfuse import train
from eqfuse.runs.checkpoint import read_checkpoint

_SIDES = {"Si": 5.47, "Ge": 5.76}
_TO_THZ = np.sqrt(units._e * 1e20 / units._amu) / (2e12 * np.pi)
_DRAWN = "Si2Ge2 in layers"
WAYS = {
    "energies and forces": (0.0, 1),
    "the same, twice the steps": (0.0, 2),
    "weight 0.1": (0.1, 1),
    "weight 1": (1.0, 1),
}
"""Weights of the Hessians, and factors of the number of steps."""


def crystals() -> dict[str, ase.Atoms]:
    """Return the crystals that are trained on."""
    made = {name: bulk(name, a=side) for name, side in _SIDES.items()}
    return made | {"SiGe": bulk("SiGe", "zincblende", a=sum(_SIDES.values()) / 2)}


def tested() -> dict[str, ase.Atoms]:
    """Return the supercells whose frequencies are compared."""
    side = _SIDES["Si"] / np.sqrt(2)
    hexagonal = crystal(
        "Si",
        [(1 / 3, 2 / 3, 1 / 16)],
        spacegroup=194,
        cellpar=[side, side, side * np.sqrt(8 / 3), 90, 90, 120],
    )
    layers = crystals()["SiGe"] * (1, 1, 2)
    layers.symbols[:] = ["Si", "Si", "Ge", "Ge"]
    return {
        "Si": crystals()["Si"] * (3, 3, 3),
        "Si, bonds 4 % longer": bulk("Si", a=1.04 * _SIDES["Si"]) * (3, 3, 3),
        "hexagonal Si": hexagonal * (3, 3, 2),
        "Si2Ge2 in layers": layers * (3, 3, 2),
    }


def frames(teacher: str, count: int) -> list[ase.Atoms]:
    """Return frames of silicon and germanium with labels of the teacher."""
    rng, made = np.random.default_rng(0), []
    for k in range(count):
        atoms = list(crystals().values())[k % 3] * (2, 2, 2)
        strain = rng.normal(scale=0.01, size=(3, 3))
        atoms.set_cell(atoms.cell @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
        atoms.positions += rng.normal(scale=0.03, size=atoms.positions.shape)
        atoms.calc = eqfuse.Calculator(teacher)
        atoms.get_forces()
        atoms.arrays["hessian"] = eqfuse.hessian(atoms).reshape(len(atoms), -1)
        made.append(atoms)
    return made


def frequencies(run, atoms: ase.Atoms) -> np.ndarray:
    """Return the sorted frequencies of a supercell, THz; negative ones are imaginary."""
    root = np.repeat(1 / np.sqrt(atoms.get_masses()), 3)
    hessian = eqfuse.hessian(run, atoms).reshape(len(root), -1)
    values = np.linalg.eigvalsh(root[:, None] * (hessian + hessian.T) / 2 * root)
    return np.sign(values) * np.sqrt(np.abs(values)) * _TO_THZ


def _kept(path: Path, make) -> np.ndarray:
    if not path.exists():
        np.save(path, make())
    return np.load(path)


def _draw(path: Path, kinds: dict[str, np.ndarray], title: str):
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    grid = np.linspace(-3, 13, 400)
    for name, values in kinds.items():
        density = np.exp(-(((grid[:, None] - values) / 0.25) ** 2)).sum(axis=1)
        axes.plot(grid, density, label=name, color="black" if name == "teacher" else None)
    axes.set(xlabel="frequency, THz", ylabel="density of states", title=title, xlim=(-3, 13))
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Label, train, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = options.out / "frames.xyz"
    if not data.exists():
        ase.io.write(data, frames(options.run, options.frames), format="extxyz")
    expected = {
        name: _kept(
            options.out / f"{name}.npy", lambda atoms=atoms: frequencies(options.run, atoms)
        )
        for name, atoms in tested().items()
    }
    print(f"| loss, seed | {' | '.join(expected)} | F, meV/Å | ms a step |")
    print("|---|" + "---:|" * (len(expected) + 2))
    drawn = {"teacher": expected[_DRAWN]}
    for seed in range(options.seeds):
        for way, (weight, factor) in WAYS.items():
            folder = options.out / f"{way.replace(' ', '-')}-{seed}"
            if not (folder / "errors.csv").exists():
                settings = ["data.batch_size=4", f"training.hessian_weight={weight}"]
                settings += ["data.val=4", "data.check=off", "model.radial_hidden=16"]
                network = {"model": "nequip", "channels": 16, "lmax": 2, "layers": 2, "cutoff": 4.5}
                length = {"steps": factor * options.steps, "seed": seed}
                train.fit(*settings, data=data, run=folder, **network, **length)
            cells = []
            for name, atoms in tested().items():
                path = folder / f"{name}.npy"
                found = _kept(path, lambda run=folder, atoms=atoms: frequencies(run, atoms))
                cells.append(f"{np.abs(found - expected[name]).mean():.3f}")
                if name == _DRAWN and seed == 0 and factor == 1:
                    drawn[way] = found
            with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            best = read_checkpoint(folder, ("best",))[1]["validation"]
            times = [float(row["ms_per_step"]) for row in rows]
            cells.append(f"{best['val_forces_mae_mev_per_a']:.1f}")
            print(
                f"| {way}, {seed} | {' | '.join(cells)} | {np.nanmedian(times):.0f} |", flush=True
            )
    _draw(options.out / "hessians.png", drawn, f"{_DRAWN}, which was not trained on")


if __name__ == "__main__":
    main()
