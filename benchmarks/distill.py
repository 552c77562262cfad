"""Compare the labels of `eqfuse distill` with as many of dynamics alone, and of rattled cells.

    python -m benchmarks.distill RUN SEED

RUN is the folder of a distillation that is done. Students of its settings are trained, for as many
steps from random parameters, on as many frames: labels of its dynamics of which a random part is
replaced by frames of the students' trajectories, labels of its dynamics alone, and strained and
rattled cells. They are tested on new trajectories of the teacher, and on those of its last student.
"""

import argparse
from pathlib import Path

import numpy as np

from eqfuse.distill.rounds import ENERGY, FORCES, Distillation
from eqfuse.distill.sampling import Limits, strained
from eqfuse.distill.settings import settings_of
from eqfuse.distill.student import errors_of, train
from eqfuse.distill.teacher import labelled
from eqfuse.inference import predict

MINUTES = 1440.0  # of a training: all have as many steps


def of_rattling(distillation, count: int, seed: int) -> list:
    """Return strained and rattled cells, with labels of the teacher."""
    rng, nearest = np.random.default_rng([seed, 7]), Limits().closeness
    made = (strained(distillation.cells[0], rng, nearest) for _ in range(count))
    return [labelled(atoms, distillation.teacher) for atoms in made]


def main(folder: Path, seed: int, steps: int):
    distillation = Distillation(settings_of(folder), folder)
    frames = distillation.trained_on(len(distillation.rows("rounds")))
    own = [a for a in frames if a.info["config_type"] in ("own", "stopped")]
    dynamics = [a for a in frames if a.info["config_type"] not in ("own", "stopped")]
    order = np.random.default_rng([seed, 8]).permutation(len(dynamics))
    mixed = [dynamics[k] for k in order[len(own) :]] + own
    ways = {"own frames": mixed, "dynamics": dynamics}
    ways["rattling"] = of_rattling(distillation, len(dynamics), seed)
    student = (distillation.work / "student.txt").read_text()
    for name, given in ways.items():
        place = distillation.work / f"{name.replace(' ', '-')}-{seed}"
        place.mkdir(exist_ok=True)
        shuffled = [given[k] for k in order]  # of which one of eight validates
        given = distillation.frames("atoms"), student, steps, MINUTES
        run = train(place, shuffled, *given, seed=seed)
        text = f"{name:<10} {len(given)} labels"
        for kind in ("new", "last"):
            tests = distillation.frames(kind)
            found = errors_of(tests, predict(run, tests))
            text += f"  {kind} {len(tests)}: F {found[FORCES]:.1f} meV/Å, "
            text += f"E {found[ENERGY]:.2f} meV/atom"
        print(text, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of eqfuse distill")
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int, default=1500, help="of the optimizer")
    options = parser.parse_args()
    main(options.folder, options.seed, options.steps)
