"""The module of a form: a pass for each of what it sums over, and the copies that they read."""

import functools

from eqfuse.ops.backends.llvm import linear
from eqfuse.ops.backends.llvm.channels import Groups
from eqfuse.ops.backends.llvm.layout import Copies, Layout, Machine, Plan
from eqfuse.ops.backends.llvm.row_access import RowsEmitter
from eqfuse.ops.backends.llvm.text import (
    ENDS_OF,
    INDEX_ROLES,
    NODE_INDEX,
    NODES,
    ROWS,
    SENDER_INDEX,
    SENDERS,
    Arguments,
    Function,
    KernelPasses,
    Module,
    Pass,
)
from eqfuse.ops.ir.form import Form, Index, reductions
from eqfuse.ops.ir.program import BYTES

ENDS = NODE_INDEX, SENDER_INDEX
AXES = {Index.ROW: ROWS, Index.SENDER: SENDERS, Index.RECEIVER: NODES, Index.SHARED: -1}


def write_pass(plan: Plan, arguments: Arguments, copies: Copies) -> Pass:
    """Return the pass that computes the outputs of a plan."""
    name = f"pass_{plan.reduce_over.value}"
    f = Function(copies.dtype)
    base = {
        key: arguments.load(f, "copy" if plan.is_copied(key) else key[0], key[1])
        for key in plan.operands()
    }
    arrays = {n: arguments.load(f, "index", n) for n in plan.index_arrays()}
    rows = RowsEmitter(plan, f, copies, base, arrays)
    groups = Groups(rows)
    by_row = plan.reduce_over is Index.ROW
    rows.begin_pass()
    with f.loop("%end", start="%begin") as loop:
        if by_row:
            start = f.times(loop.index, plan.block)
            stop = f.minimum(f.plus(start, plan.block), "%rows")
        else:
            ptr = arrays[plan.reduce_over.edge_arrays[1]]
            start = f.load_index(ptr, loop.index)
            stop = f.load_index(ptr, f.plus(loop.index, 1))
        rows.begin_unit(loop.index)
        groups.write_rows(loop.index, start, stop)
        rows.finish_unit(loop.index)
    rows.finish_pass()
    size = plan.block if by_row else 1
    return Pass(name, f, AXES[plan.reduce_over], size, row_cost=groups.cost, scratch=plan.scratch)


@functools.lru_cache(maxsize=512)
def generate(form: Form, dtype: str, machine: Machine) -> Module:
    """Return the module that computes a form on operands of one dtype, "float32" or "float64"."""
    return write(form, dtype, machine).module()


def write(form: Form, dtype: str, machine: Machine) -> KernelPasses:
    """Return the passes that compute a form."""
    if form.has_matrices:
        return linear.write(form, dtype, machine)
    widest = machine.vector_bytes // BYTES[dtype]
    copies = Copies(dtype, widest)
    passes = reductions(form)
    copied = _copied(form, passes, widest)
    plans = [
        Plan(form, reduce_over, outputs, copied, machine, dtype, prefetches=True)
        for reduce_over, outputs in passes.items()
    ]
    index_arrays = dict.fromkeys(name for plan in plans for name in plan.index_arrays())
    index_arrays |= {ENDS_OF[n][0]: None for n in index_arrays if n in ENDS_OF}  # for the checks
    # they are checked in this order: errors of senders and receivers are the clearest
    index_arrays = tuple(sorted(index_arrays, key=lambda n: INDEX_ROLES[n][1] not in ENDS))
    arguments = _arguments(form, dtype, index_arrays, copied)
    written = []
    for index in (Index.SENDER, Index.RECEIVER):
        part = {i: layout for i, layout in copied.items() if form.inputs[i].index is index}
        written += [_copy_pass(form, part, arguments, copies, index)] if part else []
    written += [write_pass(p, arguments, copies) for p in plans]
    return KernelPasses(arguments, copies.functions, written)


def _copied(form: Form, passes, widest: int) -> dict[int, Layout]:
    """Return the inputs by node that edges of some pass read, and that have to be packed for it."""
    layouts = {}
    for reduce_over, outputs in passes.items():
        paths = (p for p in form.paths if p.output.operand in outputs)
        for i in {s.operand for p in paths for s in p.factors}:
            operand = form.inputs[i]
            if operand.channels and operand.index.is_node and operand.index is not reduce_over:
                used = {s.segment for p in form.paths for s in p.factors if s.operand == i}
                layouts[i] = Layout.of(operand, used, widest)
    return {i: layout for i, layout in sorted(layouts.items()) if layout.packed}


def _copy_pass(form: Form, copied, arguments: Arguments, copies: Copies, index: Index) -> Pass:
    f = Function(copies.dtype)
    pointers = {i: (arguments.load(f, "in", i), arguments.load(f, "copy", i)) for i in copied}
    cost = 0
    with f.loop("%end", start="%begin") as nodes:
        for i, layout in copied.items():
            row = f.at(pointers[i][0], nodes.index, form.inputs[i].size * f.bytes)
            copy = f.at(pointers[i][1], nodes.index, layout.size * f.bytes)
            copies.call("pack", f, layout, row, copy)
            cost += 4 * layout.size // layout.widest
    return Pass(f"pass_copy_{index.value}", f, AXES[index], node_cost=cost)


def _arguments(form: Form, dtype: str, index_arrays, copied: dict[int, Layout]) -> Arguments:
    arguments = Arguments(dtype)
    for i, operand in enumerate(form.inputs):
        axis, width = AXES[operand.index], operand.size
        if operand.table:  # an array that all rows share
            axis, width = AXES[Index.SHARED], operand.table.intervals * operand.table.order * width
        arguments.add(("in", i), axis, width, operand.name)
    arguments.add_indices(index_arrays)
    arguments.end()
    for o, operand in enumerate(form.outputs):
        arguments.add(("out", o), AXES[operand.index], operand.size, operand.name)
    for i, layout in copied.items():
        operand = form.inputs[i]
        arguments.add(("copy", i), AXES[operand.index], layout.size, f"copy of {operand.name}")
    return arguments
