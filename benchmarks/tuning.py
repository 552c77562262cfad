"""What fine-tuning learns, and what it moves elsewhere: plain, elastic weights, replay.

    python -m benchmarks.tuning RUN FRAMES.xyz --train 33 --test 40 --steps 120 --out FOLDER

RUN is a converted network (`eqfuse convert 7net-0 RUN`). Frames are split at random, the same for
all ways, which take the same steps of the same number of structures, one after the other in the
order of the table. Printed are errors on frames that were held out, what moved elsewhere (see
`eqfuse.train.tuning.Tuning.moved`), and the time of a step. `--seeds 3` repeats all with other
seeds, and `--only replay` takes one way.
"""

import argparse
import csv
import re
import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np

WAYS = {
    "plain": ["elastic=0"],
    "elastic": ["elastic=30"],
    "replay": ["replay=auto"],
}
UNITS = ("energy", "atom"), ("forces", "a")


def split(path: str, train: int, test: int, folder: Path) -> list[str]:
    """Write training, validation and test frames of a file, and return the settings for them."""
    frames = [atoms for atoms in ase.io.read(path, ":") if len(atoms) > 1]
    order = np.random.default_rng(0).permutation(len(frames))
    sizes = {"train": train, "val": max(4, train // 4), "test": test}
    start = 0
    for name, size in sizes.items():
        ase.io.write(folder / f"{name}.xyz", [frames[k] for k in order[start : start + size]])
        start += size
    names = {"data": "train", "data.val": "val", "data.test": "test"}
    return [f"{setting}={folder / name}.xyz" for setting, name in names.items()]


def rows_of(path: Path) -> list[dict]:
    """Return the rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def result(folder: Path, printed: str) -> list[str]:
    """Return the cells of a run."""
    errors = {row["set"]: row for row in rows_of(folder / "errors.csv") if row["group"] == "all"}
    test = errors["test"]
    cells = [float(test[f"{q}_mae_mev_per_{u}"]) for q, u in UNITS]
    texts = [f"{value:.1f}" for value in cells]
    moved = [row for row in rows_of(folder / "moved.csv") if "config_type" in row["group"]]
    for row in moved:
        energy, forces = (row[f"{q}_mae_mev_per_{u}"] for q, u in UNITS)
        texts.append(f"{float(energy):.1f}, {float(forces):.0f}")
    times = re.findall(r"^ +\d+ +[\d.e-]+ .* (\d+\.\d) +\S+$", printed, re.M)
    return [*texts, f"{np.median([float(t) for t in times]):.0f}" if times else "-"]


def main() -> None:
    """Train all ways, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("frames")
    parser.add_argument("--train", type=int, default=33)
    parser.add_argument("--test", type=int, default=40)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", choices=WAYS, action="append")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("settings", nargs="*", help="further settings of all, name=value")
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = split(options.frames, options.train, options.test, options.out)
    given = [f"start_from={options.run}", *data, "data.reference_energies=fit"]
    given += [f"steps={options.steps}", *options.settings]
    titles = None
    for name in options.only or WAYS:
        for seed in range(options.seeds):
            folder = options.out / f"{name.replace(' ', '-')}-{seed}"
            if not (folder / "moved.csv").exists():
                command = [sys.executable, "-m", "eqfuse", "train", *given, *WAYS[name]]
                command += [f"seed={seed}", f"run={folder}"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(done.stderr)
            if titles is None:
                groups = [row["group"] for row in rows_of(folder / "moved.csv")]
                titles = [name for name in groups if "config_type" in name]
                head = ["way, seed", "E test", "F test", *titles, "ms a step"]
                print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
            cells = result(folder, (folder / "log.txt").read_text(encoding="utf-8"))
            print(f"| {' | '.join([f'{name}, {seed}', *cells])} |", flush=True)


if __name__ == "__main__":
    main()
