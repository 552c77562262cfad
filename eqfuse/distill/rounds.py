"""Rounds of dynamics, labels and training, until errors or a budget end them.

A round takes labels from dynamics of the teacher, which has computed them already, and from
strained and rattled cells; trains the student on all labels; and measures its errors on new
trajectories of the teacher, and on its own, which the teacher labels. Neither is ever trained on.

All that a round decides follows from files of its folder, so that an interrupted distillation goes
on to the same labels: frames are kept as they come (`labels.traj`, `new.traj`, `own.traj`), and
each trajectory and round that is done has a row (`trajectories.csv`, `rounds.csv`).
"""

import csv
import functools
import time
import warnings
from pathlib import Path

import ase
import ase.io
import ase.io.trajectory
import numpy as np

import eqfuse
from eqfuse.distill.sampling import (
    RATTLED,
    Limits,
    cells_of,
    closeness,
    conditions,
    is_dense,
    rattled,
    trajectory,
)
from eqfuse.distill.student import errors_of, fast_enough, publish, seconds, train
from eqfuse.distill.teacher import labelled, open_teacher
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict
from eqfuse.runs.errors import Interrupted, TrainingFailed
from eqfuse.runs.files import whole, write_table, write_whole
from eqfuse.runs.log import Log, say, warn

KINDS = ("labels", "new", "own")
"""The frames of a round: to train on, of new trajectories of the teacher, and of the student's."""
LAST = 20
"""Times the steps of a round are those of the last training at most."""
_FEWEST = 12  # labels, of which four validate
_TIMED = 256  # atoms of a crystal whose steps are timed


def kept(path: Path) -> list[ase.Atoms]:
    """Return the frames of a file to which `keep` appends, of which none is there in part."""
    return ase.io.read(path, ":") if path.exists() else []


def keep(path: Path, frame: ase.Atoms):
    """Append a frame to a file, at once."""
    with ase.io.trajectory.Trajectory(path, "a") as file:
        file.write(frame)


