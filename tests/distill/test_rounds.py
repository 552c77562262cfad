"""Rounds: what is labelled, when they end, and that an interrupted one goes on to the same."""

import dataclasses

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT

from eqfuse.distill import rounds
from eqfuse.distill.rounds import Distillation, keep, kept
from eqfuse.distill.sampling import Sampler
from eqfuse.distill.student import Errors
from eqfuse.distill.teacher import labelled
from eqfuse.inference import Network, predict
from eqfuse.runs.errors import Interrupted, TrainingFailed

FAILING = "tests.distill.calculators:Failing(11.0)"


def text_of(distillation, name: str) -> bytes:
    return (distillation.work / f"{name}.xyz").read_bytes()


def test_frames_that_are_kept_are_whole(tmp_path):
    path, frames = tmp_path / "a.xyz", [ase.build.bulk("Cu", a=a) for a in (3.6, 3.7)]
    keep(path, frames[0])
    first = path.read_bytes()
    keep(path, frames[1])
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 30, len(first) + 1):
        path.write_bytes(whole[:size])
        assert len(kept(path)) == 1
        assert path.read_bytes() == first
        keep(path, frames[1])
        assert path.read_bytes() == whole
    assert kept(tmp_path / "none.xyz") == []


def test_rounds_end_when_labels_are_used(begin, capsys):
    distillation = begin(labels=33)
    distillation.run()
    # 12, then 4 new and 12 less copies; with 4 new again, 12 more would be beyond 33
    count = len(distillation.frames("labels"))
    assert 20 <= count <= 24
    assert len(distillation.frames("new")) == 8
    assert distillation.trained == [
        (12, None, "round-0"),
        (count, "round-0", "round-1"),
        (count, "round-1", "final-3"),
    ]
    out = capsys.readouterr().out
    assert f"rounds end: {count + 8} of labels=33 are used" in out
    assert out.count("\nround ") + out.startswith("round ") == 3
    assert [row["labels"] for row in distillation.rows()] == ["12", str(count), str(count)]


def test_rounds_end_at_the_aims(begin, capsys):
    distillation = begin(forces=1e9, energy=1e9)
    distillation.run()
    assert [name for *_, name in distillation.trained] == ["round-0", "final-2"]
    assert "rounds end: the errors of new trajectories are below their aims" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("missed", ["forces", "energy"])
def test_both_aims_must_be_met(missed, begin):
    distillation = begin(labels=18, **{"forces": 1e9, "energy": 1e9, missed: 1e-9})
    assert distillation._reason_to_stop(1, Errors(0.1, 0.1, 0.1, 0.1)) is None


def test_rounds_end_when_minutes_are_over(begin):
    distillation = begin(minutes=1e-9)
    distillation.run()
    assert [name for *_, name in distillation.trained] == ["round-0", "final-2"]


def test_labels_are_those_of_the_teacher_and_new_frames_are_not_trained_on(begin):
    distillation = begin(labels=20)
    distillation.run()
    labels, new = distillation.frames("labels"), distillation.frames("new")
    for frame in [*labels, *new]:
        atoms = frame.copy()
        atoms.calc = EMT()
        energy, forces = frame.get_potential_energy(), frame.get_forces()
        # files have eight digits
        assert energy == pytest.approx(atoms.get_potential_energy(), abs=1e-6)
        np.testing.assert_allclose(forces, atoms.get_forces(), atol=1e-5)
    assert {a.info["config_type"] for a in labels} == {"dynamics", "strained"}
    assert {a.info["config_type"] for a in new} == {"dynamics"}
    trained_on = {a.positions.tobytes() for a in labels}
    assert not trained_on & {a.positions.tobytes() for a in new}
    assert {a.info["temperature_k"] for a in new} == {300.0, 600.0}


def test_references_are_isolated_atoms_of_the_teacher(begin):
    distillation = begin()
    distillation._isolated_atoms()
    [atom] = distillation.frames("atoms")
    atoms = ase.Atoms("Cu")
    atoms.calc = EMT()
    assert atom.get_potential_energy() == pytest.approx(atoms.get_potential_energy())
    assert atom.info["config_type"] == "IsolatedAtom"


