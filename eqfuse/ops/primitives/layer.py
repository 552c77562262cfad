"""The fused op as JAX primitives, with their derivatives.

Five primitives, each a derivative of the one before: the op; its tangent, linear in the tangents;
its backward, the transpose of the tangent; the tangent of the backward; and the transpose of that.
On a CPU all but the tangents are one native kernel each. On a GPU the op and its backward are fused
kernels, the others blocks of rows (`blocks`), or all are. Everything else is composed by JAX itself
from `definitions`, so that no derivative is missing at any order.

Where `choice` decides against them, an op is its definition from the start, kernels of the product
and of the Linear: JAX keeps the product for the backward.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from eqfuse.ops.backends import xla
from eqfuse.ops.backends.llvm import machine, runtime
from eqfuse.ops.backends.llvm import program as native_program
from eqfuse.ops.backends.llvm.linear import is_wide
from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.ir import gate
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index, Operand, Path, Segment, SegmentRef
from eqfuse.ops.ir.fused import Fused, backward_form
from eqfuse.ops.ir.gate import forms_of
from eqfuse.ops.ir.linear import LinearForm, Rows, Weights
from eqfuse.ops.ir.products import Product
from eqfuse.ops.ir.program import Array, Extent, FormStep, Program
from eqfuse.ops.primitives import forms, linear, native, rules
from eqfuse.ops.primitives.rules import definitions, split, vary_alike


@dataclasses.dataclass(frozen=True)
class Call:
    """The static arguments of one call.

    Attributes:
      fuses: whether one kernel each way is to compute it, see `choice`.
      in_blocks: whether the kernels of its parts are to compute some rows at a time, see `blocks`.
      forward_only: whether the kernels of its parts are to compute its derivatives.
    """

    fused: Fused
    num_rows: int
    num_nodes: int
    backend: str
    fuses: bool = False
    in_blocks: bool = False
    forward_only: bool = False

    @property
    def by_rows(self) -> bool:
        """Return whether it is fused over rows on a GPU, and so are its first two derivatives."""
        over_rows = not (self.fused.summed or self.fused.only_mixes)
        return self.fuses and self.backend.startswith("triton") and over_rows

    @property
    def keeps_sums(self) -> bool:
        """Return whether the product is an output too: the sums of nodes, for its derivatives."""
        return self.fuses and self.fused.summed and self.backend.startswith("triton")

    @property
    def mixes_rows(self) -> bool:
        """Return whether it is fused on a GPU and is what follows the sums of nodes."""
        return self.fuses and self.fused.only_mixes and self.backend.startswith("triton")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the rows of all outputs."""
        sums = [self.fused.form.outputs[0].size] if self.keeps_sums else []
        return (*self.fused.sizes, *sums)

    @property
    def num_output_rows(self) -> int:
        """Return how many rows the output has."""
        return self.num_nodes if self.fused.summed else self.num_rows

    @property
    def is_native(self) -> bool:
        """Return whether native kernels of the whole op run it."""
        return self.backend == "llvm" and self.fuses


def product(call: Call, form: Form, inputs, integers):
    """Return a form on the operands of a call."""
    if call.fused.only_mixes:
        return list(inputs)
    _, arrays = call.fused.split(integers)
    return forms.form_p.bind(
        *inputs,
        *arrays.values(),
        form=form,
        num_rows=call.num_rows,
        num_nodes=call.num_nodes,
        backend=call.backend,
    )


def _apply_gate(call: Call, z):
    fused = call.fused
    if call.is_native:
        return linear.gated(forms_of(fused.gate, fused.linear), z, call.backend)
    return xla.apply_gate(fused.gate, fused.linear, z)


def _gate_tangent(call: Call, z, t_z):
    fused = call.fused
    if call.is_native:
        return linear.gated_tangent(forms_of(fused.gate, fused.linear), z, t_z, call.backend)
    return jax.jvp(functools.partial(_apply_gate, call), (z,), (t_z,))[1]