class Distillation:
    """A distillation in a folder, which goes on where it was interrupted.

    Args:
      settings: `eqfuse.distill.command.Distill`.
      folder: that `eqfuse.distill.command` has begun.
    """

    def __init__(self, settings, folder: Path):
        self.settings, self.folder, self.work = settings, folder, folder / "distill"
        known = {"python": settings.python, "head": settings.head}
        self.teacher = open_teacher(settings.teacher, **known)
        starts = ase.io.read(self.work / "start.traj", ":")
        self.starts = cells_of(starts, 0)
        self.cells = cells_of(starts, settings.atoms, settings.defects or (), settings.seed)
        self.timed = cells_of(starts, _TIMED)[0]
        self._began, rows = time.monotonic(), self.rows("rounds")
        self._before = float(rows[-1]["minutes"]) if rows else 0.0

    @property
    def minutes(self) -> float:
        """Return the time since the beginning, without interruptions."""
        return self._before + (time.monotonic() - self._began) / 60

    def rows(self, name: str) -> list[dict]:
        """Return the rows of rounds.csv or trajectories.csv."""
        path = self.work / f"{name}.csv"
        if not path.exists():
            return []
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def frames(self, name: str, number: int | None = None) -> list[ase.Atoms]:
        """Return the frames of a kind of `KINDS`, "failed" or "atoms"; or those of a round."""
        frames = kept(self.work / f"{name}.traj")
        return [atoms for atoms in frames if number in (None, atoms.info.get("round"))]

    @functools.cached_property
    def has_stress(self) -> bool:
        """Return True if the teacher gives a stress of the material, see `is_dense`."""
        cell = self.starts[0]
        try:
            return is_dense(cell) and "stress" in labelled(cell, self.teacher).calc.results
        except Exception as error:  # of any calculator
            raise TrainingFailed(f"the teacher fails at the first structure: {error}") from error

    def run(self) -> Path:
        """Do all rounds, train the last student, and write the certificate.

        Raises:
          TrainingFailed: the teacher labelled too few frames.
          Interrupted: by a signal; the folder can be gone on with.
        """
        from eqfuse.distill.certificate import certify

        try:
            with Log() as log, warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of frames that are far from usual
                log.begin(self.work, new=not self.rows("rounds"))
                certify(self, self._rounds())
        except (Interrupted, KeyboardInterrupt) as error:
            signum = getattr(error, "signum", 2)
            text = f"interrupted; eqfuse distill resume={self.folder} goes on"
            raise Interrupted(signum, text) from error
        finally:
            if hasattr(self.teacher, "close"):
                self.teacher.close()
        say(f"the run is {self.folder}; its certificate is {self.folder / 'certificate.html'}")
        return self.folder

    def _rounds(self) -> Path:
        self._isolated_atoms()
        chosen = self._student_settings()
        while (reason := self._reason_to_stop()) is None:
            self._round(len(self.rows("rounds")), chosen)
        rows = self.rows("rounds")
        left = self.settings.minutes - float(rows[-1]["minutes"])
        times = min(max(left / max(float(rows[-1]["training_minutes"]), 1e-3), 1.0), LAST)
        say(f"rounds end: {reason}; the last training has {times:.3g} times the steps of a round")
        publish(self._trained(f"last-{len(rows)}", len(rows), chosen, times), self.folder)
        return self.folder

    def _student(self, number: int) -> Path | None:
        """Return the student after a round; None before the first one."""
        return self.work / f"round-{number}" / "run" if number >= 0 else None

    def _trained(self, name: str, number: int, chosen: str, times: float = 1.0) -> Path:
        """Train, from the student of the round before, and return the run."""
        settings, folder, labels = self.settings, self.work / name, self.frames("labels")
        folder.mkdir(exist_ok=True)
        given = folder, labels, self.frames("atoms"), chosen, round(times * settings.training_steps)
        return train(*given, seed=settings.seed, start=self._student(number - 1))

    def _round(self, number: int, chosen: str):
        """Take labels, train, and measure the errors."""
        began = self.minutes
        self._sample("labels", number)
        if (count := len(self.frames("labels"))) < _FEWEST:
            raise TrainingFailed(
                f"there are {count} labels, and a student needs {_FEWEST}: the teacher failed, see "
                f"{self.work / 'failed.xyz'}, or trajectories stopped, see trajectories.csv there"
            )
        begun = self.minutes
        student = self._trained(f"round-{number}", number, chosen)
        trained = self.minutes - begun
        publish(student, self.folder)
        row = {"round": number, "labels": count, "failed": len(self.frames("failed"))}
        for name in KINDS[1:]:
            self._sample(name, number)
            row[name] = len(self.frames(name))
            found = dict.fromkeys(("forces_mev_per_a", "energy_mev_per_atom", "spread_mev_per_a"))
            if frames := self.frames(name, number):
                found = {**found, **errors_of(frames, predict(student, frames))}
            row |= {f"{name}_{n}": v and round(v, 3) for n, v in found.items() if "stress" not in n}
        own = ("own", str(number))
        trajectories = [r for r in self.rows("trajectories") if (r["kind"], r["round"]) == own]
        stopped = [r["stopped"] for r in trajectories if r["stopped"]]
        row |= {"stopped": len(stopped), "round_minutes": round(self.minutes - began, 3)}
        row |= {"training_minutes": round(trained, 3), "minutes": round(self.minutes, 3)}
        write_table(self.work / "rounds.csv", [*self.rows("rounds"), row])
        _report(row, stopped)

    def _reason_to_stop(self) -> str | None:
        """Return why no other round begins, by the last one."""
        settings, rows = self.settings, self.rows("rounds")
        if not rows:
            return None
        aims = {"forces_mev_per_a": settings.forces, "energy_mev_per_atom": settings.energy}
        found = [(rows[-1][f"{n}_{unit}"], aims[unit]) for n in KINDS[1:] for unit in aims]
        missed = [float(value) > aim for value, aim in found if value]
        if missed and not any(missed) and rows[-1]["stopped"] == "0":
            return "the errors are below their aims, and no trajectory of the student stopped"
        spent = sum(int(rows[-1][name]) for name in KINDS)
        if spent + settings.batch + 2 * settings.new > settings.labels:
            return f"{spent} of labels={settings.labels} are used"
        minutes, last = (float(rows[-1][name]) for name in ("minutes", "round_minutes"))
        if minutes + last > settings.minutes / 2:
            return f"another one would go beyond half of minutes={settings.minutes:g}"
        return None

    def _sample(self, name: str, number: int):
        """Keep the frames of a kind and a round: of trajectories and, of labels, rattled cells."""
        settings = self.settings
        drives = name == "own" or settings.driver == "student"
        if name == "new" and drives:
            return  # a teacher that is too slow for dynamics
        student = self._student(number if name == "own" else number - 1)
        done = {(r["kind"], r["round"], r["trajectory"]) for r in self.rows("trajectories")}
        for k in range(settings.trajectories if student or not drives else 0):
            if (name, str(number), str(k)) not in done:
                self._trajectory(name, number, k, student if drives else None)
        rng = np.random.default_rng([settings.seed, number])
        for k in range(-(-settings.batch // RATTLED) if name == "labels" else 0):
            cell, size = self.cells[k % len(self.cells)], settings.rattle * rng.uniform(0.5, 4)
            made = rattled(cell, rng, settings.strain, size)
            made.info["config_type"] = "strained"
            if closeness(made) >= Limits().closeness:
                self._keep(name, number, f"strained-{k}", made)

    def _trajectory(self, name: str, number: int, k: int, student: Path | None):
        """Keep the frames of a trajectory that the teacher, or a student, drives."""
        settings, (which, at) = self.settings, conditions(self, name, number, k)
        rng = np.random.default_rng([settings.seed, number, k, KINDS.index(name)])
        start, labels = self.cells[which].copy(), self.frames("labels")
        if name == "labels":  # not by those of this round, some of which may be there
            labels = [a for a in labels if a.info["round"] < number]
        past = [a for a in labels if (a.info.get("cell"), a.info.get("trajectory")) == (which, k)]
        if past:  # a liquid stays one; the volume is that of the start, strained anew
            start.set_positions(past[-1].positions)
            start.cell = past[-1].cell
            start.set_cell(self.cells[which].cell, scale_atoms=start.cell.rank == 3)
        calculator, limits, spreads_of, count = self.teacher, Limits(), None, 0
        if student is not None:
            network, calculator = Network(student), eqfuse.Calculator(student)
            limits = Limits.of(labels, float(network.uncertainty["limit"]))

            def spreads_of(frame):
                return predict(network, [frame])[0].spread.energies

        def keep_one(frame):
            nonlocal count
            frame.info |= {"cell": which, "trajectory": k}
            self._keep(name, number, f"{k}-{count}", frame.copy() if student else frame)
            count += 1

        begin = rattled(start, rng, settings.strain, settings.rattle)
        stop = trajectory(begin, calculator, at, rng, limits, keep_one, spreads_of)
        if stop is not None and stop.failed and student is None:
            self._failed(stop.frame, f"{name}-{number}-{k}-{count}", number, stop.why)
        row = {"kind": name, "round": number, "trajectory": k, "cell": which}
        row |= {"temperature_k": at.temperature, "pressure_gpa": at.pressure, "frames": count}
        row |= {"steps": count * at.every, "stopped": "" if stop is None else stop.why}
        write_table(self.work / "trajectories.csv", [*self.rows("trajectories"), row])

    def _keep(self, name: str, number: int, place: str, frame: ase.Atoms):
        """Keep a frame, which the teacher labels if it did not drive, unless it is kept already."""
        place = f"{name}-{number}-{place}"
        if place in {a.info["place"] for n in (name, "failed") for a in self.frames(n)}:
            return
        frame.info |= {"place": place, "round": number}
        if name == "own":
            frame.info["config_type"] = "own"
        try:
            frame = frame if frame.calc else labelled(frame, self.teacher)
        except Exception as error:  # of any calculator
            self._failed(frame, place, number, f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            keep(self.work / f"{name}.traj", frame)

    def _failed(self, frame: ase.Atoms, place: str, number: int, why: str):
        failed = self.work / "failed.traj"
        frame.info |= {"place": place, "round": number, "error": why}
        keep(failed, frame)
        warn(f"the teacher fails, {place} in {failed}: {why}")

    def _isolated_atoms(self):
        """Label isolated atoms, the references; none if the teacher cannot compute one."""
        path = self.work / "atoms.traj"
        if path.exists():
            return
        atoms = []
        for z in sorted({int(z) for cell in self.cells for z in cell.numbers}):
            atom = ase.Atoms([z], [(0.0, 0.0, 0.0)], info={"config_type": "IsolatedAtom"})
            try:
                atoms.append(labelled(atom, self.teacher))
            except Exception as error:  # of any calculator
                say(f"reference energies are fitted: no isolated atom of the teacher ({error})")
                atoms = []
                break
        with whole(path, path.with_name(".atoms.part.traj")) as part:
            ase.io.write(part, atoms, format="traj")

    def _student_settings(self) -> str:
        """Return the settings of the student, which are given or chosen by its speed, once."""
        settings, path = self.settings, self.work / "student.txt"
        if path.exists():
            return path.read_text(encoding="utf-8").strip()
        chosen = settings.student
        if chosen is None:
            chosen, factor = fast_enough(settings.speed, self.teacher, self.timed)
            say(f"student    {chosen}: {factor:.1f} times as fast as its teacher")
            if factor < settings.speed:
                warn(f"no student is {settings.speed:g} times as fast as its teacher: the fastest")
        write_whole(path, f"{chosen}\n")
        return chosen

    def speeds(self) -> tuple[float, float]:
        """Return the time of a step of teacher and student, s."""
        student = eqfuse.Calculator(self.folder)
        return tuple(seconds([self.teacher, student], self.timed))


def _report(row: dict, stopped: list[str]):
    """Say a line about a round."""
    text = f"round {row['round']:<3} {row['labels']:>5} labels"
    for name in KINDS[1:]:
        force, energy, spread = (
            row[f"{name}_{n}"]
            for n in ("forces_mev_per_a", "energy_mev_per_atom", "spread_mev_per_a")
        )
        if force is not None:
            text += f"  {name} {row[name]}: F {force:.1f} meV/Å E {energy:.2f} meV/atom "
            text += f"spread {spread:.1f} meV/Å"
    text += f"  student stopped {len(stopped)} times ({stopped[0]})" if stopped else ""
    say(f"{text}  {row['minutes']:.1f} min")
