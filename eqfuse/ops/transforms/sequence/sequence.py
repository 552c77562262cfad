"""`sequence`: a whole small computation, such as a training step, in one native call."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import mlir

from eqfuse import _jax_compat
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm import program as native_program
from eqfuse.ops.backends.triton import program as triton_program
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.ir.program import Program
from eqfuse.ops.primitives import rules
from eqfuse.ops.primitives.native import native_p
from eqfuse.ops.transforms.sequence.stages import BACKENDS, Stages, bind

LANES = {"llvm": 16, "triton": 1, "triton-interpret": 1}
"""Elements that an operation of `most` computes, at most, by backend."""


class Traced:
    """A traced function and its stages. Each is one of its own: equal only to itself.

    Attributes:
      closed: the trace; `tracers` of its constants are operands instead.
      most: vector operations from which on it is computed as it is written.
      log: is given a line where it turns out later that it is computed as it is written.
    """

    def __init__(
        self, closed: ClosedJaxpr, most: float, log: Callable[[str], None] = lambda line: None
    ):
        consts = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        traced = [(v, c) for v, c in consts if isinstance(c, jax.core.Tracer)]
        kept = [(v, c) for v, c in consts if not isinstance(c, jax.core.Tracer)]
        jaxpr = closed.jaxpr.replace(
            constvars=[v for v, _ in kept],
            invars=[*(v for v, _ in traced), *closed.jaxpr.invars],
            debug_info=closed.jaxpr.debug_info.with_unknown_names(),
        )
        self.tracers = [c for _, c in traced]
        self.closed, self.most = ClosedJaxpr(jaxpr, [c for _, c in kept]), most
        self.log = log

    @functools.cached_property
    def stages(self) -> Stages:
        return Stages(self.closed)

    @functools.cached_property
    def operations(self) -> int:
        """Return about how many operations its kernels run: on a CPU, of vectors."""
        return sum(cost(s.program, self.stages) for s in self.stages.native)

    @functools.cached_property
    def reason(self) -> str:
        """Return why no kernel computes it, or ""."""
        if self.closed.effects:
            return "it has effects, such as a debug print"
        elements, backends, placed = _looked_through(self.closed.jaxpr)
        if placed:  # jit has to see it, to know the devices that it compiles for
            return f"it decides where arrays lie ({', '.join(sorted(placed))})"
        known = [b for b in BACKENDS if b in backends]
        if not known:
            return 'no product and no Linear on backend "llvm" or "triton"'
        most = self.most[known[0]] if isinstance(self.most, dict) else self.most
        if not most:
            return "on a GPU one block is predicted to take longer than a launch of each step"
        beyond = f"more {'vector ' * (known[0] == 'llvm')}operations than {most:,.0f}"
        if elements // LANES[known[0]] > most:  # nothing has to be looked for
            return beyond
        if not self.stages.native:
            return "no product and no Linear that is a step"
        return beyond if self.operations > most else ""

    @property
    def choice(self) -> str:
        """Return a line about what computes it."""
        if self.reason:
            return f"as written: {self.reason}"
        steps = [len(s.program.in_loops.steps) for s in self.stages.native]
        one, several = CALLS[self.stages.backend == "llvm"]
        calls = f"one {one}" if len(steps) == 1 else f"{len(steps)} {several}"
        return f"{calls} of {sum(steps)} steps"


CALLS = ("launch", "launches"), ("native call", "native calls")


PLACED = frozenset(("shard_map", "sharding_constraint"))
"""Primitives by which `jit` finds the devices that it compiles for."""


def _looked_through(jaxpr) -> tuple[int, set, set[str]]:
    """Return the elements that a trace writes, its backends, and primitives that name devices."""
    total, backends, placed = 0, set(), set()
    for eqn in jaxpr.eqns:
        call = eqn.params.get("call")
        backends |= {eqn.params.get("backend"), getattr(call, "backend", None)}
        placed |= PLACED & {eqn.primitive.name}
        inner = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        for part in inner:
            elements, others, places = _looked_through(getattr(part, "jaxpr", part))
            total, backends, placed = total + elements, backends | others, placed | places
        if not inner:
            total += sum(v.aval.size for v in eqn.outvars if hasattr(v.aval, "size"))
    return total, backends, placed


def cost(program: Program, stages: Stages) -> int:
    """Return about how many operations a program is: on a CPU, of vectors of this machine."""
    if stages.backend == "llvm":
        return native_program.cost(program, stages.dtype, machine.machine())
    return triton_program.cost(program)


def _definition(*arrays, call: Traced) -> list:
    return jaxpr_as_fun(call.closed)(*arrays)


def _transformed(*arrays, call: Traced) -> list:
    call.log("as written: differentiated, mapped, or part of another sequence")
    return _definition(*arrays, call=call)


def _abstract(*arrays, call: Traced):
    return [aval.update(weak_type=False) for aval in call.closed.out_avals]


sequence_p = rules.defined_primitive("eqfuse_sequence", _transformed, _abstract)


def _evaluate(stages: Stages, arrays) -> list:
    """Return the outputs of a function, stage by stage."""
    trace = stages.trace
    env = dict(trace.given) | dict(zip(trace.inputs, arrays, strict=True))
    for stage in stages.stages:
        if stage.program is None:
            for node in stage.nodes:
                collected = bind(node.eqn, [env[v] for v in node.inputs])
                env.update(zip(node.outputs, collected, strict=True))
            continue
        given = [_given(env, key) for key in stage.inputs]
        call = _call if stages.backend == "llvm" else _launch
        results = call(stage.program, given, stages)
        for node in stage.nodes:
            for v in node.outputs:
                if not trace.avals[v].size:
                    env[v] = jnp.zeros(trace.avals[v].shape, trace.avals[v].dtype)
        for value, result in zip(stage.outputs, results, strict=True):
            env[value] = result.reshape(trace.avals[value].shape)
    return [env[v] for v in trace.outputs]


def _launch(program: Program, arrays, stages: Stages) -> list[jax.Array]:
    """Return the outputs of a program, flat, from one launch."""
    kernel = triton_program.generate(program, stages.dtype)
    shapes = [(program.arrays[n].size,) for n in program.outputs] + [(kernel.scratch,)]
    flat = [a.reshape(-1) for a in arrays]
    *results, _ = launch(kernel.spec, flat, shapes, (), (1,), stages.backend)
    return results


def _call(program: Program, arrays, stages: Stages) -> list[jax.Array]:
    """Return the outputs of a program, flat, from one native call."""
    dtype = stages.dtype
    module = native_program.generate(program, dtype, machine.machine())
    indices = {n for n, _, _ in program.indices}
    shaped = [
        a.reshape(-1) if n in indices else a.reshape(1, -1)
        for n, a in zip(program.inputs, arrays, strict=True)
    ]
    shapes = tuple((1, program.arrays[n].size) for n in program.outputs)
    dtypes = tuple(program.arrays[n].dtype for n in program.outputs)
    shapes += tuple((1, width) for width in module.copies)
    dtypes += (dtype,) * len(module.copies)
    results = native_p.bind(*shaped, module=module, shapes=shapes, dtypes=dtypes)
    return results[: len(program.outputs)]


def _given(env, key):
    """Return an input of a kernel."""
    if isinstance(key, int):
        return env[key]
    what, value, *rest = key
    index = env[value].astype(jnp.int32)
    if what == "index":
        return index
    [num_sets] = rest
    if what == "order":
        return jnp.argsort(index).astype(jnp.int32)
    counts = jnp.zeros(num_sets + 1, jnp.int32).at[index + 1].add(1)
    return jnp.cumsum(counts, dtype=jnp.int32)


def run_sequence(*arrays, call: Traced) -> list:
    """Return the outputs of a function, by its kernels."""
    return _evaluate(call.stages, arrays)


def _lower(ctx, *operands, call: Traced):
    if _jax_compat.is_on_one_device(ctx.module_context.axis_context):
        return mlir.lower_fun(run_sequence, multiple_results=True)(ctx, *operands, call=call)
    return _lower_as_written(ctx, *operands, call=call, where="on several devices")


def _lower_as_written(ctx, *operands, call: Traced, where: str = "not on a CPU or a GPU"):
    call.log(f"as written: {where}")
    return mlir.lower_fun(_definition, multiple_results=True)(ctx, *operands, call=call)


mlir.register_lowering(sequence_p, _lower_as_written)
for _platform in ("cpu", "cuda", "rocm"):
    mlir.register_lowering(sequence_p, _lower, platform=_platform)


MOST = {"llvm": 3_500_000, "triton": 0, "triton-interpret": 0}
"""Operations from which on it is worth more to share each step out, by backend: see `sequence`.