def test_frames_at_which_the_teacher_fails_are_left_out(begin, capsys):
    distillation = begin(FAILING, labels=12, driver="student")  # nobody drives in round 0
    distillation._isolated_atoms()
    chosen = distillation._student_settings()
    (distillation.work / "round-0").mkdir()
    sampler = Sampler(distillation, 0, None)
    labels = distillation._labelled("labels", 0, sampler.chosen)
    distillation.teacher.close()
    failed = distillation.frames("failed")
    assert len(labels) + len(failed) == 12
    assert chosen == "channels=2"
    volumes = [[a.get_volume() / len(a) for a in frames] for frames in (labels, failed)]
    assert min(volumes[0]) >= 11.0 > max(volumes[1])
    assert failed[0].info["error"] == "CalculationFailed: RuntimeError: no convergence"
    assert capsys.readouterr().err.count("warning: the teacher fails, labels-0-") == len(failed)


def test_a_teacher_that_always_fails_ends_the_distillation(begin):
    distillation = begin("tests.distill.calculators:Failing(100.0)", driver="student")
    with pytest.raises(TrainingFailed, match="there are 0 labels, and a student needs 12"):
        distillation.run()


@pytest.mark.parametrize(("labels", "count"), [(20, 3), (33, 20)])
def test_interrupted_distillation_goes_on_to_the_same_labels(labels, count, begin, monkeypatch):
    whole = begin(labels=labels, run="whole")
    whole.run()
    part, left = begin(labels=labels, run="part"), [count]

    def interrupted(path, frame):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        keep(path, frame)

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "keep", interrupted)
        with pytest.raises(Interrupted, match=r"eqfuse distill resume=.*part goes on"):
            part.run()
    again = Distillation(part.settings, part.folder)
    again.run()
    for name in ("labels", "new"):
        assert text_of(again, name) == text_of(whole, name)
    names = [f"{row['round']} {row['labels']} {row['new']}" for row in whole.rows()]
    assert [f"{row['round']} {row['labels']} {row['new']}" for row in again.rows()] == names


def test_finished_distillation_goes_on_with_more_labels(begin):
    first = begin(labels=20)
    first.run()
    settings = dataclasses.replace(first.settings, labels=33)
    again = Distillation(settings, first.folder)
    again.run()
    assert [name for *_, name in first.trained] == ["round-0", "final-2", "round-1", "final-3"]
    assert len(again.frames("labels")) > 12


def test_the_folder_is_a_run(begin):
    distillation = begin(minutes=1e-9)
    folder = distillation.run()
    assert Network(folder).species == (29,)
    assert Network(folder).uncertainty is not None


@pytest.mark.parametrize(
    ("driver", "error", "expected"),
    [
        ("auto", 0.1, "student"),
        ("auto", 0.3, "teacher"),
        ("teacher", 0.1, "teacher"),
        ("student", 0.3, "student"),
    ],
)
def test_student_drives_once_its_error_allows(driver, error, expected, begin, student, monkeypatch):
    distillation = begin(driver=driver, driver_error=0.2)
    monkeypatch.setattr(Errors, "of", lambda *_: Errors(0, 0, 0, error))
    assert Sampler(distillation, 1, student).driver == expected
    distillation.teacher.close()


def test_errors_are_rmse_of_components(student):
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=0)
    atoms.calc = EMT()
    frame, [own] = labelled(atoms, EMT()), predict(student, [atoms])
    found = Errors.of(student, [frame])
    difference = own.forces - atoms.get_forces()
    assert found.forces == pytest.approx((difference**2).mean() ** 0.5)
    assert found.energy == pytest.approx(abs(own.energy - atoms.get_potential_energy()) / 4)
    assert found.relative == pytest.approx(found.forces / (atoms.get_forces() ** 2).mean() ** 0.5)


def test_molecule_without_cell(begin, tmp_path):
    ase.io.write(tmp_path / "molecule.xyz", ase.Atoms("Cu3", [(0, 0, 0), (2.3, 0, 0), (1, 2, 0)]))
    distillation = begin(start=tmp_path / "molecule.xyz", labels=20)
    distillation.run()
    labels = distillation.frames("labels")
    assert len(labels) == 12
    assert not any(a.pbc.any() or "stress" in a.calc.results for a in labels)
