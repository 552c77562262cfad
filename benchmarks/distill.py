"""Compare the labels that `eqfuse distill` chose with as many taken otherwise, on the same tests.

    python -m benchmarks.distill RUN SEED [dynamics] [rattling]

RUN is the folder of a distillation that is done. Its number of labels is taken at random from
dynamics of the teacher at the same temperatures and pressures, and from strained and rattled cells;
students of the same settings are trained on these for as many steps. All are tested on the frames
of new trajectories of RUN, and on others that the teacher drives.
"""

import argparse
from pathlib import Path

import ase.io
import numpy as np

from eqfuse.distill.command import read
from eqfuse.distill.rounds import FINAL, Distillation
from eqfuse.distill.sampling import Sampler, closeness, rattled
from eqfuse.distill.student import Errors, train
from eqfuse.distill.teacher import labelled


def of_dynamics(distillation, count: int, seed: int) -> list:
    """Return random frames of dynamics of the teacher, with its labels."""
    frames, part = [], 1000 * (seed + 1)
    while len(frames) < 2 * count:
        frames += Sampler(distillation, 0, None).trajectories(part, 4, drives=False)
        part += 1
    chosen = np.random.default_rng(seed).choice(len(frames), count, replace=False)
    return [frames[k] for k in chosen]


def of_rattling(distillation, count: int, seed: int) -> list:
    """Return strained and rattled cells, with labels of the teacher."""
    frames, rng = [], np.random.default_rng([seed, 7])
    settings = distillation.settings
    while len(frames) < count:
        size = settings.rattle * rng.uniform(0.5, 4)
        made = rattled(distillation.cells[0], rng, settings.strain, size)
        if closeness(made) > 0.5:
            frames.append(labelled(made, distillation.teacher))
    return frames


def main(folder: Path, seed: int, *names: str):
    settings = read(folder)
    distillation = Distillation(settings, folder)
    count = len(distillation.frames("labels"))
    rounds = len(distillation.rows()) - 1 + FINAL
    driven = of_dynamics(distillation, 60, 99)
    tests = {"new trajectories": distillation.frames("new"), "of the teacher": driven}
    runs = {"distill": folder}
    ways = {"dynamics": of_dynamics, "rattling": of_rattling}
    for name, frames_of in ((name, ways[name]) for name in names or ways):
        own = folder / f"{name}-{seed}"
        if not (own / "labels.xyz").exists():
            own.mkdir(exist_ok=True)
            ase.io.write(own / "labels.xyz", frames_of(distillation, count, seed))
        given = ase.io.read(own / "labels.xyz", ":"), distillation.frames("atoms")
        student = (distillation.work / "student.txt").read_text()
        runs[name] = train(own, *given, student, rounds * settings.training_steps, seed=seed)
    for name, run in runs.items():
        for test, frames in tests.items():
            found = Errors.of(run, frames)
            print(
                f"{name:<10} {count} labels, {test} ({len(frames)}): "
                f"F {1e3 * found.forces:.1f} meV/Å, E {1e3 * found.energy:.2f} meV/atom",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of eqfuse distill")
    parser.add_argument("seed", type=int)
    parser.add_argument("ways", nargs="*", help="dynamics, rattling; both if none is named")
    options = parser.parse_args()
    main(options.folder, options.seed, *options.ways)
