"""Compare the labels of `eqfuse distill` with as many rattled cells, on the same tests.

    python -m benchmarks.distill RUN SEED

RUN is the folder of a distillation that is done. Students of its settings are trained, for as many
steps from random parameters, on its labels and on as many strained and rattled cells. Both are
tested on its new trajectories, which neither was trained on.
"""

import argparse
from pathlib import Path

import numpy as np

from eqfuse.distill.command import read
from eqfuse.distill.rounds import Distillation
from eqfuse.distill.sampling import Limits, closeness, rattled
from eqfuse.distill.student import errors_of, train
from eqfuse.distill.teacher import labelled
from eqfuse.inference import predict


def of_rattling(distillation, count: int, seed: int) -> list:
    """Return strained and rattled cells, with labels of the teacher."""
    frames, rng, settings = [], np.random.default_rng([seed, 7]), distillation.settings
    while len(frames) < count:
        size = settings.rattle * rng.uniform(0.5, 4)
        made = rattled(distillation.cells[0], rng, settings.strain, size)
        if closeness(made) > Limits().closeness:
            frames.append(labelled(made, distillation.teacher))
    return frames


def main(folder: Path, seed: int, steps: int):
    distillation = Distillation(read(folder), folder)
    labels, tests = distillation.frames("labels"), distillation.frames("new")
    student = (distillation.work / "student.txt").read_text()
    ways = {"dynamics": labels, "rattling": of_rattling(distillation, len(labels), seed)}
    for name, frames in ways.items():
        own = distillation.work / f"{name}-{seed}"
        own.mkdir(exist_ok=True)
        run = train(own, frames, distillation.frames("atoms"), student, steps, seed=seed)
        found = errors_of(tests, predict(run, tests))
        print(
            f"{name:<10} {len(frames)} labels, {len(tests)} frames: "
            f"F {found['forces_mev_per_a']:.1f} meV/Å, "
            f"E {found['energy_mev_per_atom']:.2f} meV/atom",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of eqfuse distill")
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int, default=1500, help="of the optimizer")
    options = parser.parse_args()
    main(options.folder, options.seed, options.steps)
