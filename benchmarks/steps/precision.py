"""Errors of training steps whose matmuls are TF32, TF32 in three parts, or float32, emulated.

    python -m benchmarks.steps.precision [MODEL ...]

A GPU's tensor cores multiply TF32, float32 cut to 10 bits of the mantissa, and add in float32.
`tf32x3` multiplies the parts of a float32 that are left over as well. Here the matmuls of radial
networks and Linears are emulated, in energies, forces, and the gradient of a loss on both; tensor
products stay in float32, in the kernels of our CPU backend. All are compared with float64. Needs no
GPU.
"""

from __future__ import annotations

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from benchmarks.gpu import steps as networks
from benchmarks.networks import molecules, normal
from eqfuse import models
from eqfuse.ops.backends import xla as xla_linear_forms
from eqfuse.ops.primitives import forms, rules

MODES = ("float32", "tf32x3", "tf32")
PARTS = ("energy", "forces", "gradient")


def to_tf32(x):
    """Return float32 rounded to the 10 bits of TF32's mantissa, to nearest, ties to even."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    even = (bits >> 13) & 1
    bits = (bits + 0xFFF + even) & jnp.uint32(0xFFFFE000)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def multiplied(mode: str, dot, x, y):
    """Return `dot(x, y)`, a matmul in float32, as a tensor core would in a mode of `MODES`."""
    if mode == "float32" or x.dtype != jnp.float32:
        return dot(x, y)
    high = to_tf32(x), to_tf32(y)
    if mode == "tf32":
        return dot(*high)
    low = to_tf32(x - high[0]), to_tf32(y - high[1])
    return dot(low[0], high[1]) + dot(high[0], low[1]) + dot(*high)


def emulated(function, mode: str):
    """Return `function` with its matmuls in a mode, but those inside of tensor products."""

    def run(*args):
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _evaluated(closed.jaxpr, closed.consts, jax.tree.leaves(args), mode)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run


def _evaluated(jaxpr: Jaxpr, consts, args, mode: str) -> list:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for equation in jaxpr.eqns:
        inputs = [v.val if isinstance(v, Literal) else values[v] for v in equation.invars]
        results = _applied(equation, inputs, mode)
        values.update(zip(equation.outvars, results, strict=True))
    return [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]


def _applied(equation, inputs, mode: str) -> list:
    primitive, params = equation.primitive, equation.params
    if primitive is jax.lax.dot_general_p:
        dot = functools.partial(primitive.bind, **(params | {"precision": None}))
        return [multiplied(mode, dot, *inputs)]
    if primitive is forms.form_p:
        return primitive.bind(*inputs, **(params | {"backend": "llvm"}))
    if primitive is forms.linear_form_p:
        form, rows = params["form"], params["num_rows"]
        values, index = rules.split(inputs, len(form.inputs))
        index = index[0] if index else None
        function = functools.partial(xla_linear_forms.evaluate_linear_form, form, num_rows=rows)
        return emulated(lambda *a: function(list(a), index), mode)(*values)
    if primitive in rules.definitions:  # a fused op
        return emulated(functools.partial(rules.definitions[primitive], **params), mode)(*inputs)
    inner = params.get("jaxpr", params.get("call_jaxpr"))  # of jit, remat and their like
    if inner is not None:
        closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
        return _evaluated(closed.jaxpr, closed.consts, inputs, mode)
    results = primitive.bind(*inputs, **params)
    return results if primitive.multiple_results else [results]


def problem(name: str, seed: int = 0, atoms: int = 27, **fields):
    """Return a function of a training step, and its arguments: parameters, graph and labels.

    Args:
      name: of a model.
      seed: of parameters and labels.
      atoms: of the molecule.
      **fields: of the model, in the place of those of `networks.MODELS`.
    """
    potential = networks.potential_of(name, "triton", **fields)
    graph, rng = molecules(1, atoms), np.random.default_rng(seed)
    params = jax.tree.map(lambda s: normal(rng, *s.shape), networks.shapes_of(potential, graph))

    def step(params, graph, energy, forces):
        found = models.predict(potential, params, graph)
        loss = functools.partial(networks.loss, potential)
        return found.energy, found.forces, jax.grad(loss)(params, graph, energy, forces)

    return step, (params, graph, normal(rng, 1), normal(rng, *graph.positions.shape))


def errors(name: str, seeds=(0,), atoms: int = 27, **fields) -> list[dict[str, dict[str, float]]]:
    """Return for each seed and mode the largest error of energies, forces and gradient.

    An error is relative to the largest number of its array; a gradient has one array for each
    parameter, of which the worst counts. Other arguments are those of `problem`; each mode is
    compiled once for all seeds.
    """
    step, _ = problem(name, atoms=atoms, **fields)
    inputs = [problem(name, seed, atoms, **fields)[1] for seed in seeds]

    def compute(mode, inputs):
        compiled = jax.jit(emulated(step, mode))
        return [jax.device_get(compiled(*args)) for args in inputs]

    found = {mode: compute(mode, inputs) for mode in MODES}
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda a: np.asarray(a, np.float64) if a.dtype == jnp.float32 else a, inputs
        )
        exact = compute("float32", wide)

    def worst(result, reference):
        pairs = zip(jax.tree.leaves(result), jax.tree.leaves(reference), strict=True)
        return max(float(np.abs(a - b).max() / (np.abs(b).max() or 1.0)) for a, b in pairs)

    def compared(result, reference):
        return {p: worst(r, e) for p, r, e in zip(PARTS, result, reference, strict=True)}

    return [
        {mode: compared(results[n], reference) for mode, results in found.items()}
        for n, reference in enumerate(exact)
    ]


def main() -> None:
    """Print a table of errors, the median and the largest of five random networks of each model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.precision")
    parser.add_argument("models", nargs="*", default=list(networks.MODELS))
    print("| model | matmuls | energy | forces | gradient |\n|---|---|---|---|---|")
    for name in parser.parse_args().models:
        found = errors(name, seeds=range(5))
        for mode in MODES:
            cells = []
            for part in PARTS:
                numbers = [e[mode][part] for e in found]
                cells.append(f"{np.median(numbers):.1e} ({max(numbers):.1e})")
            print(f"| {name} | {mode} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
