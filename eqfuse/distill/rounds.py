"""Rounds of dynamics, labels and training, until errors or a budget end them.

A round takes labels from dynamics of the teacher and from strained and rattled cells, trains the
student, and measures its errors on new trajectories of the teacher, which are never trained on, and
on its own, which later rounds train on. All decisions follow from the files of its folder, in which
frames are kept as they come: an interrupted distillation goes on to the same labels.
"""

import dataclasses
import functools
import itertools
import json
import math
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path

import ase
import numpy as np

import eqfuse
from eqfuse.certify.properties import closeness, is_dense, seconds
from eqfuse.data import require_apart
from eqfuse.distill import sampling
from eqfuse.distill.certificate import MOST_ATOMS, certify
from eqfuse.distill.sampling import RATTLE, RATTLED, STRAIN, Limits, cells_of, not_sampled
from eqfuse.distill.settings import FEWEST, KINDS, SETTINGS, Distill
from eqfuse.distill.student import errors_of, fast_enough, train, untrained, words_of
from eqfuse.distill.teacher import labelled, open_teacher
from eqfuse.inference import predict
from eqfuse.md.structures import read_frames
from eqfuse.runs import (
    CheckpointError,
    Frames,
    Interrupted,
    Log,
    TrainingFailed,
    absolute,
    locked,
    made,
    naming,
    read_table,
    require,
    require_regular,
    say,
    set_aside,
    warn,
    write_table,
    write_whole,
)

FORCES, ENERGY, SPREAD = "forces_rmse_mev_per_a", "energy_rmse_mev_per_atom", "spread_mev_per_a"
_MOST = 20, 100  # times the steps of a round, of the last training: where aims are met, and not
_CURVED = 2  # one of so many labels of the first round is at the minimum of a crystal; it is small
_PART = 6  # one of so many minutes are for labels, or for the training, of a round
_COMPILED = 4  # times of the beginning: each training, and what measures it, compiles as long
_TIMED = 256  # atoms of a crystal whose steps are timed


def _order(frame: ase.Atoms):
    """Return the place of a frame among those of its kind, in whatever order they were labelled."""
    _, number, *last = frame.info["place"].split("-")
    numbers = [int(text) for text in last if text.isdecimal()]
    return int(number), last[1] == "stopped", "" if last[0].isdecimal() else last[0], numbers


