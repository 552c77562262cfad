"""A process that measures, watched by one that survives whatever happens to it.

A kernel that reads outside of its arrays spoils the device for its process, and one that never ends
never gives back control. So the measuring process runs one job at a time, sends each result when it
has it, and is replaced when it dies, hangs, or meets an error that may have spoiled it.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator

DEVICE_ERRORS = ("XlaRuntimeError", "JaxRuntimeError")


class Worker:
    """Runs jobs in a process, with a limit of time for each.

    Args:
      serve: the function of the process, of a connection and the environment; importable.
      environment: variables that are set in the process before it imports anything else.
    """

    def __init__(self, serve, environment: dict[str, str]):
        self._serve, self._environment = serve, environment
        self._process = self._connection = None

    def run(self, group: str, arguments: dict, seconds: float) -> Iterator[dict]:
        """Return results of a job as they come, and at most one {"error": ...} more.

        Args:
          group, arguments: a function of `results`, and its arguments.
          seconds: after which the process is ended.
        """
        if self._process is None:
            self._start()
        end = time.monotonic() + seconds
        try:
            self._connection.send((group, arguments))
            while True:
                if not self._connection.poll(max(0.0, end - time.monotonic())):
                    self.stop()
                    yield {"error": f"stopped after {seconds:.0f} s"}
                    return
                result = self._connection.recv()
                if result is None:
                    return
                yield result
                if is_device_error(result):  # it may have spoiled the process
                    self.stop()
                    return
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
        self._connection, other = context.Pipe()
        arguments = (other, self._environment)
        self._process = context.Process(target=self._serve, args=arguments, daemon=True)
        self._process.start()
        other.close()


def is_device_error(result: dict) -> bool:
    """Return whether a result is a device error, after which others may fail."""
    sides = result.get("sides", {}).values()
    messages = [part.get("error", "") for part in (result, *sides)]
    return any(name in message for message in messages for name in DEVICE_ERRORS)


def serve(connection, environment: dict[str, str]) -> None:
    """Run jobs until the connection is closed; compile times are those of a first run."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update({"EQFUSE_CACHE_DIR": cache} | environment)
        while True:
            try:
                group, arguments = connection.recv()
            except EOFError:
                return
            for result in results(group, arguments):
                connection.send(result)
            connection.send(None)


def results(group: str, arguments: dict) -> Iterator[dict]:
    """Return the results of a job, exceptions too."""
    from eqfuse.bench import parity, steps, times  # once the environment is set

    functions = {
        "describe": times.describe,
        "parity": parity.check,
        "kernels": times.of_op,
        "steps": steps.measure,
    }
    try:
        yield from functions[group](**arguments)
    except Exception as error:
        yield {"error": times.first_line(error)}
