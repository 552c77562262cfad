"""Training that is killed again and again, a third of the times within a write, and resumed.

No step is lost that a checkpoint was written of, nothing but plain lines is printed, and the run
ends bit for bit as one that nothing interrupted.
"""

import dataclasses
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fuzz import killed_program, samples
from tests.fuzz.checks import FailureError
from tests.fuzz.killed_program import ACKNOWLEDGED
from tests.fuzz.table import FAILURE, Row
from tests.train.run.test_resume import assert_same

KIND = "kills"
EPOCHS = 10
KILLS = 6
"""How often one run is killed, at most; it may end before."""

SECONDS = 300
_TRAINS = "validation errors:"
_EPOCH_LINE = re.compile(r" +(\d+) +[\d.e+-]+ +[\d.]+ ")
_RESUMED = re.compile(r"resume     epoch (\d+), batch (\d+) of the epoch")

# They have imported what they need when they begin, which is half of what they do.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([killed_program.__name__])


@dataclasses.dataclass(frozen=True)
class Kill:
    """When a process is killed.

    Attributes:
      what: the same in words.
      plan: for `killed_program`.
      checkpoints: how many there are when the clock starts; None for the start of the process.
      seconds: on that clock; None where the plan does it.
    """

    what: str
    plan: str = "none"
    checkpoints: int | None = None
    seconds: float | None = None


class Kills:
    """Kill training runs; `case` makes all cases of one seed.

    Args:
      folder: to work in.
    """

    def __init__(self, folder: Path):
        self._settings = samples.settings(samples.water(folder), f"epochs={EPOCHS}")
        self._folder, self._whole = folder / "killed", folder / "killed-whole"
        if not (self._whole / "parity.png").exists():
            shutil.rmtree(self._whole, ignore_errors=True)
            process = _Process([*self._settings, f"run={self._whole}"], Kill("nothing"))
            if process.code != 0:
                raise RuntimeError(f"the run that nothing interrupts failed: {process.text}")

    def case(self, seed: int) -> Iterator[Row]:
        """Give a row for each kill, and one for the end of the run."""
        rng = np.random.default_rng(seed)
        shutil.rmtree(self._folder, ignore_errors=True)
        acknowledged, row = 0, None
        for kill in [*(self._kill(rng, k) for k in range(KILLS)), Kill("nothing")]:
            start = time.monotonic()
            failure, process = None, self._process(kill)
            try:
                process.check(acknowledged)
            except FailureError as error:
                failure = str(error)
            acknowledged = max(acknowledged, process.acknowledged)
            # What a process finds is of the kill before it.
            if row is not None:
                yield (
                    row
                    if failure is None
                    else dataclasses.replace(row, outcome=FAILURE, detail=failure)
                )
            if failure is not None or not process.killed:
                break
            seconds = time.monotonic() - start
            detail = f"step {acknowledged} was acknowledged"
            row = Row(KIND, seed, kill.what, "went on", detail, seconds)
        yield self._end(seed, failure)
        if failure is not None:
            shutil.copytree(self._folder, self._folder.with_name(f"killed-{seed}"))

    def _process(self, kill: Kill):
        settings = [*self._settings, f"run={self._folder}"]
        if (self._folder / "config.yaml").exists():
            settings = [f"resume={self._folder}"]
        else:  # killed before there was anything to go on with
            shutil.rmtree(self._folder, ignore_errors=True)
        return _Process(settings, kill)

    def _end(self, seed: int, failure: str | None) -> Row:
        what = "the end of the run"
        if failure is None:
            try:
                assert_same(self._whole, self._folder)
            except Exception as error:
                failure = f"it differs from the run that nothing interrupted: {error}"[:500]
        if failure is not None:
            return Row("ends", seed, what, FAILURE, failure)
        return Row("ends", seed, what, "the same bit for bit")

    def _kill(self, rng: np.random.Generator, number: int) -> Kill:
        """Return the next kill: at any moment, in training, or, each third time, at a write."""
        if number % 3 == 1:
            return _kill_within_write(rng, self._folder)
        if number % 3 == 2 and rng.random() < 0.5:
            seconds = rng.uniform(0.0, 12.0)
            return Kill(f"{seconds:.2f} s after the start", seconds=seconds)
        seconds = rng.uniform(0.0, 1.0)
        return Kill(f"{seconds:.3f} s after two checkpoints", checkpoints=2, seconds=seconds)


