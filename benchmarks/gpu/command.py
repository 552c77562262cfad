"""The command `python -m benchmarks.gpu`, its jobs, and the process that runs them."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pathlib
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from eqfuse.runs import command
from eqfuse.runs.schema import setting

LARGE, MIDDLE = (3_000, 160_000), (1_000, 50_000)
REDUCED, MANY = (24, 400), (1_000, 3_000)
STEPS = (135, 2_700)
"""Nodes and edges."""
MAIN = ("nequip-64-l2", "mace-large")
FUSED = ("fused-gate-64-l2", "fused-rows-32-l2")
LARGER = (
    *(*MAIN, "mace-contraction-l2", "allegro-64-l2", "linear-64-l2"),
    *(*FUSED, *(f"{name}-always" for name in FUSED)),
)
"""Checked in a size, too, in which programs walk edges one by one, tiles of matmuls are wide, and
gradients of parameters are sums of parts."""
PARITY = (
    *(*LARGER, "nequip-32-l2", "nequip-benzene-64-l3", "mixed", "fused-linear-128"),
    *("tetris-1", "tetris-2", "product-rows", "elementwise-rows"),
    *("grouped-dense-64", "mace-contraction-l0", "allegro-128-l3"),
)
MATMULS = (*FUSED, "linear-64-l2", "grouped-dense-64")
"""Checked in tf32x3, too."""
OTHER_DTYPES = ("float64", "bfloat16")
IN_LARGE = (
    *("fused-gate-64-l2", "mace-contraction-l2", "fused-linear-128", "fused-rows-32-l2"),
    *("nequip-benzene-64-l3", "mixed", "allegro-64-l2", "linear-64-l2"),
)
MODELS = ("nequip", "mace", "allegro")
FORCES = (
    *((f"mace-mp-{size}", LARGE) for size in "sml"),  # cuEquivariance's example of MACE, and
    *((f"mace-off-{size}", (4_000, 70_000)) for size in "sml"),
    *(("mace-off-m", (138, 5_520)), ("mace-off-m", (1_205, 48_200))),  # mlip's proteins
    ("nequip", (1_000, 28_000)),  # silicon
)
"""Networks and sizes; of the last three, only the atoms are published."""
PRODUCTS = (
    ("mace-large", (1_000, 158_000)),  # OpenEquivariance's lattice of carbon
    *(("mace-large", (512, 32_768)), ("mixed", (512, 32_768))),  # FlashTP's: 64 edges of each node
)
RESERVE_S, LEAST_S, MOST_S = 5, 20, 250  # to end the processes, and for a job, which may hang
MOST_WORKERS, PROCESSORS_OF_ONE = 6, 2  # at a time; a worker compiles in threads
IMPOSSIBLE = ("fused-gate-64-l2-always", "float64")  # refused: such a kernel would spill
DRY = "a dry run on the CPU in tiny sizes: no number in it says anything about speed"
DEVICE_ERRORS = ("XlaRuntimeError", "JaxRuntimeError")
COLUMNS = {
    "parity": ("forward", "backward", "double"),
    "kernels": ("order", "side", "ms (quartiles)", "times eqfuse", "compile, s", "scratch, GB"),
    "steps": ("side", "ms (quartiles)", "times eqfuse", "compile, s", "scratch, GB", "peak, GB"),
}
COLUMNS["forces"] = COLUMNS["steps"]
"""Of the tables, after the case, its nodes and edges, and its dtype."""


class Job(NamedTuple):
    """Something to measure."""

    group: str  # "describe", the machine, or "parity", "kernels", "steps" or "forces"
    case: str = ""  # a key of `problems.PROBLEMS`, or a model
    size: tuple[int, int] = REDUCED  # nodes and edges
    dtype: str = "float32"
    tf32x3: bool = False  # whether matmuls are three products of TF32

    @property
    def label(self) -> dict:
        """Return the fields that are added to its results, also where there are none."""
        case = f"{self.case}, tf32x3" if self.tf32x3 else self.case
        return {"group": self.group, "case": case, "dtype": self.dtype, "size": self.size}


def jobs() -> list[Job]:
    found = [
        *(Job("parity", name, REDUCED) for name in (*MAIN, *PARITY)),
        *(Job("kernels", name, LARGE) for name in MAIN),
        *(Job("parity", name, MANY) for name in LARGER),
        *(Job("parity", name, MANY, tf32x3=True) for name in MATMULS),
        *(Job("steps", model, size) for model in MODELS for size in (STEPS, LARGE)),
        *(Job("parity", name, REDUCED, dtype) for dtype in OTHER_DTYPES for name in PARITY),
        *(Job("kernels", name, MIDDLE) for name in MAIN),
        *(Job("kernels", name, MIDDLE, dtype) for dtype in OTHER_DTYPES for name in MAIN),
        *(Job("kernels", name, LARGE) for name in IN_LARGE),
        *(Job("kernels", *product) for product in PRODUCTS),
        *(Job("forces", *network) for network in FORCES),
    ]
    return [job for job in dict.fromkeys(found) if (job.case, job.dtype) != IMPOSSIBLE]


def tiny(found: list[Job]) -> list[Job]:
    sizes = {"steps": (20, 40)}
    return list(dict.fromkeys(job._replace(size=sizes.get(job.group, (5, 12))) for job in found))


class Worker:
    """Runs jobs in a process, with a limit of time for each.

    A kernel that reads outside of its arrays spoils the device for its process, and one that never
    ends never gives back control. So the process runs one job at a time, and is replaced when it
    dies, hangs, or meets an error that may have spoiled it. The function is importable, and the
    environment is set in the process before it imports anything else.
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
    """Test for a device error, after which others may fail."""
    sides = result.get("sides", {}).values()
    messages = [part.get("error", "") for part in (result, *sides)]
    return any(name in message for message in messages for name in DEVICE_ERRORS)


