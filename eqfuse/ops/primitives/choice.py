"""Which kernels compute a fused op: what the argument `fused` asks for, and what "auto" chooses.

"auto" is what was measured on this device, see `measured`. Else it is a rule, whose bounds were
measured on a CPU and are predicted for a GPU, see benchmarks/results/fused.md.
"""

from __future__ import annotations

import enum
import math
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp

from eqfuse.ops.backends.llvm.linear import is_wide
from eqfuse.ops.backends.triton import form as walks
from eqfuse.ops.backends.triton import functions
from eqfuse.ops.ir.form import Index
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.products import Product
from eqfuse.ops.primitives import measured

MODES = ("auto", "always", "never")
_VARIABLE = "EQFUSE_FUSED"

FEWEST_ROWS = 256  # from which on one native kernel each way is faster than one for each part
LARGE = 2**32  # bytes of a product from which on it is computed in blocks, to fit into memory
BLOCK = 8192  # rows at a time: predicted 5% slower than all at once, where 2,048 are 25% slower
FEW_NODES = 135
LIGHT = 32 * 2**20  # bytes of matrices that the programs of all nodes read from a level-2 cache


class Kernels(enum.Enum):
    """What computes an op of a product, a Linear, a skip and a gate."""

    APART = "a kernel for each part, in every order of derivative"
    NATIVE = "on a CPU: one kernel, and one for each derivative"
    ROWS = "on a GPU, over rows: one kernel each way, second derivatives apart"
    BLOCKS = "on a GPU, over rows: the kernels of the parts, some rows at a time"
    MEASURED = "nothing yet: a function is traced to see which of its ops to measure"
    VALUE = "on a GPU, on a graph: one kernel for the value, its derivatives apart"
    """The sums of nodes are an output too, for the derivatives."""


class Choice(NamedTuple):
    """What computes an op, and a line for the user that says so and why."""

    kernels: Kernels
    text: str


def resolve_fused(fused: str | None) -> str:
    """Return "auto", "always" or "never", given what was asked for.

    Args:
      fused: "always" is one kernel forward and one backward, of the product, the Linear, the skip
        and the gate, or an error that says why there is none. On a GPU one or two more compute
        the gradients of parameters, and on a graph the backward is that of "never", which is a
        kernel for each of them. "auto" is what is measured or predicted to be faster (the page
        "What runs"). None is what the environment variable EQFUSE_FUSED says, or "auto".
    Raises:
      ValueError: an unknown name.

    Example:
      >>> ops.resolve_fused("never")
      'never'
    """
    asked = "fused"
    if fused is None:
        asked, fused = _VARIABLE, os.environ.get(_VARIABLE) or "auto"
    if fused not in MODES:
        raise ValueError(f"{asked} {fused!r} is unknown; choose one of {', '.join(MODES)}")
    return fused


def refuse(mode: str, reason: str) -> None:
    """Refuse "always" where there is a reason against it."""
    if mode == "always" and reason:
        raise ValueError(f"fused='always' cannot be done here: {reason}")


def choose(mode: str, fused: Fused, num_rows: int, num_nodes: int, backend: str, dtype) -> Choice:
    """Choose the kernels of a fused op; "always" is an error where there is no kernel of it."""
    if mode == "never":
        return Choice(Kernels.APART, "apart: fused='never' was asked for")
    if not fused.form.paths or not any(t.x is not None for t in fused.linear.linear_form.terms):
        return Choice(Kernels.APART, "apart: no path of the product leads to the Linear's output")
    reason = unsupported_reason(fused, backend, dtype)
    if mode == "always":
        refuse(mode, reason)
        return Choice(_whole(fused, backend), "fused: 'always' was asked for")
    if reason:
        return Choice(Kernels.APART, f"apart: {reason}")
    if measured.collecting.value and not jax.sharding.get_abstract_mesh().manual_axes:
        return Choice(Kernels.MEASURED, "not chosen yet: to be measured")
    problem = measured.Problem.of(fused, num_rows, num_nodes, backend, dtype)
    if found := measured.lookup(problem):
        word = "apart" if found.chosen == "APART" else "fused"
        return Choice(Kernels[found.chosen], f"{word}: measured, {found}")
    return _rule(fused, num_rows, num_nodes, backend, dtype)


