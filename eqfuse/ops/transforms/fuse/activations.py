"""Match activations in a trace: values that JAX computes as it does a known function."""

from __future__ import annotations

import functools

import jax
import numpy as np

from eqfuse.ops.backends.xla import activations
from eqfuse.ops.transforms.fuse.trace import Trace, has_functions


@functools.lru_cache(maxsize=256)
def _template(name: str, shape: tuple[int, ...], dtype) -> Trace:
    """Return what JAX makes of an activation."""
    x = jax.ShapeDtypeStruct(shape, dtype)
    return Trace(jax.make_jaxpr(activations.FUNCTIONS[name])(x), {})


def _equal(trace: Trace, value: int, template: Trace, other: int, bound: list[int]) -> bool:
    """Return whether a value is computed as in a template; `bound` gets what it is computed of."""
    if other == template.inputs[0]:
        bound.append(value)
        return bound[0] == value
    known = template.constant(other)
    if known is not None:
        own = trace.constant(value)
        return own is not None and own.dtype == known.dtype and np.array_equal(own, known)
    a, b = trace.node(value), template.node(other)
    if a is None or b is None or a.eqn.primitive is not b.eqn.primitive:
        return False
    if has_functions(a.params) or a.params != b.params or len(a.inputs) != len(b.inputs):
        return False
    if trace.producer[value][1] != template.producer[other][1]:
        return False
    pairs = zip(a.inputs, b.inputs, strict=True)
    return all(_equal(trace, v, template, w, bound) for v, w in pairs)


def activation_values(trace: Trace, z: int) -> dict[int, tuple[str, int]]:
    """Return a dict from values that are an activation of another to its name and the other."""
    names = {}
    count, behind = trace.avals[z].shape[0], {z}
    for node in trace.nodes:
        if not behind.intersection(node.inputs):
            continue
        for value in node.outputs:
            aval = trace.avals[value]
            if not hasattr(aval, "shape") or count not in aval.shape:
                continue
            behind.add(value)
            for name in activations.FUNCTIONS:
                bound: list[int] = []
                if name == "identity":
                    continue
                template = _template(name, tuple(aval.shape), aval.dtype)
                [out] = template.outputs
                if _equal(trace, value, template, out, bound) and bound:
                    names[value] = name, bound[0]
                    break
    return names
