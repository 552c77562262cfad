"""The mixing as a JAX primitive, whose derivatives of every order are mixings again."""

import functools

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from eqfuse.ops import _mixing
from eqfuse.ops._mixing import Mixing, Rows
from eqfuse.ops._rules import vary_alike

mixing_p = Primitive("eqfuse_mixing")
mixing_p.multiple_results = True


def evaluate(mixing: Mixing, arrays, index, num_rows: int, backend: str) -> list[jax.Array]:
    """Compute a mixing.

    Args:
      mixing: what to compute.
      arrays: one for each input, all of one dtype: [num_rows, size] or the shape of the weights.
      index: [num_rows] int32, or None if the mixing has one set of weights.
      backend: "triton" and "triton-interpret" run one kernel; all others `_mixing.evaluate`.
    Returns:
      An array for each output.
    """
    integers = [] if index is None else [index]
    return mixing_p.bind(
        *vary_alike([*arrays, *integers]), mixing=mixing, num_rows=num_rows, backend=backend
    )


def tangent(mixing: Mixing, arrays, tangents, index, num_rows: int, backend: str):
    """The tangents of the outputs of a mixing.

    Args:
      arrays: its inputs; those that the tangent does not depend on may be None.
      tangents: of each input, or None for zero.
      index, num_rows, backend: as in `evaluate`.
    Returns:
      An array for each output, or None where it is zero.
    """
    derivative = mixing.jvp(tuple(t is not None for t in tangents))
    reached = derivative.reached()
    derivative = derivative.restrict((True,) * len(derivative.inputs), reached)
    params = {"num_rows": num_rows, "backend": backend}
    index = [] if index is None else [index]
    given = [*arrays, *(t for t in tangents if t is not None)]
    found = iter(_needed(derivative, given, index, params))
    return [next(found) if is_reached else None for is_reached in reached]


def _split(mixing: Mixing, arrays):
    n = len(mixing.inputs)
    return list(arrays[:n]), list(arrays[n:])


def _needed(mixing: Mixing, arrays, index, params):
    """Bind with the inputs that some term reads; nothing at all where there is no output."""
    if not mixing.outputs:
        return []
    used = mixing.used()
    arrays = [a for a, keep in zip(arrays, used, strict=True) if keep]
    mixing = mixing.restrict(used, (True,) * len(mixing.outputs))
    return mixing_p.bind(*vary_alike([*arrays, *index]), mixing=mixing, **params)


@mixing_p.def_abstract_eval
def _abstract(*arrays, mixing, num_rows, backend):
    return [
        arrays[0].update(shape=mixing.shape(o, num_rows), weak_type=False) for o in mixing.outputs
    ]


@mixing_p.def_impl
@functools.partial(jax.jit, static_argnames=("mixing", "num_rows", "backend"))
def _compiled(*arrays, **params):
    """Outside `jit`: compiled once for each mixing and shapes."""
    return mixing_p.bind(*arrays, **params)


def _jvp(primals, tangents, *, mixing, **params):
    primals, index = _split(mixing, primals)
    tangents = tangents[: len(primals)]
    outputs = mixing_p.bind(*primals, *index, mixing=mixing, **params)
    derivative = mixing.jvp(tuple(type(t) is not ad.Zero for t in tangents))
    reached = derivative.reached()
    derivative = derivative.restrict((True,) * len(derivative.inputs), reached)
    given = [t for t in tangents if type(t) is not ad.Zero]
    found = iter(_needed(derivative, [*primals, *given], index, params))
    return outputs, [
        next(found) if r else ad.Zero(jax.typeof(out).to_tangent_aval())
        for out, r in zip(outputs, reached, strict=True)
    ]


def _transpose(cotangents, *arrays, mixing, **params):
    arrays, index = _split(mixing, arrays)
    linear = tuple(ad.is_undefined_primal(a) for a in arrays)
    given = tuple(type(c) is not ad.Zero for c in cotangents)
    transposed = mixing.transpose(linear, given)
    reached = transposed.reached()
    transposed = transposed.restrict((True,) * len(transposed.inputs), reached)
    values = [a for a in arrays if not ad.is_undefined_primal(a)]
    values += [c for c in cotangents if type(c) is not ad.Zero]
    found = iter(_needed(transposed, values, index, params))
    reached = iter(reached)
    results = []
    for a in arrays:
        if not ad.is_undefined_primal(a):
            results.append(None)
        else:
            results.append(next(found) if next(reached) else ad.Zero(a.aval))
    return results + [None] * len(index)


def _batch(arrays, dims, *, mixing, num_rows, backend):
    """Weights of one set for all members and no gradient of them: the members' rows, in one."""
    inputs, index = _split(mixing, dims)
    weights = [d for o, d in zip(mixing.inputs, inputs, strict=True) if not isinstance(o, Rows)]
    one_set = all(d is None for d in weights) and all(isinstance(o, Rows) for o in mixing.outputs)
    if not one_set:

        def member(*arrays):
            values, index = _split(mixing, arrays)
            return _mixing.evaluate(mixing, values, index[0] if index else None, num_rows)

        outputs = jax.vmap(member, in_axes=list(dims))(*arrays)
        return outputs, [0] * len(outputs)
    [size] = {a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None}
    is_rows = [isinstance(o, Rows) for o in mixing.inputs] + [True] * len(index)
    joined = [
        _joined(a, d, size) if rows else a for a, d, rows in zip(arrays, dims, is_rows, strict=True)
    ]
    outputs = mixing_p.bind(
        *vary_alike(joined), mixing=mixing, num_rows=size * num_rows, backend=backend
    )
    return [o.reshape(size, num_rows, o.shape[-1]) for o in outputs], [0] * len(outputs)


def _joined(array, dim, size):
    array = batching.bdim_at_front(array, dim, size)
    return array.reshape(-1, *array.shape[2:])


def _dce(used_outputs, *rest):
    """Outputs that nobody wants are not computed, nor inputs read that only they need."""
    eqn = rest[-1]
    if not any(used_outputs):
        return [False] * len(eqn.invars), None
    mixing = eqn.params["mixing"]
    wanted = mixing.restrict((True,) * len(mixing.inputs), tuple(used_outputs))
    used = wanted.used() if any(wanted.used()) else (True,) * len(mixing.inputs)
    wanted = wanted.restrict(used, (True,) * len(wanted.outputs))
    keep = [*used, *[True] * (len(eqn.invars) - len(mixing.inputs))]
    new = eqn.replace(
        invars=[v for v, k in zip(eqn.invars, keep, strict=True) if k],
        outvars=[v for v, k in zip(eqn.outvars, used_outputs, strict=True) if k],
        params={**eqn.params, "mixing": wanted},
    )
    return keep, new


ad.primitive_jvps[mixing_p] = _jvp
ad.primitive_transposes[mixing_p] = _transpose
batching.primitive_batchers[mixing_p] = _batch
pe.dce_rules[mixing_p] = _dce


def _lowered(*arrays, mixing, num_rows, backend):
    values, index = _split(mixing, arrays)
    if backend.startswith("triton") and num_rows and mixing.terms:
        from eqfuse.ops import _mixing_run

        return _mixing_run.run(mixing, values, index, num_rows, backend)
    if backend == "numba" and num_rows and mixing.terms:
        from eqfuse.ops._numba import run as native

        return native.mix(mixing, values, index[0] if index else None, num_rows)
    return _mixing.evaluate(mixing, values, index[0] if index else None, num_rows)


mlir.register_lowering(mixing_p, mlir.lower_fun(_lowered, multiple_results=True))
