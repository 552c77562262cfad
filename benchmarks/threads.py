"""Count how the native kernels of an evaluation share their work among threads.

    python -m benchmarks.threads RUN STRUCTURE [--dtype float32] [--threads 1 2 4 8 16]

No thread but one is needed: the kernels of energy, forces and stress are recorded as they are
traced, with their passes, and their units of work are dealt out in chunks as the runtime does
(`eqfuse/ops/backends/llvm/runtime.c`), to threads of one speed. What is counted are operations on
vectors. What XLA computes between the kernels, and the speed of memory, are not counted.
"""

import argparse
import re
import tempfile
from typing import NamedTuple

import ase.io
import jax

from benchmarks.record import Record, add_json_option
from eqfuse.inference.calculator import Calculator
from eqfuse.inference.programs import Kept
from eqfuse.ops.backends.llvm import text
from eqfuse.ops.primitives import native

CHUNKS = 8
"""Chunks of a pass for each thread, as in the runtime."""

WORK_OF_A_THREAD = 30_000
"""Operations that are worth a thread, as in the runtime."""


class Counted(NamedTuple):
    """A pass as it is called: its units of work, and operations in all."""

    units: int
    work: int

    def threads(self, most: int) -> int:
        """Return how many threads the runtime asks for."""
        return 1 + max(0, min(most - 1, self.units - 1, self.work // WORK_OF_A_THREAD))

    def longest(self, most: int) -> float:
        """Return the operations of the thread that has most of them."""
        threads = self.threads(most)
        chunk = -(-self.units // (CHUNKS * threads))
        chunks = -(-self.units // chunk)
        units = min(-(-chunks // threads) * chunk, self.units)
        return self.work * units / self.units


def record(run, atoms, **options) -> list[Counted]:
    """Compute a structure, and return the passes of its kernels."""
    kernels, found = {}, {}
    make, bind = text.KernelPasses.module, native.native_p.bind

    def module(self, dtype):
        made = make(self, dtype)
        kernels[made.name] = self
        return made

    def bound(*arrays, module, **others):
        kernel = kernels[module.name]
        rows, nodes = 0, 0
        for entry, array in zip(kernel.arguments.entries, arrays, strict=False):
            size = array.shape[0]
            if entry.rows == text.ROWS:
                rows = size
            elif entry.rows in (text.NODES, text.NODES_AND_ONE):
                nodes = size - (entry.rows == text.NODES_AND_ONE)
        found[module.name] = [
            Counted(
                one.count or one.num_units(rows, nodes),
                one.row_cost * (rows or 1) + one.node_cost * nodes * (one.axis == text.NODES),
            )
            for one in kernel.passes
        ]
        return bind(*arrays, module=module, **others)

    def compiled(self, *arguments):
        made = program_of(self, *arguments)
        programs.append(made.as_text())
        return made

    programs, program_of = [], Kept._program
    text.KernelPasses.module, native.native_p.bind = module, bound
    Kept._program = compiled
    try:
        atoms.calc = Calculator(run, backend="llvm", **options)
        atoms.get_potential_energy()
    finally:
        text.KernelPasses.module, native.native_p.bind = make, bind
        Kept._program = program_of
    [program] = programs
    called = [re.findall(f'custom_call_target="{name}"', program) for name in found]
    return [
        one
        for passes, calls in zip(found.values(), called, strict=True)
        for one in passes * len(calls)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("structure")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # nothing that was compiled before is found
        jax.config.update("jax_compilation_cache_dir", folder)
        passes = record(options.run, ase.io.read(options.structure), dtype=options.dtype)
    total = sum(one.work for one in passes)
    print(f"{len(passes)} passes of {total:.3g} operations")
    results = Record(options.json)
    for threads in options.threads:
        longest = sum(one.longest(threads) for one in passes)
        alone = sum(one.work for one in passes if one.threads(threads) == 1)
        row = {"threads": threads, "speedup": total / longest, "on_one": alone / total}
        results.add(row)
        print(f"{threads} threads: {total / longest:.2f} times; {alone / total:.1%} runs on one")


if __name__ == "__main__":
    main()
