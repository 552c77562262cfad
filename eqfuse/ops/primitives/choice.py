"""Whether a fused op is one kernel each way, or its product and its Linear are a kernel each.

The one place where that is decided, for the argument `fused` and EQFUSE_FUSED.
"""

from __future__ import annotations

import dataclasses
import math
import os

from eqfuse.ops.backends.llvm.emit.linear_layouts import is_wide
from eqfuse.ops.backends.triton.emit import plan
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.fused import Fused, backward_form
from eqfuse.ops.ir.operands import Index
from eqfuse.ops.ir.product_parts import Product

MODES = ("auto", "always", "never")
_VARIABLE = "EQFUSE_FUSED"

LARGE = 2**32
BLOCK = 8192
"""Rows at a time: predicted 5% slower than all at once, where 2,048 are 25% slower."""
FEWEST_ROWS = 256
FEW_NODES = 135
LIGHT = 32 * 2**20
"""Bytes of matrices that the programs of all nodes read from a GPU's level-2 cache together."""


def resolve_fused(fused: str | None) -> str:
    """Return "auto", "always" or "never", given what was asked for.

    Args:
      fused: "always" is one kernel forward and one backward, of the product, the Linear, the skip
        and the gate, or an error that says why there is none. On a GPU one or two more compute
        the gradients of parameters, and on a graph the backward is two. "never" is a kernel for
        each of them. "auto" is what is measured or predicted to be faster, see `fused_table`. None
        is what the environment variable EQFUSE_FUSED says, or "auto".
    Raises:
      ValueError: an unknown name.
    """
    asked = "fused"
    if fused is None:
        asked, fused = _VARIABLE, os.environ.get(_VARIABLE) or "auto"
    if fused not in MODES:
        raise ValueError(f"{asked} {fused!r} is unknown; choose one of {', '.join(MODES)}")
    return fused


def refuse(mode: str, reason: str) -> None:
    """Refuse "always" where there is a reason against it.

    Raises:
      ValueError: giving it.
    """
    if mode == "always" and reason:
        raise ValueError(f"fused='always' cannot be done here: {reason}")


@dataclasses.dataclass(frozen=True)
class Bound:
    """A line of the table that "auto" follows.

    Attributes:
      backend, where: what it is for: "rows", or "graph" for sums over the edges of nodes.
      fuses: whether one kernel is chosen, from the bound on.
      why: what the bound is, and where it comes from.
    """

    backend: str
    where: str
    fuses: bool
    why: str

    @property
    def chosen(self) -> str:
        """Return what is chosen from the bound on."""
        if not self.fuses:
            return "apart"
        return "in blocks" if self.in_blocks else "fused"

    @property
    def in_blocks(self) -> bool:
        """Return whether what is chosen is not one kernel: see `Choice`."""
        return self.fuses and (self.backend, self.where) == ("triton", "rows")

    @property
    def forward_only(self) -> bool:
        """Return whether what is chosen is not for the derivatives: see `Choice`."""
        return self.fuses and (self.backend, self.where) == ("triton", "graph")


TABLE = (
    Bound(
        "llvm",
        "rows",
        True,
        f"from {FEWEST_ROWS} rows on, one native call each way is faster (measured, "
        "benchmarks/results/fused.md)",
    ),
    Bound(
        "llvm",
        "graph",
        False,
        "the sums of a node's edges are few: one native call each way computes them twice "
        "(measured, benchmarks/results/fused.md)",
    ),
    Bound(
        "triton",
        "rows",
        True,
        f"from products of {LARGE >> 30} GiB on, the kernels of the parts on {BLOCK} rows at a "
        "time, so that a product need not fit into memory (predicted, benchmarks/results/fused.md)",
    ),
    Bound(
        "triton",
        "graph",
        True,
        f"with a gate, in float32, up to {FEW_NODES} nodes whose programs read at most "
        f"{LIGHT >> 20} MiB of matrices together, one kernel computes the value, and the "
        "derivatives are part by part (predicted, benchmarks/results/fused.md)",
    ),
)
"""What "auto" chooses. Backends "xla" and "e3nn" compute op by op."""


