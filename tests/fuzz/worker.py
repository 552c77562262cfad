"""A process in which cases are made, since some would stop or fill the one that they are in.

It reads a seed from each line of its standard input, and answers with a line of JSON.
"""

import importlib
import json
import os
import re
import resource
import select
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.checks import FailureError
from tests.fuzz.table import FAILURE, Row

ROOT = Path(__file__).parents[2]
SETUP_SECONDS = 300
DOING = "doing.txt"
"""The file in which a worker says what it does."""


class Worker:
    """The process of one kind of case, started anew after an case that ended it.

    Args:
      kind: a module with a class `Cases`, made with a folder. Its `prepare` takes
        a seed and returns what will be done, in words, and a function that does it, which returns
        outcome and detail or raises FailureError. Its `seconds` is the time limit of one case, and
        `megabytes` the memory that the cases may take, or None.
      folder: to work in; what takes long to make is kept there.
      package: that the module is in, with a point.
    """

    def __init__(self, kind: str, folder: Path, package: str = "tests.fuzz."):
        self._kind, self._folder, self._module = kind, folder, package + kind
        self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop()

    def case(self, seed: int) -> Row:
        """Return the row of the case with this seed."""
        if self._process is None:
            self._start()
        start = time.monotonic()
        os.write(self._process.stdin.fileno(), f"{seed}\n".encode())
        answer = self._answer(self._seconds)
        seconds = time.monotonic() - start
        if answer is not None:
            if answer["outcome"] == FAILURE:
                self._stop()  # it may have left anything behind
            return Row(self._kind, seed, **answer, seconds=seconds)
        code = self._process.poll()
        self._stop()
        what = (self._folder / DOING).read_text(encoding="utf-8")
        detail = f"not done after {self._seconds} s" if code is None else f"process ended: {code}"
        return Row(self._kind, seed, what, FAILURE, detail, seconds)

    def _start(self):
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        shown = ["-W", "ignore", "-W", "always::UserWarning", "-W", "always::RuntimeWarning"]
        self._process = subprocess.Popen(
            [sys.executable, *shown, "-m", "tests.fuzz.worker", self._module, str(self._folder)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        ready = self._answer(SETUP_SECONDS)
        if ready is None:
            self._stop()
            raise RuntimeError(f"the worker for {self._kind} did not start")
        self._seconds = ready["seconds"]

    def _answer(self, seconds: float) -> dict | None:
        """Return the next line of JSON; None if it did not come, or the process ended."""
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            if readable:
                self._process.wait()
            return None
        return json.loads(line)

    def _stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
        self._process = None


def limit_memory(megabytes: int):
    """Let this process take so much more memory than it has now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    now = 1024 * int(re.search(r"VmSize:\s+(\d+) kB", status)[1])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (now + megabytes * 2**20, hard))


def main(module: str, folder: Path):
    """Answer seeds until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # answers are all that goes there
    here = folder / "here"
    here.mkdir(exist_ok=True)
    os.chdir(here)  # what has no folder is written there
    cases = importlib.import_module(module).Cases(folder)
    if cases.megabytes is not None:
        limit_memory(cases.megabytes)
    print(json.dumps({"seconds": cases.seconds}), file=answers, flush=True)
    doing = folder / DOING
    for line in sys.stdin:
        what, case = cases.prepare(int(line))
        outcome, detail = FAILURE, ""
        doing.write_text(what, encoding="utf-8", errors="backslashreplace")
        try:
            outcome, detail = case()
        except FailureError as failure:
            detail = str(failure)
        answer = {"what": what, "outcome": outcome, "detail": detail[:500]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
