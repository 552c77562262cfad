"""Kernels compiled for ARM of 64 bits on any machine: they are read and counted, not run."""

import collections
import re

import jax
import llvmlite.binding as llvm
import pytest

from benchmarks.gpu import steps
from eqfuse import models
from eqfuse.ops import shared_library as library
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.text import with_handler

TARGETS = {
    "aarch64-unknown-linux-gnu": ("generic", b"\x7fELF"),
    "arm64-apple-darwin23.0.0": ("apple-m1", b"\xcf\xfa\xed\xfe"),
}
LIBC = {
    *("calloc", "free", "madvise", "malloc", "sched_yield", "snprintf"),
    *("bzero", "memcpy", "memmove", "memset"),  # LLVM calls them where it sees fit
}
INSTRUCTION = re.compile(r"\s+([a-z][\w.]*)(?:\s+(.*))?")
"""Of the assembly: its name and its operands. Directives begin with a point."""


@pytest.fixture(scope="module")
def texts():
    """Return the kernels of one layer of MACE-MP-0 small, with forces, as exports write them."""
    jax.clear_caches()
    recorded = machine.recording(tuple(library.LEVELS["aarch64"].values()), "_arm")
    with recorded as texts, jax.enable_x64(False):
        potential = steps.potential_of(
            "mace", "llvm", **steps.PUBLISHED["mace-mp-s"] | {"layers": 1}
        )
        graph = steps.shapes_of_batch(100, 5000)
        shapes = steps.shapes_of(potential, graph)
        jax.jit(lambda params, graph: models.predict(potential, params, graph)).lower(shapes, graph)
    assert len(texts) > 10
    return {"eqfuse_runtime": machine.RUNTIME.read_text()} | {
        name: with_handler(text, name) for name, (text,) in texts.items()
    }


def compiled_for(triple: str, text: str) -> tuple[str, bytes]:
    """Return the assembly and the object code of a module."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple).create_target_machine(
        cpu=TARGETS[triple][0], opt=2, reloc="pic", jit=True
    )
    with llvm.parse_assembly(text, llvm.create_context()) as parsed:
        parsed.verify()
        return target.emit_assembly(parsed), target.emit_object(parsed)


def undefined(assembly: str) -> set[str]:
    """Return the symbols that calls, addresses and tables name, and that are not defined."""
    used = r"^\s+(?:bl?\s+|adrp\s+x\d+, (?::\w+:)?|\.[xq]word\s+|\.quad\s+)([A-Za-z_.][\w.]*)"
    defined = r"^([\w.]+):|^\.zerofill \w+,\w+,([\w.]+)"
    names = {name for pair in re.findall(defined, assembly, re.M) for name in pair}
    return {*re.findall(used, assembly, re.M)} - names


def counted(assembly: str) -> collections.Counter:
    """Count all instructions, fused multiply-adds, and vectors on the stack (also saved ones)."""
    count = collections.Counter()
    for match in map(INSTRUCTION.match, assembly.splitlines()):
        if match:
            name, operands = match[1].split(".")[0], match[2] or ""
            count["all"] += 1
            count["fma"] += name in ("fmla", "fmls", "fmadd", "fmsub", "fnmadd", "fnmsub")
            on_stack = name in ("ldr", "ldp", "ldur", "str", "stp", "stur") and "[sp" in operands
            count["spills"] += on_stack and bool(re.match(r"[qds]\d", operands))
    return count


@pytest.mark.parametrize("triple", TARGETS)
def test_kernels_of_a_network_compile_for_arm(triple, texts):
    """They call nothing but libc and the runtime, and keep their sums in registers."""
    total, missing = collections.Counter(), {}
    for name, text in texts.items():
        assembly, code = compiled_for(triple, text)
        assert code.startswith(TARGETS[triple][1])
        missing[name] = undefined(assembly)
        if name != "eqfuse_runtime":
            total += counted(assembly)
    prefix = "_" if "apple" in triple else ""  # of each symbol
    called = {name.removeprefix(prefix) for name in set().union(*missing.values())}
    assert called - LIBC == {"eqfuse_call"}
    assert {"malloc", "free"} < called
    assert f"{prefix}eqfuse_call" not in missing["eqfuse_runtime"]
    assert total["fma"] > 5000
    assert total["all"] < 4 * total["fma"]
    assert total["spills"] < 0.03 * total["fma"]
