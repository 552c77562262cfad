"""Faults planted in the text of a kernel are each caught, by the check that is meant for them."""

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
STORE = r"st\.global\.b32 \[ %rd\d+ \+ 0 \], \{ %r\d+ \};"
PRODUCT = "tetris-1", "backward"
"""A block for each sender, which stores gradients of its edges, and one of its node."""
MATMUL = "fused rows-16-l1", "forward"
"""A kernel whose four warps exchange values in shared memory."""


def replace(pattern: str, replacement, number: int = 0):
    """Return a change of a text: match `number` of a pattern is replaced.

    The pattern is that of the kernel to change; a text without it stays as it is, and `check`
    sees to it that some text was changed.
    """

    def mend(text: str) -> str:
        matches = list(re.finditer(pattern, text))
        if not matches:
            return text
        match = matches[number]
        mend.changed = True
        return text[: match.start()] + match.expand(replacement) + text[match.end() :]

    mend.changed = False
    return mend


def check(case, mend=None):
    cases.check(*case, "float32", "sm_90", mend)


def refused(case, mend, error, message: str) -> bool:
    """Return whether a text was changed; its fault is caught, and the text that ships is not."""
    check(case)
    with pytest.raises(error, match=message):
        check(case, mend)
    return mend.changed


def test_a_removed_barrier_is_a_race():
    assert refused(MATMUL, replace(r"bar\.sync\s+0;", ""), RaceError, "without a barrier between")


@pytest.mark.slow
def test_each_removed_barrier_is_a_race():
    barriers = []
    check(MATMUL, lambda text: (barriers.extend(re.findall(r"bar\.sync\s+0;", text)), text)[1])
    assert len(barriers) > 10
    for number in range(len(barriers)):
        mend = replace(r"bar\.sync\s+0;", "", number)
        with pytest.raises(RaceError, match="without a barrier between"):
            check(MATMUL, mend)
        assert mend.changed


def test_a_stride_too_small_lets_two_blocks_write_one_element():
    # of the gradients of an edge's 15 components, in bytes
    mend = replace(r"(mul\.wide\.s32\s+%rd\d+, %r\d+,) 60;", r"\1 56;")
    assert refused(PRODUCT, mend, RaceError, "output")


def test_a_stride_too_large_leaves_the_array():
    mend = replace(r"(mul\.wide\.s32\s+%rd\d+, %r\d+,) 60;", r"\1 64;")
    assert refused(PRODUCT, mend, OutOfBoundsError, "outside the 240 bytes")


def test_an_offset_one_too_far_leaves_the_array():
    # the end of the last node's edges, in the row pointers
    mend = replace(LOAD, r"ld.global.b32 { \1 }, [ \2 + 4 ]", number=1)
    assert refused(PRODUCT, mend, OutOfBoundsError, "outside the 16 bytes of input")


def test_an_offset_within_an_element_is_misaligned():
    mend = replace(LOAD, r"ld.global.b32 { \1 }, [ \2 + 2 ]", number=0)
    assert refused(PRODUCT, mend, MisalignedError, "not aligned to 4 bytes")


def test_a_swapped_pair_of_loads_gives_other_numbers():
    # of the second and the third of three components that lie next to each other
    addresses = r"(?s)(add\.s64\s+%rd\d+, (%rd\d+),) 4;(.*?add\.s64\s+%rd\d+, \2,) 8;"
    assert refused(
        PRODUCT, replace(addresses, r"\1 8;\3 4;"), AssertionError, "from e3nn-jax, over"
    )


def test_a_removed_store_leaves_an_output_unwritten():
    assert refused(PRODUCT, replace(STORE, ""), NeverWrittenError, "never written, and")


def test_a_removed_store_to_shared_memory_is_read_unwritten():
    mend = replace(r"(?:stmatrix|(?:@%p\d+ )?st\.shared)[^;]*;", "")
    assert refused(MATMUL, mend, NeverWrittenError, "shared memory is read and was never written")


def test_a_register_without_a_value_is_refused():
    mend = replace(r"mul\.f32\s+(%r\d+), [^;]*;", "")
    assert refused(PRODUCT, mend, NeverWrittenError, "register %r\\d+ is read")


def test_threads_that_go_different_ways_are_refused():
    # around the loop over edges, if the number of the thread is large enough
    condition = r"(%tid\.x;.*?setp\.ge\.s32\s+%p\d+,) %r\d+,"
    mend = replace("(?s)mov\\.u32\\s+(%r\\d+), " + condition, r"mov.u32 \1, \2 \1,")
    assert refused(PRODUCT, mend, DivergentBranchError, "go different ways")


def test_atomic_instructions_are_refused_by_name():
    mend = replace(STORE, "atom.global.add.f32 %r1, [%rd1], %r2;")
    assert refused(PRODUCT, mend, UnknownInstructionError, "atom.global.add.f32.*atomic")


def test_unknown_instructions_are_refused_by_name():
    mend = replace(r"mul\.f32", "mul.sat.f32")
    assert refused(PRODUCT, mend, UnknownInstructionError, "mul.sat.f32.*is not emulated")
