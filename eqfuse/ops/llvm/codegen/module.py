"""The module of a form: its passes, and the description by which the runtime checks every call."""

import dataclasses
import functools
import hashlib

from eqfuse.ops.algebra.form import Form, Index
from eqfuse.ops.llvm.codegen import ir
from eqfuse.ops.llvm.codegen.kernel import SIGNATURE, Buffers, Pass, owners, write_pass
from eqfuse.ops.llvm.codegen.layout import Copies, Layout
from eqfuse.ops.llvm.codegen.plan import Machine, Plan

VERSION = 2
"""Of the generated code and its interface to the runtime; part of every kernel's name."""

DTYPES = {"float32": 11, "float64": 12, "int32": 4}  # XLA_FFI_DataType
DATA, NODE_INDEX, ROW_INDEX, OFFSETS = 0, 1, 2, 3  # as in runtime.py
ROWS, NODES, NODES_AND_ONE = 0, 1, 2
INDEX_ROLES = {
    "senders": (ROWS, NODE_INDEX),
    "receivers": (ROWS, NODE_INDEX),
    "receiver_order": (ROWS, ROW_INDEX),
    "sender_order": (ROWS, ROW_INDEX),
    "receiver_ptr": (NODES_AND_ONE, OFFSETS),
    "sender_ptr": (NODES_AND_ONE, OFFSETS),
    "index": (ROWS, NODE_INDEX),
    "order": (ROWS, ROW_INDEX),
    "offsets": (NODES_AND_ONE, OFFSETS),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the runtime checks of an array: [rows, width], or an index array [rows].

    Attributes:
      dtype, rank: of the array.
      rows: what its rows are; -n where there are n, whatever the call.
      width: elements of a row.
      role: what it holds.
      name: for errors.
    """

    dtype: int
    rank: int
    rows: int
    width: int
    role: int
    name: str

    @classmethod
    def of_index(cls, name: str) -> "Entry":
        rows, role = INDEX_ROLES[name]
        return cls(DTYPES["int32"], 1, rows, 0, role, name)


@dataclasses.dataclass(frozen=True)
class Module:
    """A form as LLVM IR.

    Called with the form's inputs, then `index_arrays`; results are the outputs, then an array
    [num_nodes, width] of scratch memory for each of `copies`.
    """

    name: str
    text: str
    index_arrays: tuple[str, ...]
    copies: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def generate(form: Form, dtype: str, machine: Machine) -> Module:
    """The module that computes a form on operands of one dtype, "float32" or "float64"."""
    widest = machine.vector_bytes // ir.BYTES[dtype]
    copies, buffers = Copies(dtype, widest), Buffers()
    passes = owners(form)
    copied = _copied(form, passes, widest)
    plans = [
        Plan(form, owner, outputs, copied, machine, dtype) for owner, outputs in passes.items()
    ]
    index_arrays = dict.fromkeys(name for plan in plans for name in plan.index_arrays())
    # they are checked in this order: senders and receivers say best what is wrong with edges
    index_arrays = tuple(sorted(index_arrays, key=lambda n: INDEX_ROLES[n][1] != NODE_INDEX))
    keys = [("in", i) for i in range(len(form.inputs))]
    keys += [("index", name) for name in index_arrays]
    keys += [("out", o) for o in range(len(form.outputs))]
    keys += [("copy", i) for i in copied]
    buffers.numbers.update({key: n for n, key in enumerate(keys)})
    written = [_copy_pass(form, copied, buffers, copies)] if copied else []
    written += [write_pass(p, buffers, copies, f"pass_{p.owner.value}") for p in plans]

    entries = _entries(form, dtype, keys, copied)
    texts = [ir.declarations(dtype), *copies.functions.values(), *(p.text for p in written)]
    text, name = assembled(texts, entries, len(form.inputs) + len(index_arrays), written)
    widths = tuple(layout.size for layout in copied.values())
    return Module(name, text, index_arrays, widths)


def _copied(form: Form, passes, widest: int) -> dict[int, Layout]:
    """Inputs by node that some pass reads for every edge, and whose layout does not serve."""
    copied = {}
    for owner, outputs in passes.items():
        part = form.restrict(tuple(o in outputs for o in range(len(form.outputs))))
        for i, used in enumerate(part.used_inputs()):
            operand = form.inputs[i]
            if used and operand.channels and operand.index.is_node and operand.index is not owner:
                slots = {s for p in form.paths for s in p.factors if s.operand == i}
                layout = Layout.of(operand, {s.segment for s in slots}, widest)
                if layout.packed:
                    copied[i] = layout
    return dict(sorted(copied.items()))


def _copy_pass(form: Form, copied, buffers: Buffers, copies: Copies) -> Pass:
    f = ir.Function(f"define internal void @pass_copy{SIGNATURE}", copies.dtype)
    pointers = {i: (buffers.load(f, "in", i), buffers.load(f, "copy", i)) for i in copied}
    cost = 0
    with f.loop("%end", start="%begin") as nodes:
        for i, layout in copied.items():
            row = f.at(pointers[i][0], nodes.index, form.inputs[i].size * f.bytes)
            copy = f.at(pointers[i][1], nodes.index, layout.size * f.bytes)
            copies.pack(f, layout, row, copy)
            cost += 4 * layout.size // layout.widest
    return Pass("pass_copy", f.text(), 0, 0, cost, 0)


def _entries(form: Form, dtype: str, keys, copied) -> list[Entry]:
    entries = []
    for side, which in keys:
        if side == "index":
            entries.append(Entry.of_index(which))
            continue
        operand = (form.outputs if side == "out" else form.inputs)[which]
        width = copied[which].size if side == "copy" else operand.size
        rows = {Index.ROW: ROWS, Index.ONE: -1}.get(operand.index, NODES)
        name = f"{'copy of ' if side == 'copy' else ''}{operand.name}"
        entries.append(Entry(DTYPES[dtype], 2, rows, width, DATA, name))
    return entries


def assembled(texts, entries: list[Entry], num_arguments: int, passes) -> tuple[str, str]:
    """A module's text and its name: functions, what the runtime checks and runs, the handler.

    Args:
      texts: of the functions.
      entries: for the arguments, then for the results.
      passes: in the order in which they run.
    """
    names, checks = [], []
    for n, entry in enumerate(entries):
        text = entry.name.encode() + b"\\00"
        names.append(f'@name{n} = internal constant [{len(text) - 2} x i8] c"{text.decode()}"')
        words = (entry.dtype, entry.rank, entry.rows, entry.width, entry.role)
        numbers = ", ".join(f"i64 {w}" for w in words)
        checks.append(f"{{i64, i64, i64, i64, i64, ptr}} {{{numbers}, ptr @name{n}}}")
    runs = [
        "{ptr, i64, i64, i64, i64, i64} {"
        f"ptr @{p.name}, i64 {p.block}, i64 {p.row_cost}, i64 {p.node_cost}, i64 {p.scratch}, "
        f"i64 {p.units}}}"
        for p in passes
    ]
    counts = f"i64 {num_arguments}, i64 {len(entries) - num_arguments}, i64 {len(passes)}"
    text = "\n".join(
        [
            *texts,
            *names,
            f"@buffers = internal constant [{len(checks)} x {{i64, i64, i64, i64, i64, ptr}}] "
            f"[{', '.join(checks)}]",
            f"@passes = internal constant [{len(runs)} x {{ptr, i64, i64, i64, i64, i64}}] "
            f"[{', '.join(runs)}]",
            "@spec = internal constant {i64, i64, i64, ptr, ptr} "
            f"{{{counts}, ptr @buffers, ptr @passes}}\n",
        ]
    )
    name = f"eqfuse_{VERSION}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    text += (
        "declare ptr @eqfuse_call(ptr, ptr)\n"
        f"define ptr @{name}(ptr %frame) {{\n"
        "  %r = call ptr @eqfuse_call(ptr %frame, ptr @spec)\n  ret ptr %r\n}\n"
    )
    return text, name
