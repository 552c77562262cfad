"""Rounds: what is labelled, when they end, and that an interrupted one goes on to the same."""

import dataclasses
import os

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT

from eqfuse.certify.properties import closeness
from eqfuse.distill import rounds, sampling
from eqfuse.distill.rounds import Distillation
from eqfuse.distill.sampling import Limits
from eqfuse.distill.student import errors_of
from eqfuse.distill.teacher import labelled
from eqfuse.inference import Network, predict
from eqfuse.runs.errors import CheckpointError, ConfigError, Interrupted, TrainingFailed
from eqfuse.runs.files import locked
from eqfuse.runs.frames import Frames

FAILING = "tests.distill.calculators:Failing(11.0)"
ROUND, LAST = 14 + 2 + 4 + 4, 4
"""Labels of trajectories, the first with a minimum; strained; new; and of the student's."""


ONE, TWO = ({"labels": n * ROUND + LAST, "forces": 1e-9} for n in (1, 2))
"""Settings of distillations that end after as many rounds."""


def frames_of(distillation, name: str) -> list:
    return [(a.info["place"], a.positions.tobytes()) for a in distillation.frames(name)]


def all_frames_of(distillation) -> dict[str, list]:
    return {kind: frames_of(distillation, kind) for kind in rounds.KINDS}


def stopped_at_once(*_):
    """Limits of no trajectory."""
    return Limits({(29, 29): 0.0}, 1e9, (0.0, 1e-3))


@pytest.fixture
def steady(monkeypatch):
    """Let no trajectory be stopped: the student's network is random, and goes astray."""
    monkeypatch.setattr(Limits, "of", lambda *_: Limits({(29, 29): 0.0}, 1e9))


DAMAGES = {
    "cut by a byte": lambda content: content[:-1],
    "cut by a frame": lambda content: content[:-3000],
    "cut at half": lambda content: content[: len(content) // 2],
    "overwritten in the middle": lambda c: c[: len(c) // 2] + b"\0" * 99 + c[len(c) // 2 + 99 :],
    "overwritten": lambda _: b"something else",
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_labels_that_are_whole_are_kept_and_others_made_again(how, begin, steady, capsys):
    first = begin(**ONE)
    first._begin()
    first._sample("labels", 0)
    path, whole = first.work / "labels.traj", frames_of(first, "labels")
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    again = begin.again(first)
    assert f"{path} is damaged" in capsys.readouterr().err
    kept = frames_of(again, "labels")
    assert set(kept) < set(whole)
    assert bool(kept) == (how not in ("overwritten", "empty"))
    again._sample("labels", 0)
    assert frames_of(again, "labels") == whole
    assert path.with_name("labels.traj.damaged").exists()
    again.run()


@pytest.mark.parametrize("text", ["kind,round\nlab", "\0\xff", "a" * 200000, "", '"'])
@pytest.mark.parametrize("name", ["trajectories", "rounds"])
def test_tables_that_are_damaged_are_made_again(name, text, begin, steady, capsys):
    first = begin.ended(**ONE)
    path, rows, whole = first.work / f"{name}.csv", first.rows(name), all_frames_of(first)
    path.write_bytes(text.encode("latin-1"))
    again = begin.again(first)
    again.run()
    assert not text or f"{path} is damaged" in capsys.readouterr().err
    errors = [{k: v for k, v in row.items() if k.startswith(("own", "new"))} for row in rows]
    if name == "rounds":  # trajectories of rounds that are done are not run again
        assert [{k: row[k] for k in errors[0]} for row in again.rows(name)] == errors
    assert all_frames_of(again) == whole


def test_a_number_that_changed_is_noticed(begin, steady, capsys):
    first = begin()
    first._sample("labels", 0)
    changes = ("trajectories.csv", b"300.0", b"300.1"), ("labels.traj", b"dyn", b"din")
    for name, old, new in changes:
        path = first.work / name
        path.write_bytes(path.read_bytes().replace(old, new, 1))
    begin.again(first).rows("trajectories")
    error = capsys.readouterr().err
    assert "trajectories.csv is damaged" in error
    assert "labels.traj is damaged (of 16 frames, 1 are not whole)" in error


def test_a_folder_is_of_one_process(begin):
    first = begin(minutes=1e-9)
    with locked(first.work), pytest.raises(ConfigError, match="another process trains in"):
        first.run()


def test_a_start_that_is_damaged_is_refused(begin):
    first = begin()
    path = first.work / "start.traj"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"start\.traj is damaged"):
        begin.again(first)


def test_rounds_end_when_labels_are_used(begin, capsys, steady):
    """Own frames of earlier rounds are trained on, and new and last ones never."""
    distillation = begin.ended(**TWO)
    assert [int(row["labels"]) for row in distillation.rows("rounds")] == [ROUND, 2 * ROUND]
    counts = {name: len(distillation.frames(name)) for name in rounds.KINDS}
    assert counts == {"labels": 32, "new": 8, "own": 8, "last": LAST}
    out = capsys.readouterr().out
    assert f"rounds end: {2 * ROUND} of labels={2 * ROUND + LAST} are used" in out
    assert out.count("\nround ") + out.startswith("round ") == 2
    assert out.count(f"\nlast 2   {2 * ROUND + LAST} labels  new 8: F ") == 1
    assert distillation.trained == [
        (16, None, "round-0"),
        (16 + 4 + 16, "round-0", "round-1"),
        (32 + 8, "round-1", "last-2"),
    ]
    places = [[a.info["place"] for a in distillation.trained_on(n)] for n in (1, 2)]
    assert places[1][: len(places[0])] == places[0][:36]  # the same ones validate
    assert not [place for place in places[1] if place.startswith(("new", "last"))]


def test_frame_at_which_the_student_was_stopped_is_trained_on(begin, monkeypatch):
    monkeypatch.setattr(Limits, "of", stopped_at_once)
    distillation = begin.ended(labels=ROUND + LAST)
    last = distillation.frames("labels")[-2:]
    assert [a.info["place"] for a in last] == [f"labels-0-{k}-stopped" for k in (0, 1)]
    assert distillation.frames("own") == distillation.frames("last") == []
    assert distillation.trained[-1] == (16 + 2, "round-0", "last-1")
    missed = distillation.missed(distillation.rows("rounds")[0])
    assert "the student's trajectories have no frame" in missed
    assert "2 trajectories of the student stopped at a limit" in missed
    energy = EMT().get_potential_energy(last[1])
    assert last[1].get_potential_energy() == pytest.approx(energy, abs=1e-9)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"forces": 1e9, "energy": 1e9}, "the errors are below their aims"),
        ({"minutes": 1e-9}, "another one would go beyond half of minutes=1e-09"),
    ],
)
def test_rounds_end(given, reason, begin, capsys, steady):
    """The folder is a run."""
    distillation = begin(**given)
    network = Network(distillation.run())
    assert [name for *_, name in distillation.trained] == ["round-0", "last-1"]
    assert f"rounds end: {reason}" in capsys.readouterr().out
    assert network.species == (29,)
    assert network.uncertainty["limit"] > 0


