"""Measure how long a kernel takes to compile, by stage, with and without Triton's coalescing pass.

    python -m benchmarks.products.compile_time [NAME ...] [--target sm_90] [--coalesce]

NAME is a fused op of `benchmarks.products.kernels` ("fused nequip-64-l2") or a Linear below
("linear 64x0e+64x1o+64x2e"); the default is all Linears. The table, in Markdown, has the processor
seconds of each stage of the compiler, registers, bytes spilled, and the loads and stores in the
text. With --coalesce there are two rows for each kernel, without the pass and with it.
MLIR_ENABLE_TIMING=1 also lists the passes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import resource
import time

import e3nn_jax as e3nn
from triton.backends.nvidia.compiler import CUDABackend

from benchmarks.fused_cases import CASES as FUSED
from benchmarks.fused_cases import mixing_kernels
from benchmarks.products.kernels import kernels_of
from eqfuse.ops.backends.triton import compile
from eqfuse.ops.backends.triton.spec import KernelSpec

LINEARS = (
    "16x0e+16x1o",
    "32x0e+32x0o+32x1e+32x1o+32x2e+32x2o",
    "64x0e+64x1o+64x2e",
    "128x0e+128x1o+128x2e+128x3o",
)
NAMES = (*(f"linear {irreps}" for irreps in LINEARS), *(f"fused {name}" for name in FUSED))
STAGES = ("ttir", "ttgir", "llir", "ptx")
HEADER = ("kernel", "order", "coalesced", "text", *STAGES, "ptxas", "all, s")
HEADER += ("registers", "spilled", "loads", "stores")


def kernels(name: str):
    """Return (order, kernel) of a case."""
    if name.startswith("linear "):
        specs = mixing_kernels(e3nn.Irreps(name.removeprefix("linear ")), 1, "float32")
        return list(zip(("forward", "backward"), specs, strict=True))
    return [(order, spec) for order, _, specs in kernels_of(name, "float32") for spec in specs]


@contextlib.contextmanager
def timed_stages():
    """Inside, stages of triton for NVIDIA add the seconds that they take to what this gives."""
    seconds, add_stages = {}, CUDABackend.add_stages

    def timed(name, stage):
        def run(module, metadata):
            start = time.process_time()
            result = stage(module, metadata)
            seconds[name] = time.process_time() - start
            return result

        return run

    def add_timed(self, stages, *arguments):
        add_stages(self, stages, *arguments)
        stages.update({name: timed(name, stage) for name, stage in stages.items()})

    CUDABackend.add_stages = add_timed
    try:
        yield seconds
    finally:
        CUDABackend.add_stages = add_stages


def measure(spec: KernelSpec, target: str) -> list[str]:
    """Return the columns of a kernel from "text" on."""
    start = time.process_time()
    with timed_stages() as seconds:
        stages, _ = compile.compile_stages(spec, target)
    triton = time.process_time() - start
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    registers, spilled = compile.resources(stages)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    ptxas = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assembly = stages.get("ptx") or stages["amdgcn"]
    loads, stores = (
        len(re.findall(rf"{short}\.global|(?:global|buffer)_{word}", assembly))
        for short, word in (("ld", "load"), ("st", "store"))
    )
    parts = [triton - sum(seconds.values()), *(seconds.get(s, 0.0) for s in STAGES), ptxas]
    times = [f"{value:.1f}" for value in (*parts, triton + ptxas)]
    return [*times, *map(str, (registers, spilled, loads, stores))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--coalesce", action="store_true", help="without the pass, and with it")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * 3}{' ---: |' * (len(HEADER) - 3)}")
    for name in options.names or NAMES[: len(LINEARS)]:
        for order, spec in kernels(name):
            for coalesce in (False, True) if options.coalesce else (spec.coalesce,):
                row = measure(dataclasses.replace(spec, coalesce=coalesce), options.target)
                row = [name, order, "yes" if coalesce else "no", *row]
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
