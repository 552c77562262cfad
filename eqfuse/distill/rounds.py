"""Rounds of dynamics, labels and training, until errors or a budget end them.

A round takes labels from dynamics of the teacher, which has computed them already, and from
strained and rattled cells; trains the student; and measures its errors on new trajectories of the
teacher, which are never trained on, and on its own, which the teacher labels and later rounds train
on. The last student has trajectories of its own that nothing is trained on.

All that a round decides follows from files of its folder, so that an interrupted distillation goes
on to the same labels: frames are kept as they come, and each trajectory and round that is done has
a row (`trajectories.csv`, `rounds.csv`).
"""

import csv
import functools
import shutil
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
    of_dynamics,
    rattled,
    trajectory,
)
from eqfuse.distill.student import errors_of, fast_enough, train
from eqfuse.distill.teacher import labelled, open_teacher
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict
from eqfuse.runs.errors import Interrupted, TrainingFailed
from eqfuse.runs.files import whole, write_table, write_whole
from eqfuse.runs.log import Log, say, warn

KINDS = ("labels", "new", "own", "last")
"""The frames of a round: to train on, of new trajectories of the teacher, of the student's, and of
the last student's. Each kind has a file."""
UNITS = ("forces_mev_per_a", "energy_mev_per_atom", "spread_mev_per_a")
_MOST = 20  # times the steps of a round, of the last training
_FEWEST = 12  # labels, of which four validate
_LEAST = 0.01  # Å, of random moves
_TIMED = 256  # atoms of a crystal whose steps are timed


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
        self._places = {a.info["place"] for n in (*KINDS, "failed") for a in self.frames(n)}
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
        path = self.work / f"{name}.traj"
        frames = ase.io.read(path, ":") if path.exists() else []
        return [atoms for atoms in frames if number in (None, atoms.info.get("round"))]

    def trained_on(self, number: int) -> list[ase.Atoms]:
        """Return the frames that a round trains on; those of earlier rounds come first."""
        frames = self.frames("labels") + [a for a in self.frames("own") if a.info["round"] < number]
        return sorted(frames, key=lambda atoms: atoms.info["round"])

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

    def _rounds(self) -> dict:
        """Do all rounds, and train the last student; return its errors."""
        self._isolated_atoms()
        chosen = self._student_settings()
        while (reason := self._reason_to_stop()) is None:
            self._round(len(self.rows("rounds")), chosen)
        rows = self.rows("rounds")
        left = self.settings.minutes - float(rows[-1]["minutes"])
        times = min(max(left / max(float(rows[-1]["training_minutes"]), 1e-3), 1.0), _MOST)
        say(f"rounds end: {reason}; the last training has {times:.3g} times the steps of a round")
        self._trained(f"last-{len(rows)}", len(rows), chosen, times)
        return self._measured("last", len(rows), self.folder)

    def _trained(self, name: str, number: int, chosen: str, times: float = 1.0):
        """Train, from the student of the round before, and make the folder that run."""
        folder, frames = self.work / name, self.trained_on(number)
        folder.mkdir(exist_ok=True)
        if len(frames) < _FEWEST:
            raise TrainingFailed(
                f"there are {len(frames)} labels, and a student needs {_FEWEST}: the teacher "
                f"failed, see failed.traj in {self.work}, or trajectories stopped, see "
                "trajectories.csv there"
            )
        settings, start = self.settings, self.work / f"round-{number - 1}" / "run"
        given = folder, frames, self.frames("atoms"), chosen, round(times * settings.training_steps)
        run = train(*given, seed=settings.seed, start=start if number else None)
        shutil.copytree(run, self.folder, dirs_exist_ok=True)

    def _round(self, number: int, chosen: str):
        """Take labels, train, and measure the errors."""
        began = self.minutes
        self._sample("labels", number)
        begun = self.minutes
        self._trained(f"round-{number}", number, chosen)
        trained = self.minutes - begun
        self._sample("new", number)
        row = {"round": number, "trained_on": len(self.trained_on(number))}
        row |= self._measured("own", number, self.work / f"round-{number}" / "run")
        row |= {"training_minutes": round(trained, 3), "minutes": round(self.minutes, 3)}
        row |= {"round_minutes": round(self.minutes - began, 3)}
        write_table(self.work / "rounds.csv", [*self.rows("rounds"), row])

    def _measured(self, name: str, number: int, run: Path) -> dict:
        """Run trajectories of a student; return its errors on them and on new ones, and say them.

        The new trajectories are those of its round; of the last student, those of all rounds.
        """
        self._sample(name, number, run)
        row = {"labels": sum(len(self.frames(kind)) for kind in KINDS)}
        stopped = [r["stopped"] for r in self._done(name, number) if r["stopped"]]
        row["stopped"], text = len(stopped), f"{row['labels']} labels"
        sides = {"new": self.frames("new", None if name == "last" else number)}
        sides["own"] = self.frames(name, number)
        for side, frames in sides.items():
            found = errors_of(frames, predict(run, frames)) if frames else {}
            row |= {f"{side}_{unit}": found.get(unit) for unit in UNITS}
            if frames:
                force, energy, spread = (found[unit] for unit in UNITS)
                text += f"  {side} {len(frames)}: F {force:.1f} meV/Å E {energy:.2f} meV/atom "
                text += f"spread {spread:.1f} meV/Å"
        text += f"  student stopped {len(stopped)} times ({stopped[0]})" if stopped else ""
        say(f"{'last' if name == 'last' else 'round'} {number:<3} {text}  {self.minutes:.1f} min")
        return row

    def missed(self, row: dict) -> list[str]:
        """Return the aims that the errors of a student miss, of a row of `rounds.csv`, in words."""
        aims = {"forces_mev_per_a": "meV/Å", "energy_mev_per_atom": "meV/atom"}
        found, of = [], {"new": "new trajectories", "own": "the student's own trajectories"}
        for (unit, shown), aim in zip(
            aims.items(), (self.settings.forces, self.settings.energy), strict=True
        ):
            for name, text in reversed(of.items()):
                value = row[f"{name}_{unit}"]
                if value not in (None, "") and not float(value) <= aim:
                    found.append(f"{float(value):.4g} {shown} on {text}, and the aim is {aim:g}")
        if row["own_forces_mev_per_a"] in (None, ""):
            found.append("the student's own trajectories have no frame")
        if int(row["stopped"]):
            found.append(f"{row['stopped']} trajectories of the student stopped at a limit")
        return found

    def _reason_to_stop(self) -> str | None:
        """Return why no other round begins, by the last one."""
        settings, rows = self.settings, self.rows("rounds")
        if not rows:
            return None
        if not self.missed(rows[-1]):
            return "the errors are below their aims, and no trajectory of the student stopped"
        spent = sum(len(self.frames(name)) for name in KINDS)
        if spent + settings.batch + 3 * settings.new > settings.labels:
            return f"{spent} of labels={settings.labels} are used"
        minutes, last = (float(rows[-1][name]) for name in ("minutes", "round_minutes"))
        if minutes + last > settings.minutes / 2:
            return f"another one would go beyond half of minutes={settings.minutes:g}"
        return None

    def _done(self, name: str, number: int) -> list[dict]:
        """Return the rows of the trajectories of a kind and a round."""
        of = name, str(number)
        return [r for r in self.rows("trajectories") if (r["kind"], r["round"]) == of]

    def _sample(self, name: str, number: int, student: Path | None = None):
        """Keep the frames of a kind and a round: of trajectories and, of labels, rattled cells."""
        settings, count = self.settings, self.settings.trajectories
        if settings.driver == "student" and student is None:  # the teacher is too slow
            student = self.work / f"round-{number - 1}" / "run"
            count = count if name == "labels" and number else 0
        done = {r["trajectory"] for r in self._done(name, number)}
        for k in range(count):
            if str(k) not in done:
                self._trajectory(name, number, k, student)
        if name != "labels":
            return
        rng, lost = np.random.default_rng([settings.seed, number]), Limits().closeness
        near = min(map(closeness, of_dynamics(self.frames("labels"))), default=lost)
        for k in range(-(-settings.batch // RATTLED)):
            cell, size = self.cells[k % len(self.cells)], settings.rattle * rng.uniform(0.5, 4)
            made = rattled(cell, rng, settings.strain, size)
            while closeness(made) < near and size > _LEAST:  # a stiff bond has enormous forces
                size /= 2
                made = rattled(cell, rng, settings.strain, size)
            made.info["config_type"] = "strained"
            if closeness(made) >= lost:
                self._keep(name, number, f"strained-{k}", made)

    def _trajectory(self, name: str, number: int, k: int, student: Path | None):
        """Keep the frames of a trajectory that the teacher, or a student, drives."""
        settings, (which, at) = self.settings, conditions(self, name, number, k)
        rng = np.random.default_rng([settings.seed, number, k, KINDS.index(name)])
        start, labels = self.cells[which].copy(), self.frames("labels")
        if name == "labels":  # not by those of this round, some of which may be there
            labels = [a for a in labels if a.info["round"] < number]
        past = [a for a in labels if (a.info.get("cell"), a.info.get("trajectory")) == (which, k)]
        if past:  # a liquid stays one; the shape, not the volume, is that of the start
            shape, volume = start.cell.array.copy(), start.cell.volume
            start.set_positions(past[-1].positions)
            start.cell = past[-1].cell
            if is_dense(start):
                shape *= (start.cell.volume / volume) ** (1 / 3)
            start.set_cell(shape, scale_atoms=start.cell.rank == 3)
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
            self._keep(name, number, f"{k}-{count}", stop.frame, stop.why)
        elif stop is not None and not stop.failed and name == "own":  # to be trained on
            stop.frame.info["config_type"] = "stopped"
            self._keep("labels", number, f"{k}-stopped", stop.frame)
        row = {"kind": name, "round": number, "trajectory": k, "cell": which}
        row |= {"temperature_k": at.temperature, "pressure_gpa": at.pressure, "frames": count}
        row |= {"steps": count * at.every, "stopped": "" if stop is None else stop.why}
        write_table(self.work / "trajectories.csv", [*self.rows("trajectories"), row])

    def _keep(self, name: str, number: int, place: str, frame: ase.Atoms, error: str | None = None):
        """Keep a frame, which the teacher labels if it did not drive, unless it is kept already.

        One at which the teacher fails is reported, and kept in failed.traj.
        """
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
        path = self.work / f"{name if error is None else 'failed'}.traj"
        if error is not None:
            frame.info["error"] = error
            warn(f"the teacher fails, {place} in {path}: {error}")
        keep(path, frame)

    def _isolated_atoms(self):
        """Label isolated atoms, the references; none if the teacher cannot compute one."""
        path, atoms = self.work / "atoms.traj", []
        if path.exists():
            return
        try:
            for z in sorted({int(z) for cell in self.cells for z in cell.numbers}):
                atom = ase.Atoms([z], [(0.0, 0.0, 0.0)], info={"config_type": "IsolatedAtom"})
                atoms.append(labelled(atom, self.teacher))
        except Exception as error:  # of any calculator
            say(f"reference energies are fitted: no isolated atom of the teacher ({error})")
            atoms = []
        with whole(path, path.with_name(".atoms.part.traj")) as part:
            ase.io.write(part, atoms, format="traj")

    def _student_settings(self) -> str:
        """Return the settings of the student, which are given or chosen by its speed, once."""
        path = self.work / "student.txt"
        if not path.exists():
            of_speed = self.settings.speed, self.teacher, self.timed
            write_whole(path, (self.settings.student or fast_enough(*of_speed)) + "\n")
        return path.read_text(encoding="utf-8").strip()
