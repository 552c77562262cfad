"""The spread of one network and of a committee of four, against errors on rattled frames.

    python -m benchmarks.uncertainty TEACHER FRAMES.xyz --out FOLDER

TEACHER is a network that labels frames of a molecule, and frames that are rattled, since there are
no others to compare with (`eqfuse convert nequix-mp-1 TEACHER`). Four small networks learn from 60
frames. For the first of them `eqfuse uncertainty` fits its spread to these and to 20 validation
frames; the others make a committee with it. Printed are errors and spread of both on frames that
none has seen, as they are and rattled. Results in FOLDER are used again.
"""

import argparse
import time
from pathlib import Path

import ase.io
import matplotlib.pyplot as plt
import numpy as np
import scipy.stats

import eqfuse
from eqfuse import train
from eqfuse.inference import uncertainty

_SIZES = {"train": 60, "val": 20, "test": 40}
_RATTLES = (0.0, 0.03, 0.06)  # Å


def frames(teacher: str, path: str, folder: Path) -> dict[str, Path]:
    """Write labelled frames by part, and the test frames rattled; return the files."""
    given = [atoms for atoms in ase.io.read(path, ":") if len(atoms) > 1]
    rng = np.random.default_rng(0)
    order, start, parts = rng.permutation(len(given)), 0, {}
    for name, size in _SIZES.items():
        parts[name] = [given[k] for k in order[start : start + size]]
        start += size
    tested = parts.pop("test")
    for rattle in _RATTLES:
        moved = [atoms.copy() for atoms in tested]
        for atoms in moved:
            atoms.positions += rng.normal(scale=rattle, size=atoms.positions.shape)
        parts[f"test-{rattle}"] = moved
    files = {}
    for name, some in parts.items():
        files[name] = folder / f"{name}.xyz"
        if files[name].exists():
            continue
        plain = [ase.Atoms(a.numbers, a.positions) for a in some]
        labels = eqfuse.predict(teacher, plain)
        for atoms, label in zip(plain, labels, strict=True):
            atoms.info["energy"], atoms.arrays["forces"] = label.energy, label.forces
        ase.io.write(files[name], plain, format="extxyz")
    return files


def agreement(run, file: Path) -> tuple[list[np.ndarray], float]:
    """Return errors and spreads of energies per atom and of forces, meV, and the seconds."""
    labelled = ase.io.read(file, ":")
    plain = [ase.Atoms(a.numbers, a.positions) for a in labelled]
    eqfuse.predict(run, plain)  # compiles
    start = time.perf_counter()
    predicted, parts = eqfuse.predict(run, plain), ([], [], [], [])
    seconds = time.perf_counter() - start
    for p, atoms in zip(predicted, labelled, strict=True):
        parts[0].append([(p.energy - atoms.get_potential_energy()) / len(atoms)])
        parts[1].append([p.spread.energy / len(atoms)])
        parts[2].append(np.linalg.norm(p.forces - atoms.get_forces(), axis=1))
        parts[3].append(p.spread.forces)
    return [1e3 * np.abs(np.concatenate(part)) for part in parts], seconds


def cells(errors: np.ndarray, spread: np.ndarray) -> list[str]:
    """Return RMS of errors and spread, their rank correlation, and the part within two spreads."""
    rank = scipy.stats.spearmanr(errors, spread).statistic
    rms = [np.sqrt(np.mean(x**2)) for x in (errors, spread)]
    return [
        *(f"{x:.3g}" for x in rms),
        f"{rank:.2f}",
        f"{100 * np.mean(errors < 2 * spread):.0f}%",
    ]


def main() -> None:
    """Label, train, fit, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("teacher")
    parser.add_argument("frames")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    files = frames(options.teacher, options.frames, options.out)
    runs = options.out / "committee"
    for seed in range(4):
        folder = runs / f"seed={seed}"
        if not (folder / "errors.csv").exists():
            settings = [f"data.val={files['val']}", "data.check=off", "data.batch_size=5"]
            network = {"model": "nequip", "channels": 16, "lmax": 1, "layers": 2, "cutoff": 4.5}
            train.fit(
                *settings,
                data=files["train"],
                run=folder,
                steps=options.steps,
                seed=seed,
                **network,
            )
    print(uncertainty.fit(runs / "seed=0"))
    titles = "error", "spread", "rank", "within 2"
    titles = [f"{q} {title}" for q in ("E", "F") for title in titles]
    print(f"| spread of | rattled, Å | {' | '.join(titles)} | s |")
    print("|---|" + "---:|" * (len(titles) + 2))
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
    every = []
    for name, run, axis in (
        ("one network", runs / "seed=0", axes[0]),
        ("committee of 4", runs, axes[1]),
    ):
        for rattle in _RATTLES:
            parts, seconds = agreement(run, files[f"test-{rattle}"])
            texts = [*cells(*parts[:2]), *cells(*parts[2:])]
            print(f"| {name} | {rattle} | {' | '.join(texts)} | {seconds:.2f} |", flush=True)
            axis.loglog(parts[3], parts[2], ".", ms=2, label=f"rattled by {rattle} Å")
            every += [parts[2], parts[3]]
        axis.set(title=name, xlabel="spread of a force, meV/Å")
    low, high = (np.quantile(np.concatenate(every), q) for q in (0.001, 0.999))
    for axis in axes:
        axis.plot([low, high], [low, high], "k-", lw=1)
        axis.set(xlim=(low, high), ylim=(low, high))
    axes[0].set(ylabel="error of it, meV/Å")
    axes[1].legend(markerscale=4)
    figure.savefig(options.out / "uncertainty.png", dpi=150)


if __name__ == "__main__":
    main()