def forward(call: Call, floats, integers):
    """Return out and z (only the arrays of z, where nothing follows it), part by part.

    The sums of nodes come last, if they are kept.
    """
    fused = call.fused
    inputs, parameters, skip = fused.operands(floats)
    index, _ = fused.split(integers)
    [m] = product(call, fused.form, inputs, integers)
    arrays = linear.evaluate(
        fused.linear.linear_form, [m, *parameters], index, call.num_output_rows, call.backend
    )
    if skip is not None:
        arrays = [arrays[0] + skip]
    gated = [] if fused.gate is None else [_apply_gate(call, arrays[0])]
    return [*gated, *arrays, *([m] if call.keeps_sums else [])]


def _zeros(rows: int, size: int, like):
    """Return zeros that are like an array: of its dtype, and varying as it in `shard_map`."""
    zeros, _ = rules.vary_alike([jnp.zeros((rows, size), like.dtype), like])
    return zeros


def product_tangent(call: Call, inputs, tangents, integers):
    """Return the tangent of the product, or None where it is zero.

    Args:
      tangents: of each input, or None.
    """
    given = [t for t in tangents if t is not None]
    if not given:
        return None
    form = call.fused.form.jvp(tuple(t is not None for t in tangents))
    used = form.used_inputs()
    arrays = [a for a, keep in zip([*inputs, *given], used, strict=True) if keep]
    return product(call, form.drop_inputs(used), arrays, integers)[0] if form.paths else None


def forward_tangent(call: Call, active, floats, z, tangents, integers):
    """Return tangents of the outputs, linear in the tangents of the active operands."""
    fused = call.fused
    inputs, parameters, _ = fused.operands(floats)
    tangents = iter(tangents)
    given = [next(tangents) if a else None for a in active]
    t_inputs, t_parameters, t_skip = fused.operands(given)
    index, _ = fused.split(integers)
    m, t_m = None, product_tangent(call, inputs, t_inputs, integers)
    if any(t is not None for t in t_parameters):
        [m] = product(call, fused.form, inputs, integers)
    results = linear.tangent(
        fused.linear.linear_form,
        [m, *parameters],
        [t_m, *t_parameters],
        index,
        call.num_output_rows,
        call.backend,
    )
    if t_skip is not None:
        results = [t_skip if results[0] is None else results[0] + t_skip]
    sizes = [rows.size for rows in fused.linear.linear_form.outputs]
    results = [
        _zeros(call.num_output_rows, size, z) if t is None else t
        for t, size in zip(results, sizes, strict=True)
    ]
    if fused.gate is None:
        return results
    return [_gate_tangent(call, z, *results), *results]


def backward(call: Call, wanted, given, floats, z, cotangents, integers):
    """Return cotangents of the wanted operands, from the `given` ones of the outputs."""

    def tangent(*tangents):
        outputs = forward_tangent(call, wanted, floats, z, tangents, integers)
        return [t for t, is_given in zip(outputs, given, strict=True) if is_given]

    avals = [rules.abstract(f) for f, w in zip(floats, wanted, strict=True) if w]
    return list(jax.linear_transpose(tangent, *avals)(list(cotangents)))


def gradients(call: Call, wanted, floats, dz, integers):
    """Return the gradients of the wanted parameters, from the cotangent of the pre-activation."""
    fused = call.fused
    plain = Fused.build(fused.form, fused.linear, None, False)
    inputs, parameters, _ = fused.operands(floats)
    wanted = (*(False for _ in inputs), *wanted)
    call = dataclasses.replace(call, fused=plain)
    given = (True,) * len(dz)
    return backward(call, wanted, given, [*inputs, *parameters], dz[0], dz, integers)


def backward_tangent(call: Call, wanted, given, active, operands, tangents, integers):
    """Return tangents of the backward, linear in those of active floats, z and cotangents."""
    n = call.fused.num_floats

    def restricted(*changed):
        changed = iter(changed)
        full = [next(changed) if a else x for x, a in zip(operands, active, strict=True)]
        return backward(call, wanted, given, full[:n], full[n], full[n + 1 :], integers)

    changed = [x for x, a in zip(operands, active, strict=True) if a]
    return jax.jvp(restricted, changed, list(tangents))[1]


