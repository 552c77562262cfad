"""Rounds of sampling, selection, labels and training, until errors or a budget end them.

All that a round decides is in files of its folder or follows from them, so that an interrupted
distillation goes on to the same labels: the candidates to label (`labels.xyz` and `new.xyz` of the
round), what the teacher gave (`labels.xyz` and `new.xyz` in `distill/`, as they come), and the run.
"""

import csv
import functools
import io
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import ase
import ase.io
import numpy as np

import eqfuse
from eqfuse.distill.sampling import Conditions, Sampler, cells_of, is_dense, timestep_of
from eqfuse.distill.student import Errors, fast_enough, publish, seconds, train
from eqfuse.distill.teacher import labelled, open_teacher
from eqfuse.inference.network import UNCERTAINTY
from eqfuse.runs.errors import Interrupted, TrainingFailed
from eqfuse.runs.files import whole, write_table, write_whole
from eqfuse.runs.log import Log, say, warn

_TIMED = 256  # atoms of a crystal whose steps are timed
FINAL = 3  # times the steps of a round


def kept(path: Path) -> list[ase.Atoms]:
    """Return the frames of a file that is appended to; cut off one that is not whole."""
    if not path.exists():
        return []
    lines, good = path.read_bytes().splitlines(keepends=True), 0
    while good < len(lines):
        end = good + 2 + int(lines[good]) if lines[good].strip().isdigit() else len(lines) + 1
        if end > len(lines) or not lines[end - 1].endswith(b"\n"):
            os.truncate(path, sum(map(len, lines[:good])))
            break
        good = end
    return ase.io.read(path, ":", format="extxyz") if good else []


