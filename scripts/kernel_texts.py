"""Print a hash of the text of every generated kernel: what a refactoring must keep.

    python scripts/kernel_texts.py > before.txt      # and after the change, then diff

Triton kernels of the products in `benchmarks/gpu/cases.py` (all orders, three dtypes) and of a
training step of the four networks; LLVM modules of the same steps. Nothing is compiled.
"""

import hashlib
import sys
from pathlib import Path
from unittest import mock

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu import steps as networks
from benchmarks.gpu.cases import CASES
from benchmarks.launches import tetris as tetris_launches
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.text import with_handler
from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.primitives import lowering


def show(case: str, name: str, text: str):
    print(case, name.rsplit("_", 1)[0], hashlib.sha256(text.encode()).hexdigest()[:16], flush=True)


def step(name: str, backend: str):
    if name == "tetris":
        return tetris_launches.case(backend)
    return networks.training_step(name, backend, 135, 2_700)


def main(cases=CASES, steps=("tetris", "nequip", "mace", "allegro")):
    for name, case in cases.items():
        for order, form in case.forms().items():
            for dtype in ("float32", "float64", "bfloat16"):
                for n, kernel in enumerate(plan.kernels(form, dtype)):
                    show(f"{name} {order} {dtype} {n}", kernel.spec.name, kernel.spec.source)
    for name in steps:
        function, args = step(name, "triton")
        for n, spec in enumerate(lowering._specs(jax.jit(function).trace(*args).jaxpr.jaxpr)):
            show(f"{name} triton {n}", spec.name, spec.source)
        texts: list[tuple[str, str]] = []

        def register(*module, texts=texts) -> str:
            texts.append(module[:2])
            return module[0]

        function, args = step(name, "llvm")
        args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
        with mock.patch.object(machine, "register", register):
            jax.jit(function).lower(*args)
        for n, (module, text) in enumerate(sorted(set(texts))):
            show(f"{name} llvm {n}", module, with_handler(text, module))


if __name__ == "__main__":
    main()