def evaluate(call: Call, floats, integers):
    """Return the output of a fused op: the gated row, or the pre-activation's arrays.

    Args:
      floats, integers: its operands, as in `Fused`.
    """

    def bound(*arrays):
        arrays = rules.vary_alike(arrays)
        if not call.fuses or not call.num_rows:
            return _fused(*arrays, call=call)
        return fused_p.bind(*arrays, call=call)

    out = "nodes" if call.fused.summed else "rows"
    counted = [o.index.counted for o in call.fused.form.inputs]
    counted += [None] * len(call.fused.linear.parameters) + [out] * call.fused.skip
    names = [out] * len(call.sizes)
    outputs = rules.with_auto_axes(bound, [*floats, *integers], counted, names)
    return outputs[: len(call.fused.sizes) if call.fused.gate is None else 1]


# the definitions, of the operands in one list


def _fused(*arrays, call):
    return forward(call, *split(arrays, call.fused.num_floats))


def _tangent(*arrays, call, active):
    floats, [z], *others = split(arrays, call.fused.num_floats, 1, sum(active))
    return forward_tangent(call, active, floats, z, *others)


def _backward(*arrays, call, wanted, given):
    floats, [z], *others = split(arrays, call.fused.num_floats, 1, sum(given))
    return backward(call, wanted, given, floats, z, *others)


def _second(*arrays, call, wanted, given, active):
    parts = split(arrays, len(active), sum(active))
    return backward_tangent(call, wanted, given, active, *parts)


def _double(*arrays, call, active, reached, **params):
    """Return the transpose of a backward's tangent, from cotangents of the outputs `reached`."""
    operands, cotangents, integers = split(arrays, len(active), sum(reached))

    def tangent(*tangents):
        results = _second(*operands, *tangents, *integers, call=call, active=active, **params)
        return [t for t, is_reached in zip(results, reached, strict=True) if is_reached]

    avals = [rules.abstract(a) for a, is_active in zip(operands, active, strict=True) if is_active]
    return list(jax.linear_transpose(tangent, *avals)(list(cotangents)))


# their shapes


def _fused_abstract(*arrays, call, **params):
    return [arrays[0].update(shape=(call.num_output_rows, s), weak_type=False) for s in call.sizes]


def _like(chosen: str):
    """Return the rule of outputs that are like the operands which a parameter chooses."""

    def rule(*arrays, **params):
        pairs = zip(arrays, params[chosen], strict=False)
        return [a.update(weak_type=False) for a, is_chosen in pairs if is_chosen]

    return rule


# their derivatives


def _summed_jvp(primals, tangents, *, call):
    """Go from the tangent of the sums of nodes, which are kept, to those of what follows them."""
    fused, n = call.fused, call.fused.num_floats
    *outputs, m = fused_p.bind(*primals, call=call)
    inputs, _, _ = fused.operands(primals[:n])
    given = [None if type(t) is ad.Zero else t for t in tangents[:n]]
    t_inputs, t_parameters, t_skip = fused.operands(given)
    t_m = product_tangent(call, inputs, t_inputs, primals[n:])
    changed = [t_m, *t_parameters, *([t_skip] if fused.skip else [])]
    active = tuple(t is not None for t in changed)
    floats = [m, *primals[len(inputs) : n]]
    index = primals[n:][: fused.num_sets > 0]
    mixed = dataclasses.replace(
        call,
        fused=fused.mixed,
        num_rows=call.num_nodes,
        num_nodes=0,
        fuses=not call.forward_only,
    )
    arrays = [*floats, outputs[-1], *(t for t in changed if t is not None), *index]
    t_outputs = tangent_p.bind(*rules.vary_alike(arrays), call=mixed, active=active)
    t_m = ad.Zero(jax.typeof(m).to_tangent_aval()) if t_m is None else t_m
    return [*outputs, m], [*t_outputs, t_m]


