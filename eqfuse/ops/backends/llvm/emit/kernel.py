"""A form as functions of LLVM IR: which passes over the graph, and what a pass does.

A pass owns the receivers, the senders or the rows. It takes one node after the other (or one block
of rows), and the edges of a node in blocks. The numbers that no channel enters are computed for a
block at once, one edge in each lane. Then every group of paths runs over the channels, and inside
over the edges of the block: sums of the node stay in registers from edge to edge, channels fill the
lanes. Every node and row is computed by one thread, in an order that depends on nothing else.
"""

from eqfuse.ops.backends.llvm.emit.arguments import Arguments
from eqfuse.ops.backends.llvm.emit.groups import Groups
from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.layout import Copies
from eqfuse.ops.backends.llvm.emit.module import SIGNATURE, Axis, Pass, Units
from eqfuse.ops.backends.llvm.emit.parts import PTR, boundary
from eqfuse.ops.backends.llvm.emit.plan import Plan
from eqfuse.ops.backends.llvm.emit.rows import RowsEmitter
from eqfuse.ops.ir.operands import Index


def write_pass(plan: Plan, arguments: Arguments, copies: Copies, name: str, sums=None) -> Pass:
    """Return the pass that computes the outputs of a plan.

    Args:
      sums: of the outputs in `plan.sums`, their copies, as `parts.Sums`.
    """
    f = Function(f"define internal void @{name}{SIGNATURE}", copies.dtype)
    base = {
        key: arguments.load(f, "copy" if plan.is_copied(key) else key[0], key[1])
        for key in plan.operands()
    }
    arrays = {n: arguments.load(f, "index", n) for n in plan.index_arrays()}
    rows = RowsEmitter(plan, f, copies, base, arrays)
    groups = Groups(plan, f, rows)
    rows.sums = sums or {}
    if plan.parts:
        rows.num_rows = f.load_index(arrays[PTR], "%rows")
    rows.begin_pass()
    if plan.parts:
        with f.loop("%end", start="%begin") as parts:
            for key, copy in sums.items():
                array = arguments.load(f, "sum", key[1])
                rows.base[key], rows.marks[key] = copy.places(f, array, parts.index)
                f.zero(rows.marks[key], f.times("%rows", f.bytes))
            ends = parts.index, f.plus(parts.index, 1)
            first, last = (boundary(f, end, plan.parts, arrays) for end in ends)
            _write_units(plan, f, rows, groups, arrays, first, last)
    else:
        _write_units(plan, f, rows, groups, arrays, "%begin", "%end")
    rows.finish_pass()
    by_row = plan.reduce_over is Index.ROW
    units = Units(Axis.ROWS, plan.block) if by_row else Units(Axis.NODES, count=plan.parts)
    return Pass(name, f.text(), units, groups.cost, scratch=plan.scratch)


def _write_units(plan: Plan, f: Function, rows: RowsEmitter, groups: Groups, arrays, first, last):
    """Write the units from `first` to `last`, with all their rows."""
    with f.loop(last, start=first) as units:
        start, stop = _rows_of_unit(plan, f, arrays, units.index)
        rows.begin_unit(units.index)
        with f.loop(stop, start=start, step=plan.block) as blocks:
            left = f.value(f"sub nsw i64 {stop}, {blocks.index}")
            write_block(plan, f, rows, groups, units.index, blocks.index, left)
        rows.finish_unit(units.index)


def _rows_of_unit(plan: Plan, f: Function, arrays, unit: str) -> tuple[str, str]:
    if plan.reduce_over is Index.ROW:
        start = f.times(unit, plan.block)
        return start, f.minimum(f.plus(start, plan.block), "%rows")
    ptr = arrays[plan.reduce_over.edge_arrays[1]]
    return f.load_index(ptr, unit), f.load_index(ptr, f.plus(unit, 1))


def write_block(plan: Plan, f: Function, rows: RowsEmitter, groups: Groups, unit, start, left):
    """Write the rows of a unit from `start` on: `left` of them, but at most a block."""
    count = f.minimum(left, str(plan.block))
    with f.loop(count) as loop:
        rows.begin_row(unit, start, loop.index)
    plan.scalars.write(f, f.at("%scratch", plan.table), plan.widest)
    for group in groups.groups:
        groups.write(group, count)
    if any(key in plan.row_place and key[0] == "out" for key in plan.operands()):
        with f.loop(count) as loop:
            rows.finish_row(loop.index)