class Distillation:
    """A distillation in a folder that has begun; or in a new one, if all that it needs is there."""

    def __init__(self, settings: Distill, folder: Path | None = None):
        if os.path.exists(os.path.expanduser(settings.teacher)):
            settings.teacher = absolute(settings.teacher)
        file = folder / "distill" / "start.traj" if folder else settings.start
        words_of(settings.student or "")
        starts = Frames(file, repairs=False).frames if folder else read_frames(file)
        for number, atoms in enumerate(starts):
            with naming(f"{file}, frame {number}"):
                require_apart(atoms)
        defects = settings.defects or ()
        if folder is None and (names := not_sampled(starts)):
            warn(f"{file}: {names} of the start are not kept, and all atoms move")
        self.cells = cells_of(starts, settings.atoms, defects, settings.seed)
        self.starts, self.timed = cells_of(starts, 0), cells_of(starts, _TIMED)[0]
        self.teacher = open_teacher(settings.teacher, python=settings.python, head=settings.head)
        self.settings, self.folder = settings, folder or made(settings.run, "distill")
        self.work = self.folder / "distill"
        if folder is None:
            self.work.mkdir()
            first = Frames(self.work / "start.traj")
            [*map(first.add, self.starts)]
            first.flush()
        require_regular(*self.folder.glob("*"), *self.work.glob("*"))
        names = *KINDS, "atoms", "failed"
        self._kept = {name: Frames(self.work / f"{name}.traj") for name in names}
        write_whole(self.folder / SETTINGS, json.dumps(dataclasses.asdict(settings), indent=1))
        self._places = {a.info["place"] for n in (*KINDS, "failed") for a in self.frames(n)}
        before = max((float(row["minutes"]) for row in self.rows("rounds")), default=0.0)
        self._began = time.monotonic() - 60 * before

    @property
    def minutes(self) -> float:
        """Return the time since the beginning, without interruptions."""
        return (time.monotonic() - self._began) / 60

    @property
    def batch(self) -> int:
        """Return the labels of a round: batch=, or what labels= and minutes= suffice for."""
        settings, rows = self.settings, self.rows("rounds")
        left = settings.labels - (int(rows[-1]["labels"]) if rows else 0) - 3 * settings.new
        for row in self.rows("seconds"):
            most = 60 * settings.minutes / _PART / float(row["label"])  # of dynamics
            left = min(left, int(most * (_CURVED if self.is_curved(len(rows)) else 1)))
        return min(settings.batch, max(left, FEWEST))

    def curved(self, number: int) -> int:
        """Return how many labels of a round are at the minimum of a crystal, by its teacher."""
        return self.batch // _CURVED * self.is_curved(number)

    def is_curved(self, number: int) -> bool:
        """Return True for a round with such labels, which take next to no time: cells are small."""
        small = len(self.starts[0]) <= MOST_ATOMS and self.settings.driver == "teacher"
        return number == 0 and small and self.has_stress

    def rows(self, name: str) -> list[dict]:
        """Return the rows of the table "rounds", "trajectories" or "seconds", if it is there."""
        path = self.work / f"{name}.csv"
        try:
            return read_table(path, signed=True)
        except CheckpointError as error:  # it follows from the frames and students that are kept
            warn(f"{error}, and is now {set_aside(path).name}; it is made again")
            return []

    def frames(self, name: str, number: int | None = None) -> list[ase.Atoms]:
        """Return the frames of a kind of `KINDS`, "failed" or "atoms"; or those of a round."""
        frames = self._kept[name].frames
        frames = frames if name == "atoms" else sorted(frames, key=_order)
        return [atoms for atoms in frames if number in (None, atoms.info.get("round"))]

    def trained_on(self, number: int) -> list[ase.Atoms]:
        """Return the frames that a round trains on; those of earlier rounds come first."""
        late = "stopped", "own"  # which the trajectories of a round's student add
        frames = self.frames("labels") + self.frames("own")
        known = [a for a in frames if a.info["round"] + (a.info["config_type"] in late) <= number]
        return sorted(known, key=lambda atoms: atoms.info["round"])

    @functools.cached_property
    def has_stress(self) -> bool:
        """Return True if the teacher gives a stress of the material, see `is_dense`."""
        try:
            first = labelled(self.starts[0], self.teacher)
        except Exception as error:  # of any calculator
            raise TrainingFailed(f"the teacher fails at the first structure: {error}") from error
        return is_dense(first) and "stress" in first.calc.results

    def run(self) -> Path:
        """Do all rounds, train the last student, and write the certificate.

        Raises:
          TrainingFailed: the teacher fails at the first structure, or labelled too few frames.
          Interrupted: by a signal; the folder can be gone on with.
        """
        try:
            with Log() as log, locked(self.work), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of frames that are far from usual
                log.begin(self.work, new=not self.rows("rounds"))
                self._begin()
                certify(self, self._rounds())
        except (Interrupted, KeyboardInterrupt) as error:
            text = f"interrupted; eqfuse distill resume={self.folder} goes on"
            raise Interrupted(getattr(error, "signum", 2), text) from error
        finally:
            for kept in self._kept.values():
                kept.flush()
            if hasattr(self.teacher, "close"):
                self.teacher.close()
        say(f"the run is {self.folder}; its certificate is {self.folder / 'certificate.html'}")
        return self.folder

    def _begin(self):
        """Label isolated atoms, choose the student, once; refuse what is too little for a round."""
        chosen, settings, kept = self.work / "student.txt", self.settings, self._kept["atoms"]
        if kept.is_damaged or not chosen.exists():
            self._label_isolated()
        if not chosen.exists():
            fast = settings.student or fast_enough(settings.speed, self.teacher, self.timed)
            write_whole(chosen, fast)
        if not self.rows("seconds"):
            write_table(self.work / "seconds.csv", [self._seconds()], signed=True)
        [row] = self.rows("seconds")
        least = _PART * FEWEST * float(row["label"]) + _COMPILED * float(row["beginning"])
        enough = math.ceil(least / 6) / 10
        need = (
            f"{enough:g} or more: a round of {FEWEST} labels takes so long here; "
            f"eqfuse distill resume={self.folder} minutes={enough:g} goes on"
        )
        require(least <= 60 * settings.minutes, "minutes", settings.minutes, need)

    def _label_isolated(self):
        """Label isolated atoms, the references of energies."""
        kept, atoms, _ = self._kept["atoms"], [], self.has_stress  # of a teacher that fails at all
        kept.frames.clear()
        try:
            for z in sorted({int(z) for cell in self.cells for z in cell.numbers}):
                atom = ase.Atoms([z], [(0.0, 0.0, 0.0)], info={"config_type": "IsolatedAtom"})
                atoms.append(labelled(atom, self.teacher))
            [*map(kept.add, atoms)]
            kept.flush()
        except Exception as error:  # of any calculator
            say(f"reference energies are fitted: no isolated atom of the teacher ({error})")

    def _seconds(self) -> dict[str, float]:
        """Return what has been spent, and what a label and its part of all dynamics take."""
        settings, cell = self.settings, self.cells[0]
        student = (self.work / "student.txt").read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            fast = eqfuse.Calculator(untrained(student, cell, Path(folder)))
            slow, fast = seconds([self.teacher, fast], cell)
        steps = round(sampling.APART / sampling.timestep_of(cell))
        calls = (2, 3 * steps) if settings.driver == "student" else (1.5 * steps + 2, 2 * steps)
        label = calls[0] * slow + calls[1] * fast
        return {"label": label, "beginning": 60 * self.minutes}

    def _rounds(self) -> dict:
        """Do all rounds, and train the last student; return its errors."""
        while (reason := self._reason_to_stop()) is None:
            rows = self.rows("rounds")
            number = len(rows)
            self._sample("labels", number)
            begun = self.minutes
            run = self._trained(f"round-{number}", number, self.settings.minutes / _PART)
            row = {"round": number, "trained_on": len(self.trained_on(number))}
            row["training_minutes"] = round(self.minutes - begun, 3)
            [*_, last] = read_table(self.folder / "metrics.csv", ["elapsed_s"])
            row["steps_minutes"] = float(last["elapsed_s"]) / 60
            self._sample("new", number)
            row |= self._measured("own", number, run) | {"minutes": round(self.minutes, 3)}
            write_table(self.work / "rounds.csv", [*rows, row], signed=True)
        row, number = self.rows("rounds")[-1], len(self.rows("rounds"))
        left = self.settings.minutes - float(row["minutes"]) - float(row["training_minutes"])
        times = 1 + max(left, 0) / max(float(row["steps_minutes"]), 1e-3)  # it compiles once, too
        times = min(times, _MOST[bool(self.missed(row))])
        most = max(left, self.settings.minutes / _PART)
        say(f"rounds end: {reason}; the last training has {times:.3g} times the steps of a round")
        return self._measured("last", number, self._trained(f"last-{number}", number, most, times))

    def _trained(self, name: str, number: int, minutes: float, times: float = 1.0) -> Path:
        """Train, from the student of the round before; copy the run into the folder."""
        folder, frames, settings = self.work / name, self.trained_on(number), self.settings
        folder.mkdir(exist_ok=True)
        if len(frames) < FEWEST:
            raise TrainingFailed(
                f"there are {len(frames)} labels, and a student needs {FEWEST}: see {self.work}, "
                "failed.traj of a teacher that failed, and trajectories.csv, why they stopped"
            )
        student = (self.work / "student.txt").read_text(encoding="utf-8")
        start = self.work / f"round-{number - 1}" / "run" if number else None
        given = frames, self.frames("atoms"), student, round(times * settings.training_steps)
        run = train(folder, *given, minutes, seed=settings.seed, start=start)
        return shutil.copytree(run, self.folder, dirs_exist_ok=True)

    def _measured(self, name: str, number: int, run: Path) -> dict:
        """Run trajectories of a student; say its errors on them and on new ones (last: all)."""
        stopped = self._sample(name, number, run)
        row = {"labels": sum(len(self.frames(kind)) for kind in KINDS), "stopped": len(stopped)}
        text = f"{row['labels']} labels"
        sides = {"new": self.frames("new", None if name == "last" else number)}
        for side, frames in (sides | {"own": self.frames(name, number)}).items():
            found = errors_of(frames, predict(run, frames)) if frames else {}
            row |= {f"{side}_{unit}": found.get(unit) for unit in (FORCES, ENERGY, SPREAD)}
            if frames:
                text += f"  {side} {len(frames)}: F {found[FORCES]:.1f} meV/Å E {found[ENERGY]:.2f}"
                text += f" meV/atom spread {found[SPREAD]:.1f} meV/Å"
        text += f"  student stopped {len(stopped)} times ({stopped[0]})" if stopped else ""
        say(f"{'last' if name == 'last' else 'round'} {number:<3} {text}  {self.minutes:.1f} min")
        return row

    def missed(self, row: dict) -> list[str]:
        """Return the aims that the errors of a student miss, of a row of `rounds.csv`, in words."""
        aims = (FORCES, "meV/Å", self.settings.forces), (ENERGY, "meV/atom", self.settings.energy)
        found = [
            f"{value:.4g} {unit} on {text}, and the aim is {aim:g}"
            for key, unit, aim in aims
            for name, text in (("own", "the student's trajectories"), ("new", "new trajectories"))
            if not (value := float(row[f"{name}_{key}"] or 0.0)) <= aim  # "" of no frames
        ]
        if row[f"own_{FORCES}"] in (None, ""):
            found.append("the student's trajectories have no frame")
        if int(row["stopped"]):
            found.append(f"{row['stopped']} trajectories of the student stopped at a limit")
        return found

    def _reason_to_stop(self) -> str | None:
        """Return why no other round begins, by the last one."""
        settings, rows = self.settings, self.rows("rounds")
        minutes = [0.0, *(float(row["minutes"]) for row in rows)]
        frames = itertools.chain.from_iterable(map(self.frames, KINDS))
        # not those of a round, or of a last student, that was interrupted
        spent, reason = sum(a.info["round"] < len(rows) for a in frames), None
        if rows and not self.missed(rows[-1]):
            reason = "the errors are below their aims, and no trajectory of the student stopped"
        elif rows and spent + FEWEST + 3 * settings.new > settings.labels:
            reason = f"{spent} of labels={settings.labels} are used"
        elif rows and 2 * minutes[-1] - minutes[-2] > settings.minutes / 2:
            reason = f"another one would go beyond half of minutes={settings.minutes:g}"
        return reason

    def _sample(self, name: str, number: int, student: Path | None = None) -> list[str]:
        """Keep the frames of a kind and a round; return why trajectories stopped."""
        settings, count = self.settings, self.settings.trajectories
        if settings.driver == "student" and student is None:  # the teacher is too slow
            student = self.work / f"round-{number - 1}" / "run"
            count = count if name == "labels" and number else 0
        known = {(r["kind"], r["round"], r["trajectory"]): r for r in self.rows("trajectories")}
        done = [known.get((name, str(number), str(k))) for k in range(count)]
        for k, row in enumerate(done):  # frames may have been lost
            there = [p for p in self._places if p.startswith(f"{name}-{number}-{k}-")]
            if row and sum(not p.endswith("stopped") for p in there) < int(row["frames"]):
                done[k] = None
        rows = [r or self._trajectory(name, number, k, student) for k, r in enumerate(done)]
        if name != "labels":
            return [row["stopped"] for row in rows if row["stopped"]]
        rng = np.random.default_rng([settings.seed, number])
        labels = [a for a in self.frames("labels") if a.info["round"] <= number]
        least = closeness(sampling.of_dynamics(labels)) or None
        for k in range(self.batch // RATTLED if count else self.batch):
            frame = sampling.strained(self.cells[k % len(self.cells)], rng, least)
            self._keep(name, number, f"strained-{k}", frame)
        made = sampling.at_minimum(self.starts[0], settings.atoms, self.teacher, rng)
        try:
            for k, frame in zip(range(self.curved(number)), made, strict=False):
                self._keep(name, number, f"minimum-{k}", frame)
        except Exception as error:  # of any calculator
            warn(f"the teacher fails as the start relaxes: no labels of its minimum ({error})")
        self._kept[name].flush()
        return []

    def _trajectory(self, name: str, number: int, k: int, student: Path | None) -> dict:
        """Keep the frames of a trajectory that teacher or student drives; return its row."""
        which, at = sampling.conditions(self, name, number, k)
        rng = np.random.default_rng([self.settings.seed, number, k, KINDS.index(name)])
        known = number if name == "labels" else number + 1  # some of this round may be there
        labels = [a for a in self.frames("labels") if a.info["round"] < known]
        past = [a for a in labels if (a.info.get("cell"), a.info.get("trajectory")) == (which, k)]
        if name == "own":  # where it was stopped, before an interruption
            past = [a for a in past if a.info["place"] != f"labels-{number}-{k}-stopped"]
        start = sampling.continued(self.cells[which], past[-1]) if past else self.cells[which]
        start = sampling.rattled(start, rng, STRAIN if name == "labels" else 0.0, RATTLE)
        calculator, limits, count, stopped = self.teacher, Limits(), 0, ""
        if student is not None:
            calculator = eqfuse.Calculator(student)
            limits = Limits.of(labels, calculator.network)
        for frame, stopped, failed in sampling.trajectory(start, calculator, at, rng, limits):
            if not stopped:
                frame.info |= {"cell": which, "trajectory": k}
                self._keep(name, number, f"{k}-{count}", frame.copy() if student else frame)
                count += 1
            elif failed and student is None:
                self._keep(name, number, f"{k}-{count}", frame, stopped)
            elif not failed and name == "own":  # to be trained on
                frame.info |= {"config_type": "stopped", "cell": which, "trajectory": k}
                self._keep("labels", number, f"{k}-stopped", frame)
        row = {"kind": name, "round": number, "trajectory": k, "cell": which, "frames": count}
        row |= {"temperature_k": at.temperature, "pressure_gpa": at.pressure, "stopped": stopped}
        for kept in self._kept.values():
            kept.flush()
        write_table(self.work / "trajectories.csv", [*self.rows("trajectories"), row], signed=True)
        return row

    def _keep(self, name: str, number: int, place: str, frame: ase.Atoms, error: str | None = None):
        """Keep a frame with labels of the teacher, or report an error of it; unless it is kept."""
        place = f"{name}-{number}-{place}"
        if place in self._places:
            return
        self._places.add(place)
        frame.info |= {"place": place, "round": number}
        if name in ("own", "last"):
            frame.info["config_type"] = "own"
        if error is None and not frame.calc:
            try:
                frame = labelled(frame, self.teacher)
            except Exception as failure:  # of any calculator
                error = f"{type(failure).__name__}: {failure}".splitlines()[0]
        if error is not None:
            frame.info["error"] = error
            warn(f"the teacher fails, {place} in {self.work / 'failed.traj'}: {error}")
        self._kept[name if error is None else "failed"].add(frame)
