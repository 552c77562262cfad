"""Faults planted in the text of a kernel are each caught, by the check that is meant for them."""

import functools
import re

import pytest

from tests.emulator import cases
from tests.emulator.errors import (
    DivergentBranchError,
    MisalignedError,
    NeverWrittenError,
    OutOfBoundsError,
    RaceError,
    UnknownInstructionError,
)

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

LOAD = r"ld\.global\.b32 \{ (%r\d+) \}, \[ (%rd\d+) \+ 0 \]"
STORE = r"(?:@%p\d+ )?st\.global\.b32 \[ %rd\d+ \+ 0 \], \{ %r\d+ \};"
PRODUCT = "tetris-1", "backward"
"""A block for each sender, which stores gradients of its edges, and one of its node."""
MATMUL = "fused rows-16-l1", "forward"
"""A kernel whose four warps exchange values in shared memory."""
LINEAR = "linear 16-l1", "backward"
"""A kernel that sums over five rows, of more that it has room for."""

BARRIER = r"bar\.sync\s+0;"
# around the loop over edges, if the number of the thread is large enough
CONDITION = r"(?s)mov\.u32\s+(%r\d+), (%tid\.x;.*?setp\.ge\.s32\s+%p\d+,) %r\d+,"
# of the second and the third of three components that lie next to each other
ADDRESSES = r"(?s)(add\.s64\s+%rd\d+, (%rd\d+),) 4;(.*?add\.s64\s+%rd\d+, \2,) 8;"
# of the gradients of an edge's 15 components, in bytes
STRIDE = r"(mul\.wide\.s32\s+%rd\d+, %r\d+,) 60;"
TO_SHARED = r"(?:stmatrix|(?:@%p\d+ )?st\.shared)[^;]*;"

# the kernel, what of it is replaced by what, which of the matches, and what is found
FAULTS = {
    "a removed barrier": (MATMUL, BARRIER, "", 0, RaceError, "without a barrier between"),
    "a stride too small": (PRODUCT, STRIDE, r"\1 56;", 0, RaceError, "output"),
    "a stride too large": (PRODUCT, STRIDE, r"\1 64;", 0, OutOfBoundsError, "outside the 240 by"),
    "an offset one too far": (  # the end of the last node's edges, in the row pointers
        *(PRODUCT, LOAD, r"ld.global.b32 { \1 }, [ \2 + 4 ]", 1),
        *(OutOfBoundsError, "outside the 16 bytes of input"),
    ),
    "an offset within an element": (
        *(PRODUCT, LOAD, r"ld.global.b32 { \1 }, [ \2 + 2 ]", 0),
        *(MisalignedError, "not aligned to 4 bytes"),
    ),
    "swapped loads": (PRODUCT, ADDRESSES, r"\1 8;\3 4;", 0, AssertionError, "from e3nn-jax, over"),
    "a removed store": (PRODUCT, STORE, "", 0, NeverWrittenError, "never written, and"),
    "a removed store to shared memory": (
        *(MATMUL, TO_SHARED, "", 0),
        *(NeverWrittenError, "shared memory is read and was never written"),
    ),
    "a register without a value": (
        *(PRODUCT, r"mul\.f32\s+(%r\d+), [^;]*;", "", 0),
        *(NeverWrittenError, "register %r\\d+ is read"),
    ),
    "a masked load without zeros beside it": (
        *(LINEAR, r"mov\.u32 %r\d+, %r\d+;(?=[^@]*@%p\d+ ld\.global)", "", 24),
        *(AssertionError, "nan eps from e3nn-jax"),
    ),
    "threads that part": (
        *(PRODUCT, CONDITION, r"mov.u32 \1, \2 \1,", 0),
        *(DivergentBranchError, "go different ways"),
    ),
    "an atomic sum": (
        *(PRODUCT, STORE, "atom.global.add.f32 %r1, [%rd1], %r2;", 0),
        *(UnknownInstructionError, "atom.global.add.f32.*atomic"),
    ),
    "an unknown instruction": (
        *(PRODUCT, r"mul\.f32", "mul.sat.f32", 0),
        *(UnknownInstructionError, "mul.sat.f32.*is not emulated"),
    ),
}


def check(case, mend=None):
    cases.check(*case, "float32", "sm_90", mend)


@functools.cache
def passes(case) -> bool:
    """Return True: the text that ships has no fault."""
    check(case)
    return True


def refused(case, pattern, replacement, number, error, message):
    """See that a text without match `number` of a pattern is refused, and that there is one."""
    changed = []

    def mend(text: str) -> str:
        matches = list(re.finditer(pattern, text))
        if len(matches) <= number:  # another kernel
            return text
        match = matches[number]
        changed.append(match)
        return text[: match.start()] + match.expand(replacement) + text[match.end() :]

    with pytest.raises(error, match=message):
        check(case, mend)
    assert changed


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_by_the_check_that_is_meant_for_it(fault):
    assert passes(FAULTS[fault][0])
    refused(*FAULTS[fault])


@pytest.mark.slow
def test_each_removed_barrier_is_a_race():
    texts = []
    check(MATMUL, cases.recorded(texts))
    barriers = sum(len(re.findall(BARRIER, text)) for text in texts)
    assert barriers > 10
    for number in range(barriers):
        refused(MATMUL, BARRIER, "", number, RaceError, "without a barrier between")
