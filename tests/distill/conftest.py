"""Distillations of copper by EMT whose students nothing trains."""

import dataclasses
import shutil
from pathlib import Path

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT

from eqfuse.data.readers.ase_files import of_atoms
from eqfuse.distill import command, rounds, sampling
from eqfuse.distill.sampling import rattled
from eqfuse.distill.teacher import labelled
from eqfuse.inference import uncertainty
from tests.lammps.untrained import untrained_run

TEACHER = "ase.calculators.emt:EMT()"
STEP_SECONDS = 6.0
TINY = {"batch": 16, "new": 4, "atoms": 2, "trajectories": 2, "minutes": 1e6}
TINY |= {"temperature": "300..600", "student": "channels=2", "properties": ()}


@pytest.fixture(scope="session")
def student(tmp_path_factory):
    """Return a run of copper of random parameters, with a spread."""
    run = untrained_run(tmp_path_factory.mktemp("student"), numbers=(29,), channels=2, layers=1)
    rng, cell = np.random.default_rng(0), ase.build.bulk("Cu")
    frames = [of_atoms(labelled(rattled(cell, rng, 0.03, 0.1), EMT())) for _ in range(8)]
    uncertainty.fit(run, frames[:4], frames[4:])
    return run


@pytest.fixture
def begin(student, tmp_path, monkeypatch):
    """Return a function that begins a distillation whose trainings copy the `student`.

    The `trained` of what it returns has the labels, the start and the name of each training,
    `lengths` the steps and minutes of each. `begin.again` opens the folder of one again, with
    changes of its settings; `begin.ended` runs one to its end.
    """
    trained, counts, begun = [], [], []

    def train(folder, labels, atoms, settings, steps, minutes, *, seed=0, start=None):
        trained.append((len(labels), start and Path(start).parent.name, folder.name))
        counts.append((steps, minutes))
        run = Path(shutil.copytree(student, folder / "run", dirs_exist_ok=True))
        (run / "metrics.csv").write_text(f"step,elapsed_s\n1,0.1\n{steps},{STEP_SECONDS * steps}\n")
        return run

    monkeypatch.setattr(rounds, "train", train)
    nothing = {"label": 1e-12, "beginning": 0.0}
    monkeypatch.setattr(rounds.Distillation, "_seconds", lambda self: nothing)
    monkeypatch.setattr(sampling, "APART", 10.0)
    ase.io.write(tmp_path / "start.xyz", ase.build.bulk("Cu"))

    def made(teacher=TEACHER, *, certified=False, **given):
        if not certified:
            monkeypatch.setattr(rounds, "certify", lambda *_: {})
        start = str(given.pop("start", tmp_path / "start.xyz"))
        run = str(tmp_path / given.pop("run", "run"))
        settings = command.Distill(teacher=teacher, start=start, run=run, **TINY | given)
        distillation = rounds.Distillation(settings)
        distillation.trained, distillation.lengths = trained, counts
        begun.append(distillation)
        return distillation

    def again(first, **changes):
        settings = dataclasses.replace(first.settings, **changes)
        begun.append(rounds.Distillation(settings, first.folder))
        return begun[-1]

    def ended(*words, **given):
        made(*words, **given).run()
        return begun[-1]

    made.again, made.ended = again, ended
    yield made
    for distillation in begun:
        if hasattr(distillation.teacher, "close"):
            distillation.teacher.close()