def _fused_jvp(primals, tangents, *, call):
    if call.keeps_sums:
        return _summed_jvp(primals, tangents, call=call)
    n = call.fused.num_floats
    outputs = fused_p.bind(*primals, call=call)
    active = tuple(type(t) is not ad.Zero for t in tangents[:n])
    given = [t for t in tangents[:n] if type(t) is not ad.Zero]
    arrays = rules.vary_alike([*primals[:n], outputs[-1], *given, *primals[n:]])
    return outputs, tangent_p.bind(*arrays, call=call, active=active)


def _tangent_transpose(cotangents, *arrays, call, active):
    floats, [z], tangents, integers = split(arrays, call.fused.num_floats, 1, sum(active))
    if any(map(ad.is_undefined_primal, (*floats, z))) or not all(
        map(ad.is_undefined_primal, tangents)
    ):
        # linear in some of the tangents only
        return rules.transpose_of(_tangent, cotangents, arrays, call=call, active=active)
    if call.fused.gate is None:  # its kernels take those of all arrays of the pre-activation
        cotangents = rules.instantiated(cotangents)
    given = tuple(type(c) is not ad.Zero for c in cotangents)
    cotangents = [c for c in cotangents if type(c) is not ad.Zero]
    arrays = rules.vary_alike([*floats, z, *cotangents, *integers])
    results = backward_p.bind(*arrays, call=call, wanted=active, given=given)
    return [None] * (len(floats) + 1) + list(results) + [None] * len(integers)


def _backward_jvp(primals, tangents, *, call, wanted, given):
    params = {"call": call, "wanted": wanted, "given": given}
    if not (call.is_native or call.by_rows):
        return rules.jvp_of(_backward)(primals, tangents, **params)
    outputs = backward_p.bind(*primals, **params)
    n, m = call.fused.num_floats, call.fused.num_floats + 1 + sum(given)
    active = [type(t) is not ad.Zero for t in tangents[:m]]
    active[n] &= call.fused.gate is not None  # without a gate, the backward does not depend on z
    active = tuple(active)
    if not any(active):
        return outputs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outputs]
    changed = [t for t, a in zip(tangents, active, strict=False) if a]
    arrays = rules.vary_alike([*primals[:m], *changed, *primals[m:]])
    return outputs, second_p.bind(*arrays, active=active, **params)


def _second_transpose(cotangents, *arrays, call, wanted, given, active):
    params = {"call": call, "wanted": wanted, "given": given, "active": active}
    operands, tangents, integers = split(arrays, len(active), sum(active))
    if any(map(ad.is_undefined_primal, operands)) or not all(map(ad.is_undefined_primal, tangents)):
        return rules.transpose_of(_second, cotangents, arrays, **params)
    cotangents = [None if type(c) is ad.Zero else c for c in cotangents]
    reached = tuple(c is not None for c in cotangents)
    cotangents = [c for c in cotangents if c is not None]
    varied = rules.vary_alike([*operands, *cotangents, *integers])
    results = double_p.bind(*varied, reached=reached, **params)
    return [None] * len(operands) + results + [None] * len(integers)


fused_p = rules.defined_primitive("eqfuse_fused", _fused, _fused_abstract, jvp=_fused_jvp)
tangent_p = rules.defined_primitive(
    "eqfuse_fused_tangent", _tangent, _fused_abstract, transpose=_tangent_transpose
)
backward_p = rules.defined_primitive(
    "eqfuse_fused_backward", _backward, _like("wanted"), jvp=_backward_jvp
)
second_p = rules.defined_primitive(
    "eqfuse_fused_second", _second, _like("wanted"), transpose=_second_transpose
)
double_p = rules.defined_primitive("eqfuse_fused_double", _double, _like("active"))


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


KERNELS = {"eqfuse_form": "form", "eqfuse_linear_form": "linear_form"}
KERNELS |= {"eqfuse_activation": "activated"}
SUMS = ("add", "add_any")


@dataclasses.dataclass(frozen=True)
class Traced:
    """The program that a function computes.

    Attributes:
      read: the numbers of the arguments that are its inputs.
      constants: the number that each output of the function is everywhere, or None.
      passed: the argument that each output of the function is, or None. The program computes, in
        order, what is neither.
    """

    program: Program
    read: tuple[int, ...]
    constants: tuple[float | None, ...]
    passed: tuple[int | None, ...]