@pytest.mark.parametrize("missed", ["forces", "energy", "own", "stopped"])
def test_all_aims_must_be_met(missed, begin, monkeypatch):
    """New trajectories and the student's own have these errors, and none has stopped."""
    distillation = begin()
    row = {f"{n}_{u}": "0.9" for n in ("new", "own") for u in (rounds.FORCES, rounds.ENERGY)}
    row |= {"labels": "16", "new": "4", "own": "4", "stopped": "0", "minutes": "1"}
    distillation.settings = dataclasses.replace(distillation.settings, forces=1.0, energy=1.0)
    monkeypatch.setattr(distillation, "rows", lambda _: [row])
    assert "below their aims" in distillation._reason_to_stop()
    key = {"forces": f"new_{rounds.FORCES}", "energy": f"new_{rounds.ENERGY}", "stopped": "stopped"}
    row[key.get(missed, f"own_{rounds.FORCES}")] = "2"
    assert distillation._reason_to_stop() is None


@pytest.mark.parametrize(
    ("given", "times"),
    [({}, 100), ({"forces": 1e9, "energy": 1e9}, 20), ({"minutes": 60.0}, 60)],
    ids=["aims are missed", "aims are met", "minutes end"],
)
def test_steps_of_the_last_training(given, times, begin, steady, monkeypatch):
    """A round has ten steps, which take a minute; all else takes none."""
    monkeypatch.setattr(Distillation, "minutes", 0.0)
    distillation = begin.ended(training_steps=10, **ONE | given)
    (steps, _), (last, _) = distillation.lengths
    assert (steps, last) == (10, pytest.approx(10 * times, abs=10))


