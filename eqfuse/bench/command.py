"""Check and time eqfuse on one GPU, beside e3nn-jax and the peers, in one call of ten minutes.

    eqfuse bench [--out FILE] [--minutes 10] [--only TEXT] [--peers NAME ...]
        [--cache FOLDER]

This is what a user of a GPU runs first; a report of a fault should have its file of results.

Parity: every op and two orders of derivative of backend "triton" against e3nn-jax in float64, and
whether a second run has the same bits. Kernels: the cases of the peers' benchmarks,
forward, backward and backward of backward, against e3nn-jax jitted, cuEquivariance-JAX and
OpenEquivariance-JAX, as times, ratios, and shares of the bandwidth and of the arithmetic measured
on the same machine. Training steps of the three models. The first cases run without command buffers
(CUDA graphs) for our kernels, then all with them. The time from launch to launch, and what cold
code and strided stores cost, are measured too. Two cases come first, their parity and their times;
then the rest. No time is given of what is not right. What fails, is missing, or does not fit into
the minutes is a result that says so; an error of eqfuse fails the command when all is done. Results
are printed, and written to FILE as they come. Beside a time of eqfuse stands what
`benchmarks.predictions` predicted for that GPU, where its results have the case.

Without a GPU: --dry-run runs all of it in tiny sizes on the CPU, where no number means anything;
--compile-only compiles every kernel, and every computation, for an H100. A later run with the same
version of triton finds the kernels in FOLDER; its times to compile kernels then mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shlex
import sys
import tempfile
import time

from eqfuse.bench import plan
from eqfuse.bench.predicted import Predictions
from eqfuse.bench.record import to_json, write_json
from eqfuse.bench.tables import Tables
from eqfuse.bench.worker import Job, Worker, serve

PEERS = ("cuequivariance", "openequivariance")
RESERVE_S = 5
"""Left of the minutes when the last job is stopped, to end the processes."""
PATIENCE = 4
"""A job may take so often what it is thought to take, so that one that hangs does not take all."""
DRY = "a dry run on the CPU in tiny sizes: no number in it says anything about speed"


class Run:
    """Runs jobs one after the other, prints their results and writes them.

    Args:
      worker: has `run` and `stop` of `worker.Worker`.
      out: the file.
      content: of the file, besides the results.
      minutes: after which nothing runs any more.
    """

    def __init__(self, worker, out: pathlib.Path, content: dict, minutes: float):
        self._worker, self._out = worker, out
        self._content = content | {"finished": False, "results": []}
        self._tables = Tables(lambda line: print(line, flush=True))
        self._end = time.monotonic() + 60 * minutes - RESERVE_S
        self._predictions = Predictions("")  # of no device
        self._parity: dict[tuple[str, str], str] = {}  # what is wrong, or ""

    def describe(self, arguments: dict) -> str:
        """Write what this runs on. Returns why nothing can be measured on it, or ""."""
        job = Job("describe", arguments, {}, cost_s=0)
        [found] = self._worker.run(job, self._left())
        self._content["environment"] = found
        self._predictions = Predictions(found.get("device", ""))
        self._write()
        return found.get("error", "")

    def all(self, jobs) -> dict:
        """Run jobs as far as the minutes go; the content of the file."""
        for job in jobs:
            self._job(job)
        self._content["finished"] = True
        self._write()
        return self._content

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _job(self, job: Job) -> None:
        if self._left() < job.cost_s / 2:
            self._add(job.label | {"skipped": f"{max(0, self._left()):.0f} s were left"})
            return
        if job.function == "kernels":
            if wrong := self._red(job):
                self._add(job.label | {"error": f"not timed: {wrong}"})
                return
            machine = {"machine": self._content["environment"]["machine"]}
            job = dataclasses.replace(job, arguments=job.arguments | machine)
        most = min(self._left(), PATIENCE * job.cost_s + 30)
        for result in self._worker.run(job, most):
            self._add(job.label | result)
            if job.function == "parity":
                key = job.label["case"], job.label["dtype"]
                self._parity[key] = self._parity.get(key) or result.get("error", "")

    def _red(self, job: Job) -> str:
        """Return what is wrong with the results of the same op in a reduced size, or ""."""
        key = job.label["case"], job.label["dtype"]
        if key not in self._parity:
            dry = self._content["dry_run"]
            self._job(plan.parity(*key, job.arguments["backend"], dry))
        return self._parity.get(key, "its parity was not checked")

    def _add(self, result: dict) -> None:
        result = self._predictions.add(result)
        self._content["results"].append(result)
        self._write()
        self._tables.add(result)

    def _write(self) -> None:
        write_json(self._out, self._content)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(
        prog="eqfuse bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", "--json", type=pathlib.Path, default=pathlib.Path("results.json"))
    parser.add_argument("--minutes", type=float, default=10, help="after which nothing runs")
    parser.add_argument(
        "--only", default="", help="only what holds this in '<group> <case> <dtype>'"
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--seconds", type=float, default=2, help="to time each function")
    parser.add_argument("--cache", type=pathlib.Path, help="where compiled kernels are kept")
    parser.add_argument("--commit", help="of the code, where it runs outside its repository")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help=DRY)
    mode.add_argument("--compile-only", action="store_true", help="for an H100, without one")
    parser.add_argument(
        "--backend", help="of a dry run: llvm (default), xla or triton-interpret", default="llvm"
    )
    return parser.parse_args(arguments)


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """Return what the options ask for."""
    if options.compile_only:
        return plan.selected(plan.ahead("sm_90"), options.only)
    peers = {name: {} for name in options.peers}
    if options.dry_run and "cuequivariance" in peers:
        peers["cuequivariance"] = {"method": "naive"}  # "uniform_1d" needs a GPU
    backend = options.backend if options.dry_run else "triton"
    cached = options.cache is not None
    found = plan.jobs(backend, peers, options.seconds, options.dry_run, cached)
    return plan.selected(found, options.only)


def main(arguments: list[str] | None = None) -> int:
    """Run what the options ask for. Returns the exit code of the command."""
    options = options_of(arguments)
    jobs = jobs_of(options)
    if not jobs:
        sys.exit(f"nothing holds --only {options.only!r}")
    on_cpu = options.dry_run or options.compile_only
    content = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "dry_run": options.dry_run,
        "minutes": options.minutes,
        "kernels_kept": options.cache is not None,
    }
    if options.dry_run:
        content["note"] = DRY
        print(DRY)
    with tempfile.TemporaryDirectory() as cache:  # compile times are those of a first run
        environment = {
            "EQFUSE_CACHE_DIR": str(options.cache.absolute()) if options.cache else cache,
            "JAX_PLATFORMS": "cpu" if on_cpu else "cuda,cpu",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": os.environ.get(
                "XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9"
            ),
        }
        worker = Worker(serve, environment)
        try:
            run = Run(worker, options.out, content, options.minutes)
            if wrong := run.describe({"commit": options.commit, "small": on_cpu}):
                sys.exit(f"cannot measure here: {wrong}; without a GPU: --dry-run, --compile-only")
            results = run.all(jobs)["results"]
        finally:
            worker.stop()
    if failed := [result for result in results if "error" in result]:
        sys.exit("\n".join(f"error: {to_json(result)}" for result in failed))
    return 0