def candidates(problem: measured.Problem) -> list[Kernels]:
    """Return what could compute an op that has kernels of its own; the rule's choice first."""
    rule = _rule(problem.op, problem.num_rows, problem.num_nodes, problem.backend, problem.dtype)
    whole = _whole(problem.op, problem.backend)
    others = [whole] if rule.kernels is Kernels.BLOCKS else [Kernels.APART, whole]
    return list(dict.fromkeys([rule.kernels, *others]))


def _whole(fused: Fused, backend: str) -> Kernels:
    """Return the kernels of a whole op."""
    if backend == "llvm":
        return Kernels.NATIVE
    return Kernels.VALUE if fused.summed else Kernels.ROWS


def _rule(fused: Fused, num_rows: int, num_nodes: int, backend: str, dtype) -> Choice:
    """Return what "auto" chooses where nothing was measured."""
    if backend != "llvm":
        return _auto_on_gpu(fused, num_rows, num_nodes, jnp.dtype(dtype))
    if num_rows < FEWEST_ROWS:
        return Choice(Kernels.APART, f"apart: fewer than {FEWEST_ROWS} rows")
    return Choice(Kernels.NATIVE, f"fused: {FEWEST_ROWS} rows or more")


def _auto_on_gpu(fused: Fused, num_rows: int, num_nodes: int, dtype) -> Choice:
    if not fused.summed:
        size = fused.form.outputs[0].size * num_rows * dtype.itemsize
        if size >= LARGE:
            return Choice(
                Kernels.BLOCKS, f"in blocks: the product would have {size / 2**30:.3g} GiB"
            )
        return Choice(Kernels.APART, f"apart: the product has less than {LARGE >> 30} GiB")
    weights = sum(math.prod(p.shape) for p in fused.linear.parameters)
    if fused.gate is None:
        return Choice(Kernels.APART, "apart: no gate follows the sums of nodes")
    if dtype.name != "float32":
        return Choice(Kernels.APART, f"apart: the sums of nodes are in {dtype.name}, not float32")
    if num_nodes > FEW_NODES:
        return Choice(Kernels.APART, f"apart: more than {FEW_NODES} nodes")
    if num_nodes * weights * dtype.itemsize > LIGHT:
        return Choice(Kernels.APART, "apart: every node would read the weights, which are large")
    return Choice(Kernels.VALUE, f"fused: the value, with a gate and up to {FEW_NODES} nodes")


def unsupported_reason(fused: Fused, backend: str, dtype) -> str:
    """Return why there is no kernel of a whole op, or ""."""
    if backend == "llvm":
        if dtype.name not in ("float32", "float64"):
            return f"native kernels of whole ops are of float32 and float64, not of {dtype.name}"
        if fused.summed:
            return "native kernels of whole ops are over rows, and this product is summed by node"
        if is_wide(fused.linear.linear_form):
            return "its matrices are so large that the matmuls of XLA are faster"
    elif backend != "triton":
        return f"backend {backend!r} computes op by op, and has no fused kernels"
    if any(operand.half for operand in fused.form.inputs):
        return "the kernels of whole ops have operands of one dtype, and weights are in bfloat16"
    acts = {tile.act for tile in fused.gate.tiles} if fused.gate and backend == "triton" else ()
    if unknown := sorted({function for act in acts for function in functions.unknown(act)}):
        return f"on a GPU kernels have no {', '.join(unknown)}, which an activation needs"
    if backend == "triton" and fused.summed:
        return walks.unsupported_reason(fused.form, dtype.name)
    if backend == "triton" and Index.SENDER in {o.index for o in fused.form.inputs}:
        return "on a GPU there are fused kernels over rows, none that reads rows of senders"
    return ""


def unsupported_product_reason(product: Product, backend: str) -> str:
    """Return why a product on a graph is not one form, or ""."""
    if not product.form.paths:
        return ""
    if product.repeated:
        return "x and y both have several channels, and products of edges are written to memory"
    if backend == "xla":
        return "backend 'xla' computes op by op, and has no fused kernels"
    return ""