def fused_table() -> list[str]:
    """Return a line for each case of "auto": what it chooses, and the source of the bound."""
    return [f"{b.backend}, {b.where}: {b.chosen}: {b.why}" for b in TABLE]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Whether an op is fused, and a line that says so and why.

    Attributes:
      in_blocks: whether what computes it without a product in memory is not one kernel, but the
        kernels of its parts, on some rows at a time.
      forward_only: whether its derivatives are the kernels of its parts all the same.
    """

    fuses: bool
    text: str
    in_blocks: bool = False
    forward_only: bool = False

    @property
    def how(self) -> tuple[bool, bool, bool]:
        """Return the last fields of a `definitions.Call`."""
        return self.fuses, self.in_blocks, self.forward_only


def choose(mode: str, fused: Fused, num_rows: int, num_nodes: int, backend: str, dtype) -> Choice:
    """Return what runs a fused op.

    Args:
      mode: one of `MODES`.
      num_rows: rows, or edges of the graph.
      num_nodes: of the graph.
      dtype: of its operands.
    Raises:
      ValueError: "always" where there is no kernel of the whole op, saying why.
    """
    if mode == "never":
        return Choice(False, "apart: fused='never' was asked for")
    reason = refusal(fused, backend, dtype)
    if mode == "always":
        refuse(mode, reason or _several(fused, backend, dtype))
        return Choice(True, "fused: 'always' was asked for")
    if reason:
        return Choice(False, f"apart: {reason}")
    where = "graph" if fused.summed else "rows"
    [bound] = [b for b in TABLE if (b.backend, b.where) == (backend.split("-")[0], where)]
    [product] = fused.form.outputs
    matrices = sum(math.prod(p.shape) for p in fused.linear.parameters) // max(fused.num_sets, 1)
    is_light = num_nodes <= FEW_NODES and num_nodes * matrices * dtype.itemsize <= LIGHT
    beyond = {
        ("llvm", "rows"): num_rows >= FEWEST_ROWS,
        ("triton", "rows"): num_rows * product.size * dtype.itemsize >= LARGE,
        ("triton", "graph"): fused.gate is not None and dtype.name == "float32" and is_light,
    }
    fuses = bound.fuses and beyond[bound.backend, bound.where]
    chosen = bound.chosen if fuses else "apart"
    return Choice(
        fuses, f"{chosen}: {bound.why}", fuses and bound.in_blocks, fuses and bound.forward_only
    )


def refusal(fused: Fused, backend: str, dtype) -> str:
    """Return why there are no kernels of a whole op, forward and backward, or ""."""
    if not fused.form.paths or not any(t.x is not None for t in fused.linear.linear_form.terms):
        return "no path of the product leads to the Linear's output"
    if backend == "llvm":
        return _refusal_of_llvm(fused, dtype)
    if backend.startswith("triton"):
        return _refusal_of_triton(fused, dtype)
    return f"backend {backend!r} computes op by op, and has no fused kernels"


def graph_product_refusal(product: Product, backend: str, dtype) -> str:
    """Return why a product on a graph is not one kernel forward and one backward, or ""."""
    if product.channel_columns:
        return "x and y both have several channels, and products of edges are written to memory"
    if backend == "xla":
        return "backend 'xla' computes op by op, and has no fused kernels"
    if backend == "llvm" or not product.form.paths:
        return ""
    return _several_kernels(product.form, dtype)


def _several_kernels(form: Form, dtype) -> str:
    """Return why a product on a graph is several kernels in a direction on a GPU, or ""."""
    backward = backward_form(form, (True,) * len(form.inputs))
    counts = [len(plan.tasks(f, dtype.name)) for f in (form, backward)]
    if max(counts) == 1:
        return ""
    return (
        f"the product's registers and its code are {counts[0]} kernels forward, {counts[1]} "
        "backward: one would spill"
    )


def _refusal_of_llvm(fused: Fused, dtype) -> str:
    if dtype.name not in ("float32", "float64"):
        return f"native kernels of whole ops are of float32 and float64, and this is {dtype.name}"
    if fused.num_sets:
        return "rows choose their weights by an index, which native kernels of whole ops do not"
    if is_wide(fused.linear.linear_form):
        return "its matrices are so large that XLA's matmuls, which it is composed with, are faster"
    return ""


def _refusal_of_triton(fused: Fused, dtype) -> str:
    if fused.summed:
        return plan.refusal(fused.form, dtype.name)
    if Index.SENDER in {o.index for o in fused.form.inputs}:
        return "on a GPU there are fused kernels over rows, none that reads rows of senders"
    return ""


def _several(fused: Fused, backend: str, dtype) -> str:
    """Return why a backward is several kernels on a GPU, or ""."""
    on_gpu = backend.startswith("triton") and fused.summed
    return _several_kernels(fused.form, dtype) if on_gpu else ""
