"""The least work of a whole training step, counted from its forms, linear forms and matmuls."""

from __future__ import annotations

import math

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters import partial_eval as pe

from eqfuse.ops.ir.form import Form
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.rules import definitions


def step_work(function, args) -> tuple[int, int]:
    """Return bytes that products, linear forms and matmuls read and write, and operations in all.

    Args:
      function: of `args`, with eqfuse's ops on any backend but "e3nn".
    """
    traced = jax.jit(function).trace(*args).jaxpr.jaxpr
    used, _ = pe.dce_jaxpr(traced, [True] * len(traced.outvars))
    return _work(used)


def _work(jaxpr: Jaxpr) -> tuple[int, int]:
    found = [_work_of(equation) for equation in jaxpr.eqns]
    return sum(b for b, _ in found), sum(o for _, o in found)


def _work_of(equation) -> tuple[int, int]:
    primitive, params = equation.primitive, equation.params
    moved = sum(v.aval.size * v.aval.dtype.itemsize for v in (*equation.invars, *equation.outvars))
    if primitive in definitions:  # a fused op: arrays inside of it need not be moved
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
        inner = jax.make_jaxpr(lambda *a: definitions[primitive](*a, **params))(*avals)
        used, _ = pe.dce_jaxpr(inner.jaxpr, [True] * len(inner.jaxpr.outvars))
        return moved, _work(used)[1]
    if primitive is forms.form_p:
        work = params["form"].counts(params["num_rows"], params["num_nodes"])
        return work.bytes, work.operations
    if primitive is forms.linear_form_p:
        return moved, linear_operations(params["form"], params["num_rows"])
    if primitive is jax.lax.dot_general_p:
        contracted = params["dimension_numbers"][0][0]
        length = math.prod(equation.invars[0].aval.shape[d] for d in contracted)
        return moved, 2 * length * equation.outvars[0].aval.size
    leaves = jax.tree.leaves(
        list(params.values()), is_leaf=lambda p: isinstance(p, Jaxpr | ClosedJaxpr)
    )
    inner = [_work(getattr(p, "jaxpr", p)) for p in leaves if isinstance(p, Jaxpr | ClosedJaxpr)]
    return sum(b for b, _ in inner), sum(o for _, o in inner)


def linear_operations(linear_form: Form, num_rows: int) -> int:
    """Return a multiplication and an addition for each row, component and element of a matrix."""
    total = 0
    for term in linear_form.terms:
        block = linear_form.operands[term.z.operand].segments[term.z.segment]
        source = term.x and linear_form.operands[term.x.operand].segments[term.x.segment]
        total += 2 * num_rows * block.mul * block.dim * (source.mul if source else 1)
    return total
