"""What the programs of a linear form's kernel compute: jobs, tiles, and how many programs.

A job is a block of an output, with some of the programs. A wide tile reads its factors less often,
and there are fewer of them to share out.
"""

import dataclasses

from eqfuse.ops.backends.triton.emit.emitter import SLICE, power_of_two
from eqfuse.ops.ir.linear_form import LinearForm, Rows, Term, Weights

TILE = 32
WIDE_TILE = 64
MANY_PROGRAMS, DEEP_PROGRAMS = 264, 128
"""Programs of wide tiles from which on tiles are wide: two for each multiprocessor of an H100; of
sums of at least `DEEP` terms about one, since most of their time is in reads of shared memory.
"""
DEEP = 96


@dataclasses.dataclass(frozen=True)
class Job:
    """A block of an output and the terms that add to it; for weights, block is 0."""

    output: int
    block: int
    terms: tuple[Term, ...]


def jobs(linear_form: LinearForm) -> list[Job]:
    """Return what the programs of a kernel compute, also blocks that no term adds to."""
    result: dict[tuple[int, int], list[Term]] = {}
    for o, operand in enumerate(linear_form.outputs):
        for b in range(len(operand.blocks) if isinstance(operand, Rows) else 1):
            result[o, b] = []
    for term in linear_form.terms:
        o = linear_form.output_of(term)
        result[o, _output_block(linear_form, term)].append(term)
    return [Job(o, b, tuple(terms)) for (o, b), terms in result.items()]


def _output_block(linear_form: LinearForm, term: Term) -> int:
    n = len(linear_form.inputs)
    for slot in (term.x, term.z):
        if slot is not None and slot.operand >= n:
            return slot.block
    return 0


def side(size: int, widest: int) -> int:
    """Return the rows or the columns of a tile of an output that has `size` of them."""
    return min(max(power_of_two(size), SLICE), widest)


def tile(linear_form: LinearForm, dtype: str, num_rows: int, num_parts: int) -> int:
    """Return the rows and columns of a tile, at most: a wide one reads its factors less often."""
    if dtype == "float64" or linear_form.num_sets:  # two registers for a value; few rows for a set
        return TILE
    wide = programs(linear_form, num_rows, num_parts, WIDE_TILE)
    deep = operations(linear_form, num_rows) >= 2 * DEEP * WIDE_TILE**2 * wide
    return WIDE_TILE if wide >= (DEEP_PROGRAMS if deep else MANY_PROGRAMS) else TILE


def operations(linear_form: LinearForm, num_rows: int) -> int:
    """Return the additions and multiplications of a linear form."""
    total = 0
    for term in linear_form.terms:
        z = linear_form.operands[term.z.operand].blocks[term.z.block]
        x = linear_form.operands[term.x.operand].blocks[term.x.block].mul if term.x else 1
        total += 2 * num_rows * z.dim * z.mul * x
    return total


def programs(linear_form: LinearForm, num_rows: int, num_parts: int, tile: int) -> int:
    """Return how many programs the kernel has."""
    return sum(_programs(linear_form, job, num_rows, num_parts, tile) for job in jobs(linear_form))


def _programs(linear_form: LinearForm, job: Job, num_rows: int, num_parts: int, tile: int) -> int:
    operand = linear_form.outputs[job.output]
    if isinstance(operand, Weights):
        tiles = -(-operand.shape[-1] // side(operand.shape[-1], tile))
        if len(operand.shape) == 2:
            tiles *= -(-operand.shape[0] // side(operand.shape[0], tile))
        return tiles * max(linear_form.num_sets, 1) * num_parts
    block = operand.blocks[job.block]
    if linear_form.num_sets:
        return num_rows * -(-block.mul // side(block.mul, WIDE_TILE))
    return -(-num_rows * block.dim // tile) * -(-block.mul // side(block.mul, tile))