def _kill_within_write(rng: np.random.Generator, folder: Path) -> Kill:
    if rng.random() < 0.5:
        count = int(rng.integers(1, 150))
        return Kill(f"within a write, at change {count} of a file", f"operation:{count}:{folder}")
    offers, size = int(rng.integers(1, 6)), int(np.exp(rng.uniform(np.log(30), np.log(20_000))))
    what = f"within a write, byte {size} of a file after checkpoint {offers}"
    return Kill(what, f"size:{offers}:{size}")


class _Process:
    """A training that ran and was killed as requested.

    Attributes:
      code: its exit code.
      text: what it printed.
      acknowledged: the last step that it reported as kept, by a checkpoint or the line of an
        epoch.
    """

    def __init__(self, settings: list[str], kill: Kill):
        ours, theirs = _PROCESSES.Pipe(duplex=False)
        process = _PROCESSES.Process(
            target=killed_program.train, args=(kill.plan, settings, theirs)
        )
        process.start()
        theirs.close()
        timers = [threading.Timer(SECONDS, process.kill)]
        if kill.seconds is not None:
            timers.append(threading.Timer(kill.seconds, process.kill))
        started, lines, checkpoints = time.monotonic(), [], 0
        timers[0].start()
        if kill.checkpoints is None and len(timers) == 2:
            timers[1].start()
        with open(os.dup(ours.fileno()), encoding="utf-8", errors="backslashreplace") as output:
            for line in output:
                lines.append(line)
                checkpoints += line.startswith(ACKNOWLEDGED)
                if kill.checkpoints is not None and checkpoints == kill.checkpoints:
                    kill = dataclasses.replace(kill, checkpoints=None)
                    timers[1].start()
        ours.close()
        process.join()
        self.code = process.exitcode
        for timer in timers:
            timer.cancel()
        self._late = time.monotonic() - started >= SECONDS
        self.text = "".join(lines)
        whole = [line for line in lines if line.endswith("\n")]  # not what the kill cut off
        self.acknowledged = max(map(_acknowledged, whole), default=0)

    @property
    def killed(self) -> bool:
        return self.code in (-signal.SIGKILL, -signal.SIGXFSZ)

    def check(self, acknowledged: int):
        """Refuse an end that is neither that by the kill nor a good one, and steps that were lost.

        Args:
          acknowledged: the last step that the processes before reported as kept.
        Raises:
          FailureError: what is wrong.
        """
        if self._late:
            raise FailureError(f"it did not end within {SECONDS} s")
        if "Traceback" in self.text or not (self.killed or self.code == 0):
            raise FailureError(f"exit code {self.code}: {self.text.strip()[-300:]}")
        begun = _TRAINS in self.text
        if begun and (found := self._resumed_step()) < acknowledged:
            raise FailureError(f"step {acknowledged} was acknowledged, and it resumed at {found}")

    def _resumed_step(self) -> int:
        found = _RESUMED.search(self.text)
        return samples.STEPS_PER_EPOCH * (int(found[1]) - 1) + int(found[2]) if found else 0


def _acknowledged(line: str) -> int:
    if line.startswith(ACKNOWLEDGED):
        return int(line.removeprefix(ACKNOWLEDGED))
    epoch = _EPOCH_LINE.match(line)
    return samples.STEPS_PER_EPOCH * int(epoch[1]) if epoch else 0
