"""Activations of scalars of rows, as a function or a pass of a kernel."""

from eqfuse.ops.backends.llvm.emit.arguments import ROWS, Arguments
from eqfuse.ops.backends.llvm.emit.choices import Machine
from eqfuse.ops.backends.llvm.emit.elementwise import FunctionEmitter
from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.module import SIGNATURE, Axis, KernelPasses, Pass, Units
from eqfuse.ops.ir.activated import Activated

HIGHEST = 2
"""The highest derivative that is written out."""
OPERATIONS = 40
"""Vector operations of an activation and its slope, about."""


def write(activated: Activated, dtype: str, machine: Machine) -> KernelPasses:
    """Return the pass that computes activations of all rows."""
    arguments = Arguments(dtype)
    arguments.add(("in", 0), ROWS, activated.rows.size, "row")
    arguments.end()
    for n in range(len(activated.orders)):
        arguments.add(("out", n), ROWS, activated.size, f"activations {n}")
    f = Function(f"define internal void @activate{SIGNATURE}", dtype)
    f.widest = machine.vector_bytes // f.bytes
    source, *targets = (arguments.load(f, *key) for key in list(arguments.numbers))
    with f.loop("%end", start="%begin") as rows:
        read = f.at(source, rows.index, activated.rows.size * f.bytes)
        places = [f.at(target, rows.index, activated.size * f.bytes) for target in targets]
        cost = write_row(f, activated, dtype, read, places)
    passes = [Pass("activate", f.text(), Units(Axis.ROWS), cost)]
    return KernelPasses(arguments, {}, passes, (), (), frozenset(f.declared))


def write_row(
    f: Function, activated: Activated, dtype: str, source: str, targets: list[str]
) -> int:
    """Write the activations of a row that starts at `source`, and return what they cost.

    Args:
      targets: where the rows of the results start, one for each order.
    """
    cost = 0
    width = f.bytes
    for part, (offset, mul, _) in zip(activated.parts, activated.places(), strict=True):
        read = f.at(source, part.offset, width)
        places = [f.at(target, offset, width) for target in targets]
        for loop, lanes in f.vector_loops(mul):
            emitter = FunctionEmitter(f, lanes)
            x = emitter.load(read, dtype, max(mul, 2), loop.index)
            for order, place in zip(activated.orders, places, strict=True):
                value = emitter.activated(part.name, order, x, part.scale, dtype)
                emitter.store(value, place, dtype, loop.index)
        cost += OPERATIONS * -(-mul // f.widest)
    return cost


def is_written(activated: Activated) -> bool:
    """Return whether all of its orders are written out."""
    return max(activated.orders) <= HIGHEST