def keep(path: Path, frame: ase.Atoms):
    """Append a frame to a file, at once."""
    text = io.StringIO()
    ase.io.write(text, frame, format="extxyz")
    with open(path, "ab") as file:
        file.write(text.getvalue().encode())
        file.flush()
        os.fsync(file.fileno())


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
        self._began = time.monotonic()
        rows = self.rows()
        self._before = float(rows[-1]["minutes"]) if rows else 0.0

    @property
    def minutes(self) -> float:
        """Return the time since the beginning, without interruptions."""
        return self._before + (time.monotonic() - self._began) / 60

    def rows(self) -> list[dict]:
        """Return the rows of rounds.csv, a round each."""
        path = self.work / "rounds.csv"
        if not path.exists():
            return []
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def frames(self, name: str, before: float = np.inf) -> list[ase.Atoms]:
        """Return the frames of "labels", "new", "failed" or "atoms", before a round."""
        frames = kept(self.work / f"{name}.xyz")
        return [atoms for atoms in frames if atoms.info.get("round", 0) < before]

    @functools.cached_property
    def has_stress(self) -> bool:
        """Return True if the teacher gives a stress of the material, see `is_dense`."""
        cell = self.starts[0]
        return is_dense(cell) and "stress" in labelled(cell, self.teacher).calc.results

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
                log.begin(self.work, new=not self.rows())
                student = self._rounds()
                certify(self, student)
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
        settings, number, student, reason = self.settings, 0, None, None
        self._isolated_atoms()
        chosen = self._student_settings()
        while (done := self.work / f"round-{number}" / "run" / UNCERTAINTY).exists():
            student, number = done.parent, number + 1
        while reason is None:
            student, reason = self._round(number, student, chosen)
            number += 1
        say(f"rounds end: {reason}")
        final = self.work / f"final-{number}"
        final.mkdir(exist_ok=True)
        given = (final, self.frames("labels"), self.frames("atoms"), chosen)
        how = {"seed": settings.seed, "start": student}
        student = train(*given, FINAL * settings.training_steps, **how)
        publish(student, self.folder)
        return self.folder

    def _round(self, number: int, student: Path | None, chosen: str):
        """Do a round; return its student, and why the rounds end, or None."""
        settings, folder = self.settings, self.work / f"round-{number}"
        folder.mkdir(exist_ok=True)
        sampler, errors = Sampler(self, number, student), None
        if student is not None:
            new = self._labelled("new", number, sampler.new)
            if not new:
                raise TrainingFailed(
                    f"the teacher labelled no frame of new trajectories in round {number}; see "
                    f"{self.work / 'failed.xyz'}"
                )
            errors = Errors.of(student, new)
        reason = self._reason_to_stop(number, errors)
        if reason is None:
            self._labelled("labels", number, sampler.chosen)
            if (count := len(self.frames("labels"))) < 12:
                raise TrainingFailed(
                    f"there are {count} labels, and a student needs 12: the teacher failed, or "
                    f"frames are alike; see {self.work / 'failed.xyz'}, and take longer or more "
                    "trajectories"
                )
            given = folder, self.frames("labels"), self.frames("atoms"), chosen
            how = {"seed": settings.seed, "start": student}
            student = train(*given, settings.training_steps, **how)
            publish(student, self.folder)
        self._report(number, sampler.driver, errors)
        return student, reason

    def _reason_to_stop(self, number: int, errors: Errors | None) -> str | None:
        if number == 0:
            return None
        settings = self.settings
        spent = len(self.frames("labels", number)) + len(self.frames("new"))
        if 1e3 * errors.forces <= settings.forces and 1e3 * errors.energy <= settings.energy:
            return "the errors of new trajectories are below their aims"
        if spent + settings.batch > settings.labels:
            return f"{spent} of labels={settings.labels} are used"
        if self.minutes >= settings.minutes:
            return f"minutes={settings.minutes:g} are over"
        return None

    def _report(self, number: int, driver: str, errors: Errors | None):
        """Say a line about a round, and keep it in rounds.csv."""
        row = {"round": number, "driver": driver, "labels": len(self.frames("labels"))}
        row |= {"new": len(self.frames("new")), "failed": len(self.frames("failed"))}
        names = ("forces_mev_per_a", "energy_mev_per_atom", "spread_mev_per_a")
        values = errors[:3] if errors else (np.nan,) * 3
        row |= {n: round(1e3 * v, 3) for n, v in zip(names, values, strict=True)}
        row["minutes"] = round(self.minutes, 2)
        rows = [r for r in self.rows() if int(r["round"]) < number]
        write_table(self.work / "rounds.csv", [*rows, row])
        text = f"round {number:<3} {row['labels']:>5} labels {row['new']:>4} new"
        if errors:
            text += (
                f"  F {row[names[0]]:.1f} meV/Å  E {row[names[1]]:.2f} meV/atom  spread "
                f"{row[names[2]]:.1f} meV/Å"
            )
        say(f"{text}  {driver} drives  {row['minutes']:.1f} min")

    def _labelled(self, name: str, number: int, make: Callable) -> list[ase.Atoms]:
        """Return the labels of a round, after those that are missing were asked for."""
        todo = self.work / f"round-{number}" / f"{name}.xyz"
        if not todo.exists():
            frames = make()
            with whole(todo, todo.with_name(f".{name}.part.xyz")) as part:
                ase.io.write(part, frames, format="extxyz")
        path, failed = self.work / f"{name}.xyz", self.work / "failed.xyz"
        done = {a.info["place"] for a in self.frames(name) + self.frames("failed")}
        candidates = ase.io.read(todo, ":", format="extxyz") if todo.stat().st_size else []
        for k, frame in enumerate(candidates):
            if (place := f"{name}-{number}-{k}") in done:
                continue
            frame.info |= {"place": place, "round": number}
            try:
                # a frame of the teacher's own dynamics has its results
                keep(path, frame if frame.calc else labelled(frame, self.teacher))
            except Exception as error:  # of any calculator
                frame.info["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
                keep(failed, frame)
                warn(f"the teacher fails, {place} in {failed}: {frame.info['error']}")
        return [atoms for atoms in self.frames(name) if atoms.info["round"] == number]

    def _isolated_atoms(self):
        """Label isolated atoms, the references; none if the teacher cannot compute one."""
        path = self.work / "atoms.xyz"
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
        with whole(path, path.with_name(".atoms.part.xyz")) as part:
            ase.io.write(part, atoms, format="extxyz")

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

    def conditions(self, temperature: float, pressure: float | None, atoms) -> Conditions:
        """Return those of a trajectory."""
        settings = self.settings
        timestep = settings.timestep or timestep_of(atoms)
        return Conditions(temperature, pressure, settings.steps, settings.every, timestep)

    def speeds(self) -> tuple[float, float]:
        """Return the time of a step of teacher and student, s."""
        student = eqfuse.Calculator(self.folder)
        return tuple(seconds([self.teacher, student], self.timed))
