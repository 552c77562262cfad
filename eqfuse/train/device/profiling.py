"""A trace of a few training steps, and the operations in it."""

import collections
import contextlib
import csv
import dataclasses
import statistics
import time
import warnings
from pathlib import Path

import jax
from jax.profiler import ProfileData

from eqfuse.train.device.hlo import NOT_ATTRIBUTED, HloProgram
from eqfuse.train.run.stopping import TrainingFailed

WARM_UP, STEPS = 3, 5
SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of operation of a step.

    Attributes:
      launches: per step.
      milliseconds: from start to end, per step; operations that overlap count in full.
      kernel: its name, without the number that XLA gives it.
      source: the part of the model, or the Python function, that it comes from.
    """

    launches: float
    milliseconds: float
    kernel: str
    source: str


def profile(step, args: tuple, folder: Path, writes: bool = True) -> str:
    """Trace a few calls of a jitted function, and return a table of what they launched.

    Args:
      step: a jitted function that keeps its arguments.
      args: of the calls, all the same; what is returned is not used.
      folder: new, for the trace (Perfetto, TensorBoard) and `operations.csv`.
      writes: whether this process traces; others only take part.
    Returns:
      A table for the terminal.
    Raises:
      TrainingFailed: the trace holds no operation of the function.
    """
    compiled = step.lower(*args).compile()
    for _ in range(WARM_UP):
        jax.block_until_ready(compiled(*args))
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        seconds.append(time.perf_counter() - start)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it would slow down what is measured
    traced = jax.profiler.trace(folder, profiler_options=options)
    with traced if writes else contextlib.nullcontext():
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("step", step_num=number):
                jax.block_until_ready(compiled(*args))
    if not writes:
        return ""
    rows = summarise(folder, HloProgram(compiled.as_text()))
    _write(folder / "operations.csv", rows)
    return table(rows, 1e3 * statistics.median(seconds), folder)


def summarise(folder: Path, program: HloProgram, steps: int = STEPS) -> list[Row]:
    """Return the operations of a trace by kernel and source, those that take longest first.

    Args:
      folder: of the trace.
      program: whose operations they are.
      steps: how many calls of it were traced.
    Raises:
      TrainingFailed: there are none.
    """
    durations = collections.defaultdict(list)
    for name, operation, milliseconds in operations(folder):
        instruction = program.by_name.get(operation)
        source = NOT_ATTRIBUTED if instruction is None else program.source(instruction)
        durations[_stem(name, instruction), source].append(milliseconds)
    if not durations:
        raise TrainingFailed(
            f"the trace in {folder} holds no operation of the training step on "
            f"{jax.default_backend()}; open it in Perfetto, or leave profile= out"
        )
    rows = [Row(len(times) / steps, sum(times) / steps, *key) for key, times in durations.items()]
    return sorted(rows, key=lambda row: -row.milliseconds)


def _file(folder: Path) -> Path:
    files = sorted(folder.rglob("*.xplane.pb"))
    if not files:
        raise TrainingFailed(f"the profiler of JAX wrote no trace to {folder}")
    return files[-1]


def _stem(name: str, instruction) -> str:
    """Return what operations of one kind have in common: "dot_general.12" is a "dot_general"."""
    if instruction is not None and instruction.target.startswith("eqfuse"):
        return instruction.primitive or instruction.target
    stem = name.rstrip("0123456789")
    return stem[:-1] if stem != name and stem.endswith((".", "_")) else name


def operations(folder: Path):
    """Yield (name, instruction, milliseconds) of everything in a trace that the first device ran.

    A GPU's streams hold the kernels and copies. A CPU's threads hold the start of every operation,
    and its end if it went on elsewhere; both carry the name of the instruction.

    Raises:
      TrainingFailed: there is no trace in the folder.
    """
    data = ProfileData.from_file(str(_file(folder)))
    with warnings.catch_warnings():
        # The type of an event's statistics, in JAX's extension module, has no __module__.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        gpus = sorted((p for p in data.planes if "/device:GPU" in p.name), key=lambda p: p.name)
        if gpus:
            for line in gpus[0].lines:
                for event in line.events if line.name.startswith("Stream") else ():
                    operation = dict(event.stats).get("hlo_op", event.name)
                    yield event.name, str(operation), event.duration_ns / 1e6
            return
        yield from _host_operations(data)


def _host_operations(data: ProfileData):
    starts, ends = collections.defaultdict(list), collections.defaultdict(list)
    for plane in data.planes:
        for event in (event for line in plane.lines for event in line.events):
            if event.name.startswith("end: "):
                ends[event.name.removeprefix("end: ")].append(event.start_ns)
                continue
            stats = dict(event.stats)
            if "hlo_op" in stats and not stats.get("device_ordinal"):
                starts[event.name].append((event.start_ns, event.duration_ns))
    for name, events in starts.items():
        finished = sorted(ends[name])
        paired = len(finished) == len(events)
        for k, (start, duration) in enumerate(sorted(events)):
            yield name, name, (finished[k] - start if paired else duration) / 1e6


def _write(path: Path, rows: list[Row]):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(Row))
        writer.writerows(dataclasses.astuple(row) for row in rows)


def table(rows: list[Row], step_ms: float, folder: Path) -> str:
    """Return the rows that take longest, the rest as one, and where the trace is.

    Args:
      rows: of `summarise`.
      step_ms: time of a step that is not traced, ms.
      folder: of the trace.
    """
    total = sum(row.milliseconds for row in rows)
    shown, rest = rows[:SHOWN], rows[SHOWN:]
    if rest:
        sums = sum(row.launches for row in rest), sum(row.milliseconds for row in rest)
        shown = [*shown, Row(*sums, f"{len(rest)} other kinds", "see operations.csv")]
    launches = sum(row.launches for row in rows)
    width = max(len(row.kernel) for row in shown)
    lines = [
        f"profile    {step_ms:.2f} ms per step without the profiler; with it {launches:g} launches "
        f"per step, which take {total:.2f} ms, counted in full where they overlap",
        f"  {'launches':>8} {'ms/step':>9} {'share':>6}  {'kernel'.ljust(width)}  from",
        *(
            f"  {row.launches:>8g} {row.milliseconds:>9.4f} {row.milliseconds / total:>6.1%}  "
            f"{row.kernel.ljust(width)}  {row.source}"
            for row in shown
        ),
        f"  the trace is in {folder}: open its .trace.json.gz in ui.perfetto.dev, or, after "
        f"pip install tensorboard xprof, tensorboard --logdir {folder}",
    ]
    return "\n".join(lines)
