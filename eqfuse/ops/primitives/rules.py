"""Rules of JAX primitives that have a definition in terms of others."""

import functools
import itertools
from collections.abc import Callable

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.sharding import PartitionSpec

from eqfuse import _jax_compat


def compiled(primitive, static=("call", "active", "wanted", "given", "reached")):
    """Return the rule for calls outside `jit`: compiled once for each call and shapes.

    Args:
      static: names of the parameters.
    """

    @functools.partial(jax.jit, static_argnames=static)
    def bind(*arrays, **params):
        return primitive.bind(*arrays, **params)

    @functools.wraps(bind)
    def implementation(*arrays, **params):
        with jax.disable_jit(False):  # under `jax.disable_jit`, the primitive would bind itself
            return bind(*arrays, **params)

    return implementation


def defined_primitive(name: str, function, abstract, *, jvp=None, transpose=None) -> Primitive:
    """Make a primitive that has a definition, from which every rule follows that is not given.

    Only its lowering is registered elsewhere, in `lowering`.

    Args:
      name: of the primitive.
      function: the definition, of arrays and static parameters; returns a list of arrays.
      abstract: the abstract evaluation.
      jvp, transpose: rules in the place of those of the definition.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(compiled(primitive))
    primitive.def_abstract_eval(abstract)
    ad.primitive_jvps[primitive] = jvp or jvp_of(function)
    ad.primitive_transposes[primitive] = transpose or functools.partial(transpose_of, function)
    batching.primitive_batchers[primitive] = batch_of(function)
    definitions[primitive] = function
    _jax_compat.require_devices_when_lowered(primitive)  # it may hold forms over rows
    return primitive


definitions: dict[Primitive, Callable] = {}
"""The functions that the primitives of `defined_primitive` stand for."""


def split(arrays, *sizes: int) -> list:
    """Return parts of these sizes, and the rest, such as index arrays."""
    ends = list(itertools.accumulate(sizes, initial=0))
    parts = [arrays[a:b] for a, b in itertools.pairwise(ends)]
    return [*map(list, parts), list(arrays[ends[-1] :])]


def instantiated(cotangents):
    """Return the cotangents as arrays, also those that JAX knows to be zero."""
    return [ad.instantiate_zeros(c) for c in cotangents]


def abstract(array):
    """Return what `jax.linear_transpose` has to know of an array: also what it varies over."""
    return jax.typeof(array).update(weak_type=False)


def transpose_of(function, cotangents, arrays, **params):
    """Return the transpose of a definition with respect to the operands that are unknown."""
    cotangents = instantiated(cotangents)
    linear = [n for n, a in enumerate(arrays) if ad.is_undefined_primal(a)]

    def restricted(*unknown):
        full = list(arrays)
        for n, a in zip(linear, unknown, strict=True):
            full[n] = a
        return function(*full, **params)

    avals = [arrays[n].aval.update(weak_type=False) for n in linear]
    results = iter(jax.linear_transpose(restricted, *avals)(cotangents))
    return [next(results) if ad.is_undefined_primal(a) else None for a in arrays]


def jvp_of(function):
    """Return the JVP of a definition, along the operands whose tangents are not zero."""

    def rule(primals, tangents, **params):
        active = [n for n, t in enumerate(tangents) if type(t) is not ad.Zero]

        def restricted(*arrays):
            full = list(primals)
            for n, a in zip(active, arrays, strict=True):
                full[n] = a
            return function(*full, **params)

        return jax.jvp(restricted, [primals[n] for n in active], [tangents[n] for n in active])

    return rule


def batch_of(function):
    """Return `vmap` of a definition: composed, not fused."""

    def rule(arrays, dims, **params):
        results = jax.vmap(functools.partial(function, **params), in_axes=list(dims))(*arrays)
        return results, [0] * len(results)

    return rule


def with_auto_axes(function, arrays, inputs, outputs) -> list[jax.Array]:
    """Return `function(*arrays)`, within which the compiler shards explicit axes of a mesh.

    Args:
      function: gives a list of arrays.
      inputs: what the leading axis of each of the first arrays counts (anything hashable), or None.
      outputs: the same for each result; its leading axis is sharded as that of an array with the
        same, and no other axis is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.explicit_axes or mesh.manual_axes:  # JAX has no way from manual axes to these
        return function(*arrays)
    leading = {}
    for array, what in zip(arrays, inputs, strict=False):
        axes = jax.typeof(array).sharding.spec[0]
        if axes is not None and what is not None:
            leading.setdefault(what, axes)
    specs = [PartitionSpec(leading.get(what)) for what in outputs]
    return jax.sharding.auto_axes(lambda *a: list(function(*a)), out_sharding=specs)(*arrays)


def vary_alike(arrays):
    """Return arrays that all vary over the mesh axes of `shard_map` that any varies over."""
    axes = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    union = frozenset().union(*axes)
    return [
        jax.lax.pcast(a, tuple(union - own), to="varying") if union - own else a
        for a, own in zip(arrays, axes, strict=True)
    ]
