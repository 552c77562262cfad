"""A process that measures, watched by one that survives whatever happens to it.

A kernel that reads outside of its arrays spoils the device for its process, and one that never ends
never gives back control. So the measuring process runs one job at a time, sends each result when it
has it, and is replaced when it dies, hangs, or meets an error that may have spoiled it.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Iterator

UNRECORDED = "--xla_gpu_enable_command_buffer=-CUSTOM_CALL"
"""Our kernels are launched one by one, and not recorded in CUDA graphs with what XLA makes."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Something to measure.

    Attributes:
      function: a key of `measure.FUNCTIONS`.
      arguments: of the function, by name.
      label: what is added to its results, and is there where there are none.
      cost_s: seconds that it takes, roughly.
      fresh: whether it wants a process of its own.
      recorded: whether XLA may record our kernels in command buffers (CUDA graphs).
    """

    function: str
    arguments: dict
    label: dict
    cost_s: float
    fresh: bool = False
    recorded: bool = True


class Worker:
    """Runs jobs in a process, with a limit of time for each.

    Args:
      serve: the function of the process, of a connection and the environment; importable.
      environment: variables that are set in the process before it imports anything else.
    """

    def __init__(self, serve, environment: dict[str, str]):
        self._serve, self._environment = serve, environment
        self._process = self._connection = None
        self._recorded = True

    def run(self, job: Job, seconds: float) -> Iterator[dict]:
        """Return results of a job as they come, and at most one {"error": ...} more.

        Args:
          seconds: after which the process is ended.
        """
        if job.fresh or job.recorded != self._recorded:
            self.stop()
        self._recorded = job.recorded
        if self._process is None:
            self._start()
        end = time.monotonic() + seconds
        try:
            self._connection.send((job.function, job.arguments))
            while True:
                if not self._connection.poll(max(0.0, end - time.monotonic())):
                    self.stop()
                    yield {"error": f"stopped after {seconds:.0f} s"}
                    return
                kind, value = self._connection.recv()
                if kind == "end":
                    if value:  # it may have spoiled the process
                        self.stop()
                    return
                yield value
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.stop()
            yield {"error": f"the process died with exit status {code}"}

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._process is None:
            return
        self._connection.close()
        self._process.join(1)
        self._process.kill()
        self._process.join()
        self._process = self._connection = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        environment = dict(self._environment)
        if not self._recorded:
            flags = environment.get("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
            environment["XLA_FLAGS"] = f"{flags} {UNRECORDED}".strip()
        self._connection, other = context.Pipe()
        self._process = context.Process(target=self._serve, args=(other, environment), daemon=True)
        self._process.start()
        other.close()


def serve(connection, environment: dict[str, str]) -> None:
    """Return the process: runs jobs until the connection is closed."""
    os.environ.update(environment)
    from eqfuse.bench import measure

    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        spoiled = False
        for result, last in measure.results(function, arguments):
            connection.send(("result", result))
            spoiled = spoiled or last
        connection.send(("end", spoiled))