def test_trainings_end_by_the_clock(begin, steady, monkeypatch):
    monkeypatch.setattr(Distillation, "minutes", 2.0)
    distillation = begin.ended(labels=ROUND + LAST, minutes=60.0)
    assert [minutes for _, minutes in distillation.lengths] == [10.0, 58.0]


def test_a_round_is_cut_to_minutes_and_labels(begin, monkeypatch):
    """A label takes a minute, and two of twelve minutes are for labels of a round."""
    monkeypatch.setattr(Distillation, "_seconds", lambda self: {"label": 60.0, "beginning": 6.0})
    distillation = begin(batch=160, labels=100, minutes=78.0)
    assert distillation.batch == 100 - 3 * 4
    distillation._begin()
    assert distillation.batch == 26  # half are of a crystal at its minimum, and small
    distillation._sample("labels", 0)
    assert len(distillation.frames("labels")) == 26
    message = r"minutes=72.1 is impossible.*72.4 or more: a round of 12 labels.* minutes=72.4 goes"
    with pytest.raises(ConfigError, match=message):
        begin.again(distillation, minutes=72.1).run()


def test_a_label_takes_what_dynamics_of_both_take(begin, monkeypatch):
    """40 fs are 20 steps; new trajectories are half as long as labels', and own ones twice."""
    monkeypatch.undo()
    monkeypatch.setattr(rounds, "seconds", lambda calculators, atoms: [3.0, 0.5])
    for driver, label in {"teacher": 3 * (20 + 10 + 2) + 0.5 * 40, "student": 6 + 30}.items():
        distillation = begin(run=driver, driver=driver)
        (distillation.work / "student.txt").write_text("channels=2")
        assert distillation._seconds()["label"] == label


def test_labels_begin_where_a_student_was_stopped(begin, monkeypatch):
    monkeypatch.setattr(Limits, "of", stopped_at_once)
    distillation = begin(labels=2 * ROUND + LAST)
    begun = []
    monkeypatch.setattr(sampling, "continued", lambda cell, last: begun.append(last) or cell)
    distillation.run()
    places = [atoms.info["place"] for atoms in begun if atoms.info["round"] == 0]
    assert {"labels-0-0-stopped", "labels-0-1-stopped"} <= {*places}


@pytest.mark.parametrize("given", [{}, {"driver": "student"}, {"start": "slab"}])
def test_minimum_of_a_crystal_is_labelled_once(given, begin, tmp_path):
    if "start" in given:
        ase.io.write(tmp_path / "slab.xyz", MATERIALS["slab with an adsorbate"])
        given = {"start": tmp_path / "slab.xyz"}
    distillation = begin(batch=48, **given)
    distillation._sample("labels", 0)
    labels = distillation.frames("labels")
    assert len(labels) == 48
    found = [a for a in labels if a.info["config_type"] == "minimum"]
    assert len(found) == (0 if given else 24)
    assert distillation.curved(1) == 0


def test_labels_are_those_of_the_teacher_and_tests_are_not_trained_on(begin, steady):
    distillation = begin.ended(labels=ROUND + LAST)
    labels, tests = distillation.frames("labels"), distillation.frames("new")
    tests += distillation.frames("last")
    for frame in [*labels, *tests]:
        energy, forces = frame.get_potential_energy(), frame.get_forces()
        assert energy == pytest.approx(EMT().get_potential_energy(frame), abs=1e-9)
        np.testing.assert_allclose(forces, EMT().get_forces(frame), atol=1e-9)
    kinds = ["dynamics"] * 6 + ["minimum"] * 8 + ["strained"] * 2
    assert [a.info["config_type"] for a in labels] == kinds
    assert {a.info["config_type"] for a in tests} == {"dynamics", "own"}
    trained_on = {a.positions.tobytes() for a in distillation.trained_on(1)}
    assert len(trained_on) == distillation.trained[-1][0] == 16 + 4
    assert not trained_on & {a.positions.tobytes() for a in tests}
    assert {a.info["temperature_k"] for a in tests} == {300.0, 600.0}
    rows = distillation.rows("trajectories")
    kinds = [row["kind"] for row in rows]
    assert kinds == ["labels"] * 2 + ["new"] * 2 + ["own"] * 2 + ["last"] * 2
    assert [row["pressure_gpa"] for row in rows] == ["0.0"] * 7 + [""]


