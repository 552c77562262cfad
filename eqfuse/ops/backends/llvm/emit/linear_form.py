"""A linear form as functions of LLVM IR: small matmuls, without transposes.

XLA multiplies matrices fast, but a row in e3nn's mul_ir is a matrix [mul, dim] whose channels lie
apart, which it transposes before and after, and the weights that each row chooses it copies for
each row. Here rows are read where they are, one number in all lanes, weights fill the lanes, and
only results are transposed, in registers. `linear_rows` and `linear_weights` write the passes.
"""

import functools

from eqfuse.ops.backends.llvm.emit import linear_rows, linear_weights
from eqfuse.ops.backends.llvm.emit.choices import Machine
from eqfuse.ops.backends.llvm.emit.linear_layouts import Layouts, write_copies
from eqfuse.ops.backends.llvm.emit.module import Axis, KernelPasses, Module, Pass, Units
from eqfuse.ops.ir.linear_form import LinearForm, Rows


@functools.lru_cache(maxsize=1024)
def generate(linear_form: LinearForm, dtype: str, machine: Machine) -> Module:
    """Return the module that computes a linear form in one dtype, "float32" or "float64"."""
    return write(linear_form, dtype, machine).module(dtype)


def write(linear_form: LinearForm, dtype: str, machine: Machine) -> KernelPasses:
    """Return the passes that compute a linear form."""
    layouts = Layouts(linear_form, dtype, machine)
    passes = [_copy_pass(layouts)] if layouts.packed else []
    if any(isinstance(o, Rows) for o in linear_form.outputs):
        passes.append(linear_rows.write_pass(layouts))
    passes += [linear_weights.write_pass(layouts, o) for o in layouts.gradients]
    widths = tuple(layouts.copy_width(block) for _, block in layouts.packed)
    functions = layouts.copies.functions
    return KernelPasses(layouts.arguments, functions, passes, layouts.index_arrays, widths)


def _copy_pass(layouts: Layouts) -> Pass:
    f = layouts.function("linear_copy")
    cost = write_copies(layouts, f)
    return Pass("linear_copy", f.text(), Units(Axis.ROWS), cost)
