"""A process that measures, watched by one that survives whatever happens to it.

A kernel that reads outside of its arrays spoils the device for its process, and one that never ends
never gives back control. So the measuring process runs one job at a time, and is replaced when it
dies, hangs, or meets an error that may have spoiled it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable

DEVICE_ERRORS = ("XlaRuntimeError", "JaxRuntimeError")


class Worker:
    """Runs jobs in a process, with a limit of time for each.

    The function (job, settings -> list of dicts) is importable; the environment is set in the
    process before it imports anything else.
    """

    def __init__(self, function: Callable, environment: dict[str, str]):
        self._function, self._environment, self._pool = function, environment, None

    def run(self, job, settings: dict, seconds: float) -> list[dict]:
        """Return the results of a job; one {"error": ...} if the process had to be ended."""
        if self._pool is None:
            self._cache = tempfile.TemporaryDirectory()  # so compile times are of a first run
            environment = {"EQFUSE_CACHE_DIR": self._cache.name} | self._environment
            self._pool = concurrent.futures.ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), _start, (environment,)
            )
            self._pid = self._pool.submit(os.getpid).result()
        try:
            found = self._pool.submit(self._function, job, settings).result(seconds)
        except concurrent.futures.TimeoutError:
            self.stop()
            return [{"error": f"stopped after {seconds:.0f} s"}]
        except concurrent.futures.process.BrokenProcessPool:
            self.stop()
            return [{"error": "the process died"}]
        if any(map(is_device_error, found)):  # it may have spoiled the process
            self.stop()
        return found

    def stop(self) -> None:
        if self._pool is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._pool.shutdown()
            self._cache.cleanup()
            self._pool = None


def _start(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def is_device_error(result: dict) -> bool:
    """Return whether a result is a device error, after which others may fail."""
    sides = result.get("sides", {}).values()
    messages = [part.get("error", "") for part in (result, *sides)]
    return any(name in message for message in messages for name in DEVICE_ERRORS)


def results(job, settings: dict) -> list[dict]:
    """Return the results of a job, exceptions too."""
    from eqfuse.bench import parity, steps, times  # once the environment is set

    backend, seconds = settings["backend"], settings["seconds"]
    functions = {
        "describe": lambda: times.describe(settings["dry"]),
        "parity": lambda: parity.check(job.case, job.dtype, backend, job.size, job.tf32x3),
        "kernels": lambda: times.of_op(
            job.case, job.size, job.dtype, backend, seconds, settings["peers"]
        ),
        "steps": lambda: steps.measure(job.case, job.size, backend, seconds),
    }
    found = []
    try:
        for result in functions[job.group]():
            found.append(result)
    except Exception as error:
        found.append({"error": times.first_line(error)})
    return found