def traced(function, arguments, num_integers: int, of_nodes: bool = False) -> Traced | None:
    """Return the program of forms and linear forms that a function computes, and what it reads.

    Sums of two arrays of rows are forms as well.

    Args:
      function: of arrays; returns a list of arrays.
      arguments: its arguments, of which the last `num_integers` are index arrays, which go to every
        form on a graph unchanged.
      of_nodes: whether the rows of what is not on the graph are nodes.
    Returns:
      None where the function computes anything else.
    """
    closed = jax.make_jaxpr(function)(*(jax.typeof(a) for a in arguments))
    num_floats = len(arguments) - num_integers
    indices = closed.jaxpr.invars[num_floats:]
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = tuple(n for n in range(num_floats) if used[n])
    numbers = {v: n for n, v in enumerate(jaxpr.invars[: len(read)])}
    arrays: dict[int, Array] = {}
    constants: dict = {}
    blocks = _blocks(jaxpr)
    steps = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "broadcast_in_dim" and not _is_variable(eqn.invars[0]):
            constants[eqn.outvars[0]] = np.asarray(eqn.invars[0].val).item()
            continue
        form = _form(eqn, blocks)
        if form is None:
            return None
        reads, rest = eqn.invars[: len(form.inputs)], eqn.invars[len(form.inputs) :]
        if any(not _is_variable(v) or v not in numbers for v in reads):
            return None
        if rest and rest != indices:
            return None
        for v in eqn.outvars:
            numbers[v] = len(numbers)
        operands, writes = (tuple(numbers[v] for v in side) for side in (reads, eqn.outvars))
        steps.append(FormStep(form, operands, writes))
        for v, operand in zip((*reads, *eqn.outvars), form.operands, strict=True):
            array = Array.of(operand, v.aval.dtype.name)
            if of_nodes and array.extent is Extent.ROWS and not getattr(form, "on_graph", False):
                array = dataclasses.replace(array, extent=Extent.NODES)
            if arrays.setdefault(numbers[v], array) != array:  # a sum of weights
                return None
    if not all(map(_is_variable, jaxpr.outvars)):
        return None
    passed = dict(zip(jaxpr.invars, read, strict=False))
    computed = [v for v in jaxpr.outvars if v not in constants and v not in passed]
    if any(v not in numbers for v in computed) or len(arrays) < len(numbers):
        return None
    described = tuple(array for _, array in sorted(arrays.items()))
    outputs = tuple(numbers[v] for v in computed)
    program = Program(described, tuple(range(len(read))), outputs, tuple(steps))
    known = (tuple(of.get(v) for v in jaxpr.outvars) for of in (constants, passed))
    return Traced(program, read, *known)


def as_whole(program: Program, num_rows: int, num_nodes: int) -> Program:
    """Return a program on a graph as one that runs whole: arrays in full, index arrays behind."""
    counts = {Extent.WHOLE: 1, Extent.ROWS: num_rows, Extent.NODES: num_nodes}
    places = {name: len(program.arrays) + k for k, name in enumerate(INDEX_ARRAYS)}
    steps = []
    for step in program.steps:
        if isinstance(step.form, Form) and step.form.on_graph:
            numbers = {"indices": tuple(places.items()), "num_nodes": num_nodes}
            steps.append(dataclasses.replace(step, num_rows=num_rows, **numbers))
        elif isinstance(step.form, LinearForm):  # one set of weights
            steps.append(dataclasses.replace(step, num_rows=num_nodes, num_nodes=1))
        else:
            steps.append(dataclasses.replace(step, num_rows=num_nodes))
    arrays = [Array(a.size * counts[a.extent], a.dtype) for a in program.arrays]
    arrays += [Array(num_nodes + 1 if n.endswith("_ptr") else num_rows, "int32") for n in places]
    limits = {n: num_rows if n.endswith(("_order", "_ptr")) else num_nodes for n in places}
    indices = tuple((n, name, limits[name]) for name, n in places.items())
    inputs = (*program.inputs, *places.values())
    return Program(tuple(arrays), inputs, program.outputs, tuple(steps), indices)


