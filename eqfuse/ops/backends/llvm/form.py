"""The module of a form: a pass for each of what it sums over, and the copies that they read."""

import functools

from eqfuse.ops.backends.llvm import text
from eqfuse.ops.backends.llvm.channels import Groups
from eqfuse.ops.backends.llvm.layout import (
    PTR,
    Copies,
    Layout,
    Machine,
    Plan,
    Sums,
    boundary,
    is_cut,
    vectors,
)
from eqfuse.ops.backends.llvm.rows import RowsEmitter
from eqfuse.ops.backends.llvm.text import (
    INDEX_ROLES,
    NODE_INDEX,
    NODES,
    ROWS,
    SIGNATURE,
    Arguments,
    Axis,
    Function,
    KernelPasses,
    Module,
    Pass,
    Units,
)
from eqfuse.ops.ir.form import Form, Index, reductions


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


@functools.lru_cache(maxsize=1024)
def generate(form: Form, dtype: str, machine: Machine, parts: int = 0) -> Module:
    """Return the module that computes a form on operands of one dtype, "float32" or "float64".

    Args:
      parts: copies of what is summed by sender, where going by receivers is worth that; or 0.
    """
    return write(form, dtype, machine, parts).module(dtype)


def write(form: Form, dtype: str, machine: Machine, parts: int = 0) -> KernelPasses:
    """Return the passes that compute a form."""
    widest = machine.vector_bytes // text.BYTES[dtype]
    copies = Copies(dtype, widest)
    passes = reductions(form)
    if parts and is_cut(form, lambda mul: machine.is_long(vectors(mul, widest))):
        passes = {Index.RECEIVER: list(range(len(form.outputs)))}
    else:
        parts = 0
    copied = _copied(form, passes, widest)
    plans = [
        Plan(form, reduce_over, outputs, copied, machine, dtype, prefetches=True, parts=parts)
        for reduce_over, outputs in passes.items()
    ]
    sums = {key: Sums(p.layouts[key], parts) for p in plans for key in sorted(p.sums)}
    index_arrays = dict.fromkeys(name for plan in plans for name in plan.index_arrays())
    # they are checked in this order: errors of senders and receivers are the clearest
    index_arrays = tuple(sorted(index_arrays, key=lambda n: INDEX_ROLES[n][1] != NODE_INDEX))
    arguments = _arguments(form, dtype, index_arrays, copied, sums)
    written = [_copy_pass(form, copied, arguments, copies)] if copied else []
    written += [
        write_pass(p, arguments, copies, f"pass_{p.reduce_over.value}", sums) for p in plans
    ]
    written += [
        s.write_pass(f"pass_sum_{o}", ("sum", o), ("out", o), copies, arguments)
        for (_, o), s in sums.items()
    ]
    widths = (*(layout.size for layout in copied.values()), *(s.width for s in sums.values()))
    return KernelPasses(arguments, copies.functions, written, index_arrays, widths)


def _copied(form: Form, passes, widest: int) -> dict[int, Layout]:
    """Return the inputs by node that edges of some pass read, and that have to be packed for it."""
    copied = {}
    for reduce_over, outputs in passes.items():
        part = form.restrict(tuple(o in outputs for o in range(len(form.outputs))))
        for i, used in enumerate(part.used_inputs()):
            operand = form.inputs[i]
            if (
                used
                and operand.channels
                and operand.index.is_node
                and operand.index is not reduce_over
            ):
                refs = {s for p in form.paths for s in p.factors if s.operand == i}
                layout = Layout.of(operand, {s.segment for s in refs}, widest)
                if layout.packed:
                    copied[i] = layout
    return dict(sorted(copied.items()))


def _copy_pass(form: Form, copied, arguments: Arguments, copies: Copies) -> Pass:
    f = text.Function(f"define internal void @pass_copy{SIGNATURE}", copies.dtype)
    pointers = {i: (arguments.load(f, "in", i), arguments.load(f, "copy", i)) for i in copied}
    cost = 0
    with f.loop("%end", start="%begin") as nodes:
        for i, layout in copied.items():
            row = f.at(pointers[i][0], nodes.index, form.inputs[i].size * f.bytes)
            copy = f.at(pointers[i][1], nodes.index, layout.size * f.bytes)
            copies.pack(f, layout, row, copy)
            cost += 4 * layout.size // layout.widest
    return Pass("pass_copy", f.text(), Units(Axis.NODES), node_cost=cost)


def _arguments(form: Form, dtype: str, index_arrays, copied: dict[int, Layout], sums) -> Arguments:
    arguments = Arguments(dtype)

    def add(side: str, n: int, operand, width: int, name: str):
        rows = {Index.ROW: ROWS, Index.SHARED: -1}.get(operand.index, NODES)
        arguments.add((side, n), rows, width, name)

    for i, operand in enumerate(form.inputs):
        add("in", i, operand, operand.size, operand.name)
    arguments.add_indices(index_arrays)
    arguments.end()
    for o, operand in enumerate(form.outputs):
        add("out", o, operand, operand.size, operand.name)
    for i, layout in copied.items():
        add("copy", i, form.inputs[i], layout.size, f"copy of {form.inputs[i].name}")
    for (_, o), s in sums.items():
        add("sum", o, form.outputs[o], s.width, f"sums of {form.outputs[o].name} by part")
    return arguments
