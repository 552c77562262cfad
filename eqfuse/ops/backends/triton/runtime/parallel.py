"""Compile many kernels at once, each in one of several worker processes."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import queue
import subprocess
import sys
import tempfile

import eqfuse
from eqfuse.ops import _cache, _processors
from eqfuse.ops.backends.triton.runtime.compile import CompiledKernel, compile_kernel, find
from eqfuse.ops.backends.triton.spec import KernelSpec

_WORKER = pathlib.Path(__file__).with_name("worker.py")


def compile_many(specs, target: str, processes: int | None = None) -> list[CompiledKernel]:
    """Compile the kernels that are neither in memory nor on disk, in parallel.

    The workers are fresh interpreters that import neither JAX nor the caller's script, so this may
    be called from anywhere, a script without `if __name__ == "__main__"` included.

    Args:
      specs: kernels; equal ones are compiled once.
      target: "sm_80", "sm_90", "gfx942" or their like.
      processes: workers; as many as there are processors if None.
    Returns:
      One compiled kernel for each of `specs`, in order.
    Raises:
      RuntimeError: a kernel that does not compile, with the compiler's message.
    """
    specs = list(specs)
    missing = [spec for spec in dict.fromkeys(specs) if find(spec, target) is None]
    missing.sort(key=lambda spec: len(spec.source), reverse=True)
    count = min(len(missing), processes or _processors.usable())
    if count > 1:
        _run_workers(missing, target, count)
    result = {spec: find(spec, target, compiled_elsewhere=True) for spec in missing}
    result = {spec: kernel for spec, kernel in result.items() if kernel is not None}
    return [result.get(spec) or compile_kernel(spec, target) for spec in specs]


def _run_workers(specs: list[KernelSpec], target: str, count: int) -> None:
    tasks: queue.SimpleQueue[KernelSpec] = queue.SimpleQueue()
    for spec in specs:
        tasks.put(spec)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        errors = list(pool.map(lambda _: _feed_worker(tasks, target), range(count)))
    if any(errors):
        raise RuntimeError("\n".join(filter(None, errors)))


def _feed_worker(tasks, target: str) -> str:
    """Give one worker a kernel at a time until none is left; return what went wrong, or ""."""
    environment = {**os.environ, "EQFUSE_CACHE_DIR": str(_cache.cache_folder("compiled").parent)}
    command = [sys.executable, str(_WORKER), str(pathlib.Path(eqfuse.__file__).parent), target]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        ) as worker,
    ):
        while True:
            try:
                spec = tasks.get_nowait()
            except queue.Empty:
                worker.stdin.close()
                return ""
            try:
                worker.stdin.write(spec.to_json() + "\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
            except BrokenPipeError:
                answer = ""
            if answer.strip() != spec.name:
                worker.kill()
                log.seek(0)
                return f"kernel {spec.name} did not compile for {target}:\n{log.read()[-4000:]}"
