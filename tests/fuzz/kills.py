"""Training that is killed again and again, a third of the times within a write, and resumed.

No step is lost that a checkpoint was written of, nothing but plain lines is printed, and the run
ends bit for bit as one that nothing interrupted.
"""

import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eqfuse.train.main import main
from eqfuse.train.molecule import Checkpoints
from tests.fuzz.checks import STEPS_PER_EPOCH, FailureError, small_run
from tests.train.run.test_resume import assert_same

EPOCHS = 10
KILLS = 6
"""How often one run is killed, at most; it may end before."""
SECONDS = 300
"""Limit of one process."""

_ACKNOWLEDGED = "acknowledged step"
_EPOCH_LINE = re.compile(r" +(\d+) +[\d.e+-]+ +[\d.]+ ")
_RESUMED = re.compile(r"resume     epoch (\d+), batch (\d+) of the epoch")
_FILE_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink"}

# JAX warns of a fork after it has started threads; the server has not started them.
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
# Processes have imported what they need when they begin, which is half of what they do.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


class Kill(NamedTuple):
    """When a process is killed.

    Attributes:
      what: the same in words.
      checkpoints: how many there are when the clock starts; None for the start of the process.
      seconds: on that clock; None for no clock.
      operation: number of the file that is opened to be written, made, renamed or removed in the
        run's folder, before which it is killed.
      size: (checkpoints, bytes): killed by the system, after so many checkpoints, within the first
        write that makes a file longer than this.
    """

    what: str
    checkpoints: int | None = None
    seconds: float | None = None
    operation: int | None = None
    size: tuple[int, int] | None = None


def _next_kill(rng: np.random.Generator, number: int) -> Kill:
    """Return the next kill: at any moment, in training, or, each third time, at a write."""
    if number % 3 == 1 and rng.random() < 0.5:
        count = int(rng.integers(1, 150))
        return Kill(f"within a write, at change {count} of a file", operation=count)
    if number % 3 == 1:
        offers, size = int(rng.integers(1, 6)), int(np.exp(rng.uniform(np.log(30), np.log(20_000))))
        return Kill(f"at byte {size} of a file after checkpoint {offers}", size=(offers, size))
    if number % 3 == 2 and rng.random() < 0.5:
        seconds = rng.uniform(0.0, 12.0)
        return Kill(f"{seconds:.2f} s after the start", seconds=seconds)
    seconds = rng.uniform(0.0, 1.0)
    return Kill(f"{seconds:.3f} s after two checkpoints", checkpoints=2, seconds=seconds)


class Cases:
    """Runs that are killed; see `__main__`.

    Args:
      folder: to work in.
    """

    seconds = (KILLS + 1) * SECONDS

    def __init__(self, folder: Path):
        self._settings = small_run(folder, f"epochs={EPOCHS}")
        self._folder, self._whole = folder / "killed", folder / "killed-whole"
        if not (self._whole / "parity.png").exists():
            shutil.rmtree(self._whole, ignore_errors=True)
            process = _Process([*self._settings, f"run={self._whole}"], Kill("nothing"), folder)
            if process.code != 0:
                raise RuntimeError(f"the run that nothing interrupts failed: {process.text}")

    def prepare(self, seed: int):
        """Choose when the run is killed."""
        rng = np.random.default_rng(seed)
        kills = [*(_next_kill(rng, k) for k in range(KILLS)), Kill("nothing")]
        return f"up to {KILLS} kills", lambda: self._case(kills)

    def _case(self, kills) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        acknowledged, done = 0, []
        for kill in kills:
            settings = [*self._settings, f"run={self._folder}"]
            if (self._folder / "config.yaml").exists():
                settings = [f"resume={self._folder}"]
            else:  # killed before there was anything to go on with
                shutil.rmtree(self._folder, ignore_errors=True)
            process = _Process(settings, kill, self._folder)
            try:
                process.check(acknowledged)
            except FailureError as error:
                raise FailureError(f"{error}; kills before: {', '.join(done)}") from error
            acknowledged = max(acknowledged, process.acknowledged)
            if not process.killed:
                break
            done.append(kill.what)
        try:
            assert_same(self._whole, self._folder)
        except Exception as error:
            raise FailureError(f"not as uninterrupted after {', '.join(done)}: {error}") from error
        return f"the same bit for bit after {len(done)} kills"


class _Process:
    """A training that ran and was killed as requested.

    Attributes:
      code: its exit code.
      text: what it printed.
      acknowledged: the last step that it reported as kept, by a checkpoint or the line of an
        epoch.
    """

    def __init__(self, settings: list[str], kill: Kill, folder: Path):
        ours, theirs = _PROCESSES.Pipe(duplex=False)
        process = _PROCESSES.Process(target=_train, args=(kill, str(folder), settings, theirs))
        process.start()
        theirs.close()
        lines, self._late = [], False
        clock = None if kill.seconds is None else threading.Timer(kill.seconds, process.kill)
        limit = threading.Timer(SECONDS, lambda: self._end(process))
        limit.start()
        left = kill.checkpoints or 0
        with open(os.dup(ours.fileno()), encoding="utf-8", errors="backslashreplace") as output:
            if clock is not None and left == 0:
                clock.start()
            for line in output:
                lines.append(line)
                if line.startswith(_ACKNOWLEDGED):
                    left -= 1
                    if clock is not None and left == 0:
                        clock.start()
        ours.close()
        process.join()
        for timer in filter(None, (clock, limit)):
            timer.cancel()
        self.code, self.text = process.exitcode, "".join(lines)
        whole = [line for line in lines if line.endswith("\n")]  # not what the kill cut off
        self.acknowledged = max(map(_acknowledged, whole), default=0)

    def _end(self, process):
        self._late = True
        process.kill()

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
        if "validation errors:" in self.text:  # it trains
            found = _RESUMED.search(self.text)
            at = STEPS_PER_EPOCH * (int(found[1]) - 1) + int(found[2]) if found else 0
            if at < acknowledged:
                raise FailureError(f"step {acknowledged} was acknowledged, and it resumed at {at}")


def _acknowledged(line: str) -> int:
    if line.startswith(_ACKNOWLEDGED):
        return int(line.removeprefix(_ACKNOWLEDGED))
    epoch = _EPOCH_LINE.match(line)
    return STEPS_PER_EPOCH * int(epoch[1]) if epoch else 0


def _train(kill: Kill, folder: str, arguments: list[str], output):
    """Train in a process of its own, print what is acknowledged, and be killed within a write."""
    os.dup2(output.fileno(), 1)  # pipes have no limit of the size of files
    os.dup2(output.fileno(), 2)
    output.close()
    operations, offers = 0, 0

    def changed(event, arguments):
        nonlocal operations
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if (event in _FILE_CHANGES or writes) and str(arguments[0]).startswith(folder):
            operations += 1
            if operations == kill.operation:
                os.kill(os.getpid(), signal.SIGKILL)

    if kill.operation is not None:
        sys.addaudithook(changed)
    offer = Checkpoints.offer

    def offered(self, name, step, *arguments, **more):
        nonlocal offers
        offer(self, name, step, *arguments, **more)
        if name != "last":
            return
        print(_ACKNOWLEDGED, step, flush=True)
        offers += 1
        if kill.size is not None and offers == kill.size[0]:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (kill.size[1], kill.size[1]))

    Checkpoints.offer = offered
    sys.exit(main(arguments))
