"""Energies far from the training data: two hydrogen atoms, and a bond that is stretched.

    python -m benchmarks.far_from_data FRAMES.xyz PICTURE.png NAME=RUN ...

FRAMES.xyz has a molecule with a bond of hydrogen, of which the first frame is taken. Energies are
relative to the atoms of H2 far apart, and to the molecule with the bond at its length.
"""

import argparse

import ase
import ase.io
import matplotlib.pyplot as plt
import numpy as np

import eqfuse

DISTANCES = np.concatenate([np.arange(0.2, 1.6, 0.02), np.arange(1.6, 6.51, 0.1)])


def hydrogen(network) -> np.ndarray:
    """Return energies of H2 less those of its atoms, eV, [n]."""
    pairs = [ase.Atoms("H2", [[0, 0, 0], [0, 0, d]]) for d in (*DISTANCES, 50.0)]
    energies = np.array([p.energy for p in eqfuse.predict(network, pairs, dtype="float64")])
    return energies[:-1] - energies[-1]


def stretched(network, atoms: ase.Atoms) -> tuple[np.ndarray, float]:
    """Return energies, eV, [n], of a molecule whose first hydrogen is moved, and its distance."""
    [moved, *_] = np.flatnonzero(atoms.numbers == 1)
    distances = atoms.get_distances(moved, range(len(atoms)))
    held = int(np.argmin(np.where(atoms.numbers == 1, np.inf, distances)))
    direction = (atoms.positions[moved] - atoms.positions[held]) / distances[held]
    frames = []
    for d in DISTANCES:
        frames.append(atoms.copy())
        frames[-1].positions[moved] = atoms.positions[held] + d * direction
    energies = [p.energy for p in eqfuse.predict(network, [*frames, atoms], dtype="float64")]
    return np.array(energies[:-1]) - energies[-1], float(distances[held])


def main(frames: str, picture: str, *runs: str) -> None:
    """Print and draw the energies of runs, given as NAME=RUN."""
    atoms = ase.io.read(frames, 0)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for run in runs:
        name, _, folder = run.rpartition("=")
        curves = hydrogen(folder), stretched(folder, atoms)[0]
        for ax, curve in zip(axes, curves, strict=True):
            ax.plot(DISTANCES, curve, label=name)
        at = {d: [float(np.interp(d, DISTANCES, c)) for c in curves] for d in (0.3, 0.5, 2.0, 3.0)}
        text = "; ".join(f"{d} Å {h2:+.2f}, {bond:+.2f}" for d, (h2, bond) in at.items())
        print(f"{name:24} H2 and the bond, eV, at {text}")
    for ax, title in zip(
        axes, ("H2, relative to its atoms", "a bond of H, stretched"), strict=True
    ):
        ax.set(title=title, xlabel="distance (Å)", ylabel="energy (eV)", ylim=(-12, 20))
        ax.axhline(0, color="0.7", linewidth=0.8)
    axes[0].legend(frameon=False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frames", metavar="FRAMES.xyz")
    parser.add_argument("picture", metavar="PICTURE.png")
    parser.add_argument("runs", metavar="NAME=RUN", nargs="+")
    options = parser.parse_args()
    main(options.frames, options.picture, *options.runs)