def _is_variable(v) -> bool:
    return not isinstance(v, jax.extend.core.Literal)


def _blocks(jaxpr) -> dict:
    """Return the blocks of the arrays that linear forms read or write as rows."""
    blocks = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "eqfuse_linear_form":
            form = eqn.params["linear_form"]
            arrays = (*eqn.invars[: len(form.inputs)], *eqn.outvars)
            rows = zip(arrays, form.operands, strict=True)
            blocks |= {v: o.blocks for v, o in rows if isinstance(o, Rows)}
    return blocks


def _form(eqn, blocks: dict):
    """Return what an equation computes, as a form; None where it is none.

    Args:
      blocks: see `_blocks`.
    """
    if eqn.primitive.name in KERNELS:
        return eqn.params[KERNELS[eqn.primitive.name]]
    operands = (*eqn.invars, *eqn.outvars)
    shapes = {v.aval.shape for v in operands}
    if eqn.primitive.name not in SUMS or len(shapes) > 1 or len(next(iter(shapes))) != 2:
        return None
    known = {blocks[v] for v in operands if _is_variable(v) and v in blocks}
    if len(known) > 1:
        return None
    return gate.sum_form(eqn.outvars[0].aval.shape[1], *known)


def run_natively(function, arrays, call) -> list:
    """Return what `function` computes of the arrays, by one kernel where it is a program.

    Args:
      function: of floating point arrays and, for a form on a graph, the index arrays.
    """
    n = len(arrays) - len(INDEX_ARRAYS) * call.fused.form.on_graph
    summed = call.fused.summed
    found = traced(function, arrays, len(arrays) - n, summed) if call.is_native else None
    if found is None or not (found.program.runs_by_rows or (summed and found.program.steps)):
        return function(*arrays)
    kernel = _whole if summed else native.by_rows
    indices = dict(zip(INDEX_ARRAYS, arrays[n:], strict=False))
    operands = [arrays[k] for k in found.read]
    results = kernel(found.program, operands, indices, call.num_rows, call.num_nodes)
    if results is None:
        return function(*arrays)
    shapes, results = jax.eval_shape(function, *arrays), iter(results)
    outputs = []
    for out, constant, passed in zip(shapes, found.constants, found.passed, strict=True):
        if passed is not None:
            outputs.append(arrays[passed])
        elif constant is not None:
            outputs.append(jnp.full(out.shape, constant, out.dtype))
        else:
            outputs.append(next(results))
    return outputs


def _whole(
    program: Program, arrays, indices, num_rows: int, num_nodes: int
) -> list[jax.Array] | None:
    """Return the outputs of a program on a graph, computed by its native kernel, step by step.

    The arguments are those of `native.by_rows`.

    Returns:
      None where no kernel has its steps.
    """
    dtype = arrays[0].dtype.name
    if dtype not in ("float32", "float64") or not native.has_steps(program):
        return None
    full = as_whole(program, num_rows, num_nodes)
    module = native_program.generate(full, dtype, machine.machine(), runtime.WORK_OF_A_THREAD)
    inputs = [a.reshape(1, -1) for a in arrays] + [indices[n] for n in INDEX_ARRAYS]
    results = [(1, full.arrays[n].size) for n in full.outputs]
    results += [(1, width) for width in module.copies]
    results = native.native_p.bind(*inputs, module=module, shapes=tuple(results))
    counts = {Extent.WHOLE: 1, Extent.ROWS: num_rows, Extent.NODES: num_nodes}
    outputs = [(program.operands[n], program.arrays[n]) for n in program.outputs]
    return [
        r.reshape(o.shape if isinstance(o, Weights) else (counts[a.extent], a.size))
        for r, (o, a) in zip(results, outputs, strict=False)
    ]