def test_later_trajectories_begin_where_earlier_ones_ended(begin, monkeypatch):
    monkeypatch.setattr(rounds, "STRAIN", 0.0)
    monkeypatch.setattr(rounds, "RATTLE", 1e-6)
    distillation = begin.ended(labels=2 * ROUND + LAST)
    first, second = (distillation.frames("labels", number) for number in (0, 1))
    of = [[a for a in frames if a.info.get("trajectory") == 0] for frames in (first, second)]
    end, begun = of[0][-1].get_scaled_positions(), of[1][0].get_scaled_positions()
    away = np.abs((begun - end + 0.5) % 1 - 0.5).max()
    assert away < 0.15  # in 10 fs; thousands of frames of random velocities are farther
    of = [[a for a in frames if a.info.get("trajectory") == 1] for frames in (first, second)]
    grown, begun = of[0][-1].get_volume(), of[1][0].get_volume()  # at a pressure, and constant
    assert begun == pytest.approx(grown, 1e-6)
    assert abs(grown / of[0][0].get_volume() - 1) > 1e-5


def test_strained_cells_are_no_nearer_than_dynamics(begin, monkeypatch):
    """A bond of a molecule is stiff: moves of atoms of a crystal would be all that is learned."""
    monkeypatch.setattr(sampling, "RATTLE", 0.2)
    monkeypatch.setattr(sampling, "STRAIN", 0.0)
    distillation = begin(batch=64)
    distillation._sample("labels", 0)
    labels = distillation.frames("labels")
    strained = [a for a in labels if a.info["config_type"] == "strained"]
    assert len(strained) == 8
    assert closeness(strained)[29, 29] >= closeness(labels[:56])[29, 29]


def test_references_are_isolated_atoms_of_the_teacher(begin):
    distillation = begin()
    distillation._begin()
    [atom] = distillation.frames("atoms")
    energy = EMT().get_potential_energy(ase.Atoms("Cu"))
    assert atom.get_potential_energy() == pytest.approx(energy)
    assert atom.info["config_type"] == "IsolatedAtom"


def test_frames_at_which_the_teacher_fails_are_left_out(begin, capsys):
    distillation = begin(FAILING, driver="student", batch=96, labels=200)
    distillation._sample("labels", 0)
    labels, failed = distillation.frames("labels"), distillation.frames("failed")
    assert len(labels) + len(failed) == 96  # of the first round, all are strained cells
    volumes = [[a.get_volume() / len(a) for a in frames] for frames in (labels, failed)]
    assert min(volumes[0]) >= 11.0 > max(volumes[1])
    assert failed[0].info["error"] == "CalculationFailed: RuntimeError: no convergence"
    shown = capsys.readouterr().err
    assert shown.count("warning: the teacher fails, labels-0-strained-") == len(failed)


def test_trajectory_on_which_the_teacher_fails_has_ended(begin, capsys):
    distillation = begin("tests.distill.calculators:Failing(100.0)", trajectories=1)
    distillation.has_stress = True  # which is otherwise asked of the teacher
    distillation._sample("labels", 0)
    assert distillation.frames("labels") == []
    row = distillation.rows("trajectories")[0]
    why = "CalculationFailed: RuntimeError: no convergence"
    assert (row["frames"], row["stopped"]) == ("0", why)
    shown = capsys.readouterr().err
    assert "the teacher fails, labels-0-0-0 in" in shown
    assert "no labels of its minimum (RuntimeError: no convergence" in shown


@pytest.mark.parametrize(
    ("volume", "message"),  # of the start: 11.76 Å³
    [
        (100.0, "fails at the first structure: RuntimeError: no conv"),
        (11.7, r"there are \d+ labels, and a student needs 12"),
    ],
)
def test_teacher_that_labels_too_little_is_reported(volume, message, begin):
    failing = f"tests.distill.calculators:Failing({volume})"
    with pytest.raises(TrainingFailed, match=message):
        begin(failing, driver="student", batch=12, minutes=1e-9).run()


@pytest.mark.slow
def test_student_drives_for_a_slow_teacher(begin):
    distillation = begin.ended(driver="student", batch=12, labels=60, forces=1e-9)
    rows = [r for r in distillation.rows("trajectories") if r["kind"] != "own"]
    assert {row["kind"] for row in rows} == {"labels", "last"}
    assert "0" not in {row["round"] for row in rows}
    assert distillation.frames("new") == []


