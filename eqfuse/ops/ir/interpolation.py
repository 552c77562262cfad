"""Interpolation in tables, as a form: each row reads the coefficients of its interval."""

import functools

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Operand, Path, Role, Segment, SegmentRef


@functools.cache
def interpolation(widths: tuple[int, ...], order: int) -> Form:
    """Return the form that reads tables by interval, which is in the place of the sender.

        out_k[e, u] = sum over n:  weights[e, n] * table_k[interval[e], n, u]

    Args:
      widths: of the tables.
      order: number of coefficients n of an interval.
    Returns:
      The form of the tables, [intervals, order * width] each, and the weights [rows, order].
    """
    tables = tuple(
        Operand(
            f"table_{k}",
            order * width,
            (Segment(0, width, order, 1, width),),
            channels=True,
            index=Index.SENDER,
            role=Role.LEFT,
        )
        for k, width in enumerate(widths)
    )
    weights = Operand(
        "weights", order, (Segment(0, 1, order, order),), channels=False, role=Role.RIGHT
    )
    outputs = tuple(
        Operand(f"out_{k}", width, (Segment(0, width, 1, 1),), channels=True, role=Role.OUTPUT)
        for k, width in enumerate(widths)
    )
    terms = tuple(((n, n, 0), 1.0) for n in range(order))
    paths = tuple(
        Path((SegmentRef(k, 0), SegmentRef(len(widths), 0)), SegmentRef(k, 0), terms)
        for k in range(len(widths))
    )
    return Form((*tables, weights), outputs, paths)