def run_in_blocks(primitive: Primitive, arrays, call: Call, **params) -> list:
    """Return what a primitive of `fused` gives of the arrays, by its definition, in blocks of rows.

    Args:
      arrays, params: its operands and parameters.
    """
    inputs, outputs = _indices(call, **params)
    floats, [], integers = split(arrays, len(inputs), 0)
    index, nodes = call.fused.split(integers)
    by_row = [] if index is None else [index]

    def block(first, count: int):
        """Return the outputs of some rows, of those that each row adds to the sum of them all."""

        def rows(array):
            return lax.dynamic_slice_in_dim(array, first, count)

        def operand(array, index: Index):
            if index is Index.SHARED:
                return array
            return array[rows(nodes[f"{index.value}s"])] if index.is_node else rows(array)

        found = map(operand, floats, inputs)
        found = [*found, *map(rows, by_row)]
        return definitions[primitive](*found, call=_apart(call, count), **params)

    results = _loop(call, block, outputs, floats)
    return [
        of_nodes(call, index, rows, integers) if index.is_node else rows
        for index, rows in zip(outputs, results, strict=True)
    ]


def _loop(call: Call, block, outputs: list[Index], operands) -> list:
    """Return the outputs of all blocks: rows one behind the other, sums of what all rows share."""
    size = BLOCK
    if call.num_rows <= size:
        return block(0, call.num_rows)
    blocks, rest = divmod(call.num_rows, size)
    shapes = jax.eval_shape(functools.partial(block, count=size), 0)

    def initial(shape, index: Index):
        if index is not Index.SHARED:
            return jnp.zeros((call.num_rows, *shape.shape[1:]), shape.dtype)
        return jnp.zeros(shape.shape, jnp.promote_types(shape.dtype, jnp.float32))

    def add(first, totals, count: int):
        found = block(first, count)
        return [
            t + r if i is Index.SHARED else lax.dynamic_update_slice_in_dim(t, r, first, 0)
            for t, r, i in zip(totals, found, outputs, strict=True)
        ]

    totals = [initial(s, i) for s, i in zip(shapes, outputs, strict=True)]
    totals = vary_alike([*totals, *operands])[: len(outputs)]
    totals = lax.fori_loop(0, blocks, lambda n, t: add(n * size, t, size), totals)
    totals = add(blocks * size, totals, rest) if rest else totals
    return [t.astype(s.dtype) for t, s in zip(totals, shapes, strict=True)]


def _apart(call: Call, count: int) -> Call:
    """Return the call of the parts, on so many rows that have their own row of every node."""
    form = call.fused.form
    form = form.indexed({n: Index.ROW for n, o in enumerate(form.inputs) if o.index.is_node})
    fused = dataclasses.replace(call.fused, form=form)
    return dataclasses.replace(call, fused=fused, num_rows=count, num_nodes=0, fuses=False)


def _indices(call: Call, wanted=None, given=(), active=None, reached=None):
    """Return the indices of the operands and of the outputs of a primitive of `fused`."""
    fused = call.fused
    floats = [o.index for o in fused.form.inputs]
    floats += [Index.SHARED] * len(fused.linear.parameters) + [Index.ROW] * fused.skip

    def some(indices, which) -> list[Index]:
        return list(itertools.compress(indices, which))

    if wanted is None:  # the op or its tangent
        tangents = [] if active is None else [Index.ROW, *some(floats, active)]
        return floats + tangents, [Index.ROW] * len(fused.sizes)
    operands, outputs = floats + [Index.ROW] * (1 + sum(given)), some(floats, wanted)
    if active is None:  # its backward
        return operands, outputs
    if reached is None:  # the tangent of that
        return operands + some(operands, active), outputs
    return operands + some(outputs, reached), some(operands, active)


def of_nodes(call: Call, index: Index, rows, integers):
    """Return a gradient [rows, size] summed by node."""
    size = rows.shape[1]
    segment = (Segment(0, size, 1, 1),)
    identity = (Path((SegmentRef(0, 0),), SegmentRef(0, 0), (((0, 0), 1.0),)),)
    source = Operand("rows", size, segment, True)
    total = Operand("total", size, segment, True, index)
    return product(call, Form((source,), (total,), identity), [rows], integers)[0]