@pytest.mark.parametrize(
    "count", [*(pytest.param(n, marks=pytest.mark.slow) for n in (3, 22)), 15, ROUND + 8]
)
def test_interrupted_distillation_goes_on_to_the_same_labels(count, begin, monkeypatch):
    """In dynamics, in strained cells, in tests, and in the second round, whose labels count."""
    whole = begin.ended(run="whole", **TWO)
    part, left = begin(run="part", **TWO), [count]

    def interrupted(frames, frame):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        frames.frames.append(frame)

    with monkeypatch.context() as patch:
        patch.setattr(Frames, "add", interrupted)
        with pytest.raises(Interrupted, match=r"eqfuse distill resume=.*part goes on"):
            part.run()
    again = begin.again(part)
    again.run()
    assert all_frames_of(again) == all_frames_of(whole)


class Killed(BaseException):
    """What ends a distillation, and lets none of its files be written any more."""


@pytest.mark.parametrize("part", [0.1, pytest.param(0.6, marks=pytest.mark.slow)])
def test_a_killed_distillation_ends_like_one_that_was_not(part, begin, monkeypatch):
    """At a file of it, by chance; what is on the disk changes with a whole file alone."""
    replace, count, limit = os.replace, [0], [0]
    rng = np.random.default_rng(int(10 * part))

    def counted(source, target):
        count[0] -= 1
        if count[0] <= 0 < limit[0]:
            raise Killed
        replace(source, target)

    monkeypatch.setattr(os, "replace", counted)
    whole, killed = begin(run="whole", **ONE), begin(run="killed", **ONE)
    count[0] = 0
    whole.run()
    limit[0] = -count[0]
    count[0] = 1 + int(limit[0] * (part + 0.3 * rng.random()))
    with pytest.raises(Killed):
        killed.run()
    limit[0] = 0
    again = begin.again(killed)
    again.run()
    assert all_frames_of(again) == all_frames_of(whole)
    for name in ("rounds", "trajectories"):
        rows = [
            [{k: v for k, v in row.items() if "minutes" not in k} for row in of.rows(name)]
            for of in (again, whole)
        ]
        assert rows[0] == rows[1] != []


def test_finished_distillation_goes_on_with_more_labels(begin, steady):
    first = begin.ended(**ONE)
    again = begin.again(first, labels=2 * ROUND + 2 * LAST)
    again.run()
    assert [name for *_, name in first.trained] == ["round-0", "last-1", "round-1", "last-2"]
    assert len(again.frames("labels")) == 32


def test_errors_are_rmse_of_components(student):
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=0)
    frame, [own] = labelled(atoms, EMT()), predict(student, [atoms])
    found = errors_of([frame], [own])
    difference = own.forces - frame.get_forces()
    assert found[rounds.FORCES] == pytest.approx(1e3 * (difference**2).mean() ** 0.5)
    energy = abs(own.energy - frame.get_potential_energy()) / 4
    assert found[rounds.ENERGY] == pytest.approx(1e3 * energy)
    spread = (own.spread.forces**2).mean() ** 0.5 / 3**0.5
    assert found[rounds.SPREAD] == pytest.approx(1e3 * spread)


MATERIALS = {
    "molecule": ase.Atoms("Cu3", [(0, 0, 0), (2.3, 0, 0), (1, 2, 0)]),
    "slab with an adsorbate": ase.build.fcc111("Cu", (1, 1, 3), vacuum=8.0),
    "alloy of three elements": ase.build.bulk("Cu").repeat((3, 1, 1)),
}
MATERIALS["alloy of three elements"].symbols[:] = "CuNiAu"
ase.build.add_adsorbate(MATERIALS["slab with an adsorbate"], "O", 1.8, "fcc")
MATERIALS["slab with an adsorbate"].info.clear()


@pytest.mark.parametrize("kind", MATERIALS)
def test_labels_of_other_materials(kind, begin, tmp_path):
    ase.io.write(tmp_path / "given.xyz", MATERIALS[kind])
    distillation = begin(start=tmp_path / "given.xyz")
    distillation._sample("labels", 0)
    labels = distillation.frames("labels")
    assert len(labels) == 16
    for frame in labels:
        assert sorted(frame.numbers) == sorted(MATERIALS[kind].numbers)
        assert (frame.pbc == MATERIALS[kind].pbc).all()
        assert ("stress" in frame.calc.results) == bool(frame.pbc.all())
    pressures = {row["pressure_gpa"] for row in distillation.rows("trajectories")}
    assert pressures == ({"0.0"} if kind.startswith("alloy") else {""})
