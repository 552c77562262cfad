"""What the measuring process does: one function for each kind of job."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

from eqfuse import ops
from eqfuse.bench import launches, machine, op_times, parity, steps
from eqfuse.bench.errors import first_line, spoiled
from eqfuse.bench.problem import ORDERS, derivative
from eqfuse.bench.problems import PROBLEMS
from eqfuse.bench.record import environment
from eqfuse.bench.timing import gpu_rates, precision


def results(function: str, arguments: dict) -> Iterator[tuple[dict, bool]]:
    """Return results of a job, exceptions too, and whether the process may be spoiled."""
    try:
        for result in FUNCTIONS[function](**arguments):
            yield result, spoiled(result)
    except Exception as error:
        result = {"error": first_line(error)}
        yield result, spoiled(result)


def describe(commit: str | None, small: bool) -> Iterator[dict]:
    """Return the environment, and what the machine can do.

    Args:
      commit: as for `record.environment`.
      small: for a run on the CPU.
    Raises:
      RuntimeError: no GPU that runs the kernels, and not `small`, saying why.
    """
    available, why = ops.availability()["triton"]
    if not (available or small):
        raise RuntimeError(why)
    found = environment(commit) | {"matmul_precision": "highest", "driver": driver()}
    yield found | {"machine": gpu_rates(small)}


def driver() -> str | None:
    """Return GPU, driver and memory as nvidia-smi reports them; None without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    fields = "--query-gpu=name,driver_version,memory.total"
    command = [program, fields, "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def compile_kernels(names: list[str], dtype: str, size: tuple[int, int]) -> Iterator[dict]:
    """Compile all kernels of the problems in parallel, so that later jobs find them."""
    start = time.perf_counter()
    with precision(dtype):
        functions, arguments = [], []
        for name in names:
            problem = PROBLEMS[name](*size)
            functions.append(parity.everything(problem.function("triton")))
            arguments.append((problem.arguments("double", dtype), problem.integers))

        def everything(arguments):
            return [f(*a) for f, a in zip(functions, arguments, strict=True)]

        found = ops.compile_ahead(everything, arguments)
    yield _kernels(found) | {"wall_s": time.perf_counter() - start}


def _kernels(found) -> dict:
    return {
        "kernels": len(found),
        "compile_s": sum(kernel.compile_seconds for kernel in found),
        "registers": max((kernel.registers for kernel in found), default=0),
        "spilled_bytes": sum(kernel.spilled_bytes for kernel in found),
    }


def check(
    name: str, dtype: str, backend: str, size: tuple[int, int], tf32x3: bool = False
) -> Iterator[dict]:
    """Check the parity of one problem: see `parity.check`."""
    yield {"size": list(size), "orders": parity.check(name, dtype, backend, size, tf32x3)}


def ahead(name: str, dtype: str, size: tuple[int, int], target: str) -> Iterator[dict]:
    """Compile every order of a problem for a GPU that need not be here."""
    with precision(dtype):
        problem = PROBLEMS[name](*size)
        for order in ORDERS:
            function = derivative(problem.function("triton"), order)
            arguments = problem.arguments(order, dtype), problem.integers
            yield {"order": order, "size": list(size)} | _ahead(function, arguments, target)


def ahead_step(model: str, size: tuple[int, int], target: str) -> Iterator[dict]:
    """Compile a training step for a GPU that need not be here."""
    with precision("float32"):
        functions, arguments = steps.shapes(model, *size)
        step = functions(backend="triton")[0]
        yield {"order": "step", "size": list(size)} | _ahead(step, arguments, target)


def _ahead(function, arguments, target: str) -> dict:
    """Return the kernels, and the launches and the scratch memory of the whole for an H100."""
    found = _kernels(ops.compile_ahead(function, *arguments, target=target))
    try:
        whole = launches.count(function, arguments)
    except launches.PluginMissingError as error:
        return found | {"launches": None, "why": first_line(error)}
    return found | {"launches": whole.launches, "scratch_bytes": whole.temp_bytes}


FUNCTIONS = {
    "describe": describe,
    "compile": compile_kernels,
    "parity": check,
    "kernels": lambda **fields: op_times.measure(op_times.Request(**fields)),
    "machine": machine.measure,
    "steps": lambda **fields: steps.measure(steps.Request(**fields)),
    "ahead": ahead,
    "ahead_step": ahead_step,
}