None on a GPU: a training step of the Tetris network is predicted to take 276 us in one block, and
84 in 44 launches (benchmarks/results/sequences.md).
"""


def sequence(
    function: Callable | None = None,
    *,
    most: float | None = None,
    report: bool | Callable[[str], None] = False,
    **options,
) -> Callable:
    """Compile a function, as `jax.jit` does, into one native call where it is small.

    A network of few channels, on few atoms, spends most of its time on beginning operations. The
    function is traced, and its products, Linears and fused ops of backend "llvm" or "triton" with
    what is between them (element-wise functions, changes of shape, sums, rows gathered and added)
    become one kernel, which runs them one after the other. What it does not know, XLA computes:
    before it, after it, or between several such kernels. On several devices, on a mesh of explicit
    axes, inside `shard_map`, and with one in it or with a sharding constraint, the function is
    computed as it is written.

    On a GPU one block is the kernel, on one multiprocessor. By prediction that takes longer than
    the launches of all steps, unless the host is what they wait for, so it has to be asked for,
    with `most=math.inf`.

    Pass a function that takes its gradients itself, such as `jax.value_and_grad(loss)` or a whole
    training step. What is returned can be differentiated and mapped too: its derivatives are those
    of `function`, computed as they are without `sequence`.

    Args:
      function: of any arguments that `jax.jit` takes.
      most: operations, about, beyond which the function is computed as it is written: then it is
        worth more to share each one out. On a CPU they are of vectors. None is 3.5 million on a
        CPU, and none on a GPU.
      report: print, whenever the function is traced, a table of what is computed how, and why not
        otherwise. A function in its place is given one line about what was chosen. Another
        line follows where it is computed as it is written after all, for what becomes known later:
        several devices, another kind of device, derivatives, `vmap`.
      options: of `jax.jit`.
    Returns:
      The compiled function. Without a `function`, a decorator.
    """
    if function is None:
        return functools.partial(sequence, most=most, report=report, **options)

    log = report if callable(report) else print if report else lambda text: None

    @functools.wraps(function)
    def sequenced(*args, **kwargs):
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.explicit_axes or mesh.manual_axes:
            log("as written: inside shard_map, or on a mesh of explicit axes")
            return function(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays, structure = [leaves[n] for n in places], []

        def flat(*arrays):
            full = list(leaves)
            for n, array in zip(places, arrays, strict=True):
                full[n] = array
            args, kwargs = jax.tree.unflatten(tree, full)
            outputs, tree_out = jax.tree.flatten(function(*args, **kwargs))
            structure.append(tree_out)
            return outputs

        traced = Traced(jax.make_jaxpr(flat)(*arrays), MOST if most is None else most, log)
        if report:
            log(traced.choice if callable(report) else table(traced))
        if traced.reason:
            outputs = jaxpr_as_fun(traced.closed)(*traced.tracers, *arrays)
        else:
            outputs = sequence_p.bind(*traced.tracers, *arrays, call=traced)
        return jax.tree.unflatten(structure[0], outputs)

    return jax.jit(sequenced, **options)


def table(traced: Traced) -> str:
    """Return the report: a line for each native call, and for each reason why others are none."""
    if traced.reason:
        return traced.choice
    lines = [("operations", "computed by", "why not")]
    for stage in traced.stages.native:
        products = len(stage.program.multilinear)
        operations = f"{len(stage.nodes)}, {products} of them products and Linears"
        lines.append(
            (operations, f"a native call of {len(stage.program.in_loops.steps)} steps", "")
        )
    for reason, count in sorted(traced.stages.reasons.items()):
        if reason:
            lines.append((str(count), "XLA", reason))
    widths = [max(len(line[n]) for line in lines) for n in range(3)]
    rows = (" | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(row.rstrip() for row in rows)