def results(job, settings: dict) -> list[dict]:
    """Return the results of a job, exceptions too."""
    from benchmarks.gpu import parity, steps, times  # once the environment is set

    backend, seconds = settings["backend"], settings["seconds"]
    functions = {
        "describe": lambda: times.describe(settings["dry"]),
        "parity": lambda: parity.check(job.case, job.dtype, backend, job.size, job.tf32x3),
        "kernels": lambda: times.of_op(*job[1:4], backend, seconds, settings["peers"]),
        "steps": lambda: steps.measure(job.case, job.size, backend, seconds),
        "forces": lambda: steps.forces(job.case, job.size, backend, seconds),
    }
    found = []
    with times.beside_others(settings.get("lock")):
        try:
            found.extend(functions[job.group]())  # those before an error are kept
        except Exception as error:
            found.append({"error": times.first_line(error)})
    return found


class Run:
    """Runs jobs, one on each worker at a time, prints their results and writes them to a file."""

    def __init__(self, workers, out: pathlib.Path, content: dict, minutes: float, settings: dict):
        self._workers, self._out, self._settings = workers, out, settings
        self._lock = threading.Lock()
        self._content = content | {"finished": False, "results": []}
        self._end = time.monotonic() + 60 * minutes - RESERVE_S
        self._group = ""  # whose table is being printed

    def describe(self) -> str:
        """Write what this runs on; return why nothing can be measured on it, or ""."""
        [found] = self._workers[0].run(Job("describe"), self._settings, self._left())
        self._content["environment"] = found
        self._write()
        return found.get("error", "")

    def all(self, jobs: list[Job]) -> dict:
        """Run jobs as far as the minutes go; the content of the file."""
        left, again = collections.deque(jobs), []

        def work(worker):
            while left:
                with contextlib.suppress(IndexError):  # another took the last
                    self._run(worker, left.popleft(), again)

        with concurrent.futures.ThreadPoolExecutor(len(self._workers)) as pool:
            list(pool.map(work, self._workers))
        for worker in self._workers:
            worker.stop()
        for job in again:
            self._run(self._workers[0], job)
        self._content["finished"] = True
        self._write()
        return self._content

    def _run(self, worker, job: Job, again: list[Job] | None = None) -> None:
        """Run a job; one whose memory ran out beside others is noted, to run alone."""
        if self._left() < LEAST_S:
            self._add(job, {"skipped": f"{max(0, self._left()):.0f} s were left"})
            return
        if job.group in ("steps", "forces"):  # peaks and compile times are of a new process
            worker.stop()
        found = worker.run(job, self._settings, min(self._left(), MOST_S))
        if again is not None and len(self._workers) > 1 and "out of memory" in json.dumps(found):
            again.append(job)
            return
        for result in found:
            self._add(job, result)

    def _write(self) -> None:
        partial = self._out.with_name(f".{self._out.name}.{os.getpid()}")
        partial.write_text(json.dumps(self._content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self._out)

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _add(self, job: Job, result: dict) -> None:
        with self._lock:
            self._content["results"].append(job.label | result)
            self._write()
            self._print(job, result)

    def _print(self, job: Job, result: dict) -> None:
        head = ("case", "nodes / edges", "dtype", *COLUMNS[job.group])
        if job.group != self._group:
            self._group = job.group
            print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for cells in lines(job.group, result):
            cells = (job.label["case"], f"{job.size[0]} / {job.size[1]}", job.dtype, *cells)
            print(f"| {' | '.join(cells)} |{' |' * (len(head) - len(cells))}", flush=True)


def lines(group: str, result: dict) -> list[tuple[str, ...]]:
    """Return the last cells of each line of a result; what was not measured says why."""
    order = (result.get("order", ""),) * (group == "kernels")
    for word in ("error", "skipped"):
        if word in result:
            return [(*order, f"{word}: {result[word]}")]
    if group == "parity":
        ends = {True: "", False: ", not repeatable"}
        text = "{error:.0e} ({share:.2f})".format
        return [tuple(text(**f) + ends[f["repeatable"]] for f in result["orders"].values())]
    found = []
    for name, side in result["sides"].items():
        if "error" in side:
            found.append((*order, name, side["error"]))
            continue
        ms = "{median:.3g} ({low:.3g} to {high:.3g})".format(**side["ms"])
        ratio = "{median:.2f} ({low:.2f} to {high:.2f})".format(**side["ratio"])
        bytes_of = [side.get(key) for key in ("scratch_bytes", "peak_bytes")[: 2 - len(order)]]
        gigabytes = ["" if number is None else f"{number / 1e9:.2f}" for number in bytes_of]
        found.append((*order, name, ms, ratio, f"{side['compile_s']:.1f}", *gigabytes))
    return found


@dataclasses.dataclass
class Bench:
    """Check and time eqfuse on one GPU, beside e3nn-jax, in one call of ten minutes.

    This is what a user of a GPU runs first; a report of a fault should have its file of results.

    parity   Every op and two orders of derivative of backend "triton" against e3nn-jax in float64,
             and whether a second run has the same bits.
    kernels  The same ops, forward, backward and backward of backward, against e3nn-jax jitted.
    steps    Training steps of the three models against e3nn-jax.
    forces   Energy and forces of networks and sizes of which peers publish times (only=forces).

    Parity comes first, then times; none is given of what is not right. Several processes compile
    and compare side by side; what is timed has the GPU alone. What fails, is missing, or does not
    fit into the minutes is a result that says so; an error of eqfuse fails the command when all is
    done. Results are printed, and written to a file as they come. Without a GPU, dry_run=true runs
    all of it in tiny sizes on the CPU, where no number means anything.
    """

    out: pathlib.Path = setting(pathlib.Path("results.json"), "file of the results")
    minutes: float = setting(10.0, "after which nothing runs")
    only: str = setting("", "only what holds this in '<group> <case> <dtype>'")
    seconds: float = setting(2.0, "to time each case")
    dry_run: bool = setting(False, DRY)


def main(arguments: list[str] | None = None, peers: str = "") -> int:
    """Run what the settings ask for; `peers` is a module with more sides, see `times.of_op`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return command.run(Bench, lambda options: _bench(options, peers), arguments)


def _bench(options: Bench, peers: str):
    dry, names = options.dry_run, ("group", "case", "dtype")
    asked = tiny(jobs()) if dry else jobs()
    asked = [job for job in asked if options.only in " ".join(job.label[n] for n in names)]
    if not asked:
        sys.exit(f"nothing holds only={options.only!r}")
    content = {"command": shlex.join(["python", *sys.orig_argv[1:]]), "dry_run": dry}
    if dry:
        print(DRY)
    backend = "llvm" if dry else "triton"
    settings = {"dry": dry, "backend": backend, "peers": peers, "seconds": options.seconds}
    share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    environment = {"JAX_PLATFORMS": "cpu" if dry else "cuda,cpu"}
    environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = share
    count = max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // PROCESSORS_OF_ONE))
    if count > 1:
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    with tempfile.NamedTemporaryFile() as lock:
        settings["lock"] = lock.name
        workers = [Worker(results, environment) for _ in range(count)]
        try:
            run = Run(workers, options.out, content, options.minutes, settings)
            if wrong := run.describe():
                sys.exit(f"cannot measure here: {wrong}; without a GPU: dry_run=true")
            found = run.all(asked)["results"]
        finally:
            for worker in workers:
                worker.stop()
    if failed := [result for result in found if "error" in result]:
        sys.exit("\n".join(f"error: {json.dumps(result)}" for result in failed))
