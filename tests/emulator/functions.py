"""Run a JAX function whose Triton kernels are emulated, and all else is what JAX computes."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from eqfuse.ops.backends.triton.compile import compile_kernel
from eqfuse.ops.backends.triton.primitive import launch_p
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.primitives.lowering import lowerings
from tests.emulator.arrays import Array, is_poison, poison
from tests.emulator.errors import NeverWrittenError
from tests.emulator.machine import Machine


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel to run, and how: what `backends.triton.primitive.launch` takes.

    Arrays whose numbers are not needed may be jax.ShapeDtypeStructs.
    """

    spec: KernelSpec
    arrays: tuple
    shapes: tuple[tuple[int, ...], ...]
    scalars: tuple[int, ...]
    grid: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...]


def emulate(function, *args, target: str = "sm_90", mend=None, precision: str = "highest"):
    """Return what a function with ops on the backend "triton" gives, its kernels emulated.

    `mend` changes the PTX text of a kernel, to see the EmulationError that it raises. `precision`
    is that of the kernels' matmuls of float32, by the name of `jax.default_matmul_precision`.
    """
    with jax.default_matmul_precision(precision):
        jaxpr, out = jax.make_jaxpr(function, return_shape=True)(*args)
    run = functools.partial(run_launch, target=target, mend=mend)
    results = evaluate(jaxpr.jaxpr, jaxpr.consts, jax.tree.leaves(args), run)
    return jax.tree.unflatten(jax.tree.structure(out), results)


def run_launch(launch: Launch, target: str, mend=None) -> list[np.ndarray]:
    """Return the outputs of a kernel."""
    machine = (_machine.__wrapped__ if mend else _machine)(launch.spec, target, mend)
    spec, aliased = launch.spec, {output: place for place, output in launch.aliases}
    inputs = [
        Array.input(f"input {n} ({t})", np.asarray(a))
        for n, (a, t) in enumerate(zip(launch.arrays, spec.input_types, strict=True))
    ]
    results, outputs = [], []
    for n, (shape, dtype) in enumerate(zip(launch.shapes, spec.output_dtypes, strict=True)):
        begun = n in aliased  # by an earlier kernel
        values = np.array(launch.arrays[aliased[n]]) if begun else poison(shape, jnp.dtype(dtype))
        results.append(values)
        outputs.append(Array.output(f"output {n} ({dtype})", values, machine.program.warps))
        if begun:
            inputs[aliased[n]] = outputs[n]
    machine.run([*inputs, *launch.scalars, *outputs], launch.grid)
    return results


def _require_whole(arrays, what: str) -> None:
    """Refuse outputs of kernels of which an element was never written."""
    for array in arrays:
        if isinstance(array, np.ndarray) and (missing := int(is_poison(array).sum())):
            which = f"{missing} of {array.size} elements of a kernel's output {array.shape}"
            raise NeverWrittenError(f"{which} were never written, and {what}")


@functools.lru_cache(maxsize=64)
def _machine(spec: KernelSpec, target: str, mend=None) -> Machine:
    kernel = compile_kernel(spec, target)
    return Machine(mend(kernel.assembly) if mend else kernel.assembly, kernel.shared_bytes)


def evaluate(jaxpr: Jaxpr, consts, args, run):
    """Return the results of a jaxpr, with `run(launch)` for every kernel."""
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= dict(zip(jaxpr.invars, args, strict=True))

    def value(variable):
        return variable.val if isinstance(variable, Literal) else known[variable]

    for equation in jaxpr.eqns:
        values = [value(v) for v in equation.invars]
        begun = {a for a, _ in equation.params.get("aliases", ())}
        _require_whole(
            [v for n, v in enumerate(values) if n not in begun], f"{equation.primitive} reads them"
        )
        results = _equation(equation, values, run)
        known |= dict(zip(equation.outvars, results, strict=True))
    results = [value(v) for v in jaxpr.outvars]
    _require_whole(results, "they are the result")
    return results


def _equation(equation, values, run):
    primitive, params = equation.primitive, equation.params
    if primitive is launch_p:
        names = ("spec", "shapes", "scalars", "grid", "aliases")
        return run(Launch(arrays=tuple(values), **{name: params[name] for name in names}))
    if primitive in lowerings:
        lowered = jax.make_jaxpr(functools.partial(lowerings[primitive], **params))(*values)
        return evaluate(lowered.jaxpr, lowered.consts, values, run)
    if primitive.name != "scan" and (inner := call_of(params)):
        return evaluate(inner.jaxpr, inner.consts, values, run)
    found = primitive.bind(*map(jnp.asarray, values), **params)
    return found if primitive.multiple_results else [found]


def call_of(params) -> ClosedJaxpr | None:
    """Return the function that an equation calls once with its operands, if that is what it is."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        found = params.get(name)
        if isinstance(found, ClosedJaxpr):
            return found
        if isinstance(found, Jaxpr):
            return ClosedJaxpr(found, ())
    return None
