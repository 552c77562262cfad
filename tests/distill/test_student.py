"""The student: which is fast enough, what it is trained on, and what its spread is fitted to."""

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT

from eqfuse.distill import student
from eqfuse.distill.sampling import rattled
from eqfuse.distill.teacher import labelled
from eqfuse.train import parse


@pytest.fixture
def fitted(monkeypatch):
    """Return what is trained and fitted, by no training."""
    calls = []
    monkeypatch.setattr(student, "fit", lambda *words: calls.append(words))
    monkeypatch.setattr(student.uncertainty, "fit", lambda *given: calls.append(given))
    return calls


def labels_of(kinds):
    rng, frames = np.random.default_rng(0), []
    for kind in kinds:
        frames.append(labelled(rattled(ase.build.bulk("Cu"), rng, 0.03, 0.1), EMT()))
        frames[-1].info["config_type"] = kind
    return frames


def test_spread_is_fitted_to_dynamics(fitted, tmp_path):
    """Every third of the first twelve labels validates, and then every eighth."""
    kinds = ["dynamics"] * 20 + ["own"] * 12 + ["strained"] * 16 + ["stopped"] * 8
    student.train(tmp_path, labels_of(kinds), [], "channels=2", 7, 0.5, seed=3)
    words, (run, train, validation) = fitted
    given = {"steps=7", "max_minutes=0.5", "seed=3", "channels=2", "training.stress_weight=1000"}
    assert given <= {*words}
    assert (run, train) == (tmp_path / "run", None)
    assert [s.config_type for s in validation] == ["dynamics"] * 5 + ["own"] * 2
    sides = [ase.io.read(tmp_path / f"{name}.xyz", ":") for name in ("train", "val")]
    assert [len(side) for side in sides] == [56 - 10, 10]


def test_spread_is_fitted_to_all_where_dynamics_are_few(fitted, tmp_path):
    student.train(tmp_path, labels_of(["strained"] * 32), [], "channels=2", 7, 0.5)
    assert fitted[1] == (tmp_path / "run", None, None)


def test_later_rounds_train_on_the_network_before(fitted, tmp_path):
    student.train(tmp_path, labels_of(["dynamics"] * 32), [], "channels=2", 7, 0.5, start="before")
    assert {"start_from=before", "training.lr=0.005"} <= {*fitted[0]}
    assert "channels=2" not in fitted[0]


@pytest.mark.parametrize(("speed", "chosen"), [(0.5, 0), (2.5, 2), (20.0, 5)])
def test_largest_student_that_is_fast_enough(speed, chosen, monkeypatch, capsys):
    """The teacher takes 1 s, and the students 1, 1/2, 1/3, ... and 1/6 s."""
    monkeypatch.setattr(student, "untrained", lambda settings, *_: settings)
    monkeypatch.setattr(student.eqfuse, "Calculator", lambda run: run)

    timed = []

    def seconds(calculators, _):
        timed.append(calculators[1])
        number = [k for k, one in enumerate(student.LADDER) if calculators[1].endswith(one)]
        return 1.0, 1 / (1 + number[0])

    monkeypatch.setattr(student, "seconds", seconds)
    settings = student.fast_enough(speed, "teacher", ase.build.bulk("Cu"))
    assert settings.endswith(student.LADDER[chosen])
    assert len(timed) <= 3
    shown = capsys.readouterr()
    assert f"{chosen + 1:.1f} times as fast as its teacher" in shown.out
    assert ("no student is 20 times as fast" in shown.err) == (speed == 20.0)


def test_near_atoms_of_a_student_repel(monkeypatch):
    """Labels have no atoms that are so near, and nothing else says how they repel."""
    monkeypatch.setattr(student, "untrained", lambda settings, *_: settings)
    monkeypatch.setattr(student.eqfuse, "Calculator", lambda run: run)
    monkeypatch.setattr(student, "seconds", lambda *_: (1.0, 1.0))
    settings = student.fast_enough(1.0, "teacher", ase.build.bulk("Cu"))
    assert parse([*student.words_of(settings), "data=lif"]).model.zbl
