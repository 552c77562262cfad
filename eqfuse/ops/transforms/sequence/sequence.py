"""`sequence`: a whole small computation, such as a training step, in one native call."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import mlir

from eqfuse import _jax_compat
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm import program as native_program
from eqfuse.ops.ir.program import Number, Program
from eqfuse.ops.primitives import rules
from eqfuse.ops.primitives.native import native_p
from eqfuse.ops.transforms.sequence.conversion import FORM, LINEAR_FORM, Converter, NoStepError
from eqfuse.ops.transforms.trace import Node, Trace, bind, needed, traced

KERNELS = (FORM, LINEAR_FORM)
BACKEND = "llvm"
"""The backend of the forms that are steps. On a GPU, one block that takes all steps was predicted
to take three times as long as their launches (benchmarks/results/sequences.md)."""
MOST = 4_800_000
"""A function that writes more elements runs faster as XLA's operations, on all threads."""

PLACED = frozenset(("shard_map", "sharding_constraint"))
"""Primitives by which `jit` finds the devices that it compiles for."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """Nodes that are computed together, by one native kernel or, without a program, by XLA."""

    nodes: tuple[Node, ...]
    program: Program | None = None
    inputs: tuple = ()  # what the kernel reads, by the keys of `Converter.inputs`
    outputs: tuple[int, ...] = ()  # the values that are its results


class Stages:
    """A traced function as stages; the dtype is that of its forms, "" without any."""

    def __init__(self, closed: ClosedJaxpr):
        self.trace = Trace(expanded(closed), {})
        _, numbers = needed(self.trace, {})
        self._nodes = [n for k, n in enumerate(self.trace.nodes) if k in numbers]
        forms = [n for n in self._nodes if n.name in KERNELS and n.params["backend"] == BACKEND]
        dtypes = {str(self.trace.avals[n.inputs[0]].dtype) for n in forms}
        self.dtype = next((d for d in ("float32", "float64") if d in dtypes), "")
        self.reasons: collections.Counter[str] = collections.Counter()  # of nodes that are no steps
        self.stages = self._cut()

    @functools.cached_property
    def native(self) -> tuple[Stage, ...]:
        return tuple(s for s in self.stages if s.program is not None)

    def _cut(self) -> list[Stage]:
        """Cut so that what runs natively comes as early, and in as few pieces, as can be.

        Each node gets a level, an odd one if it is a step, at least that of what it reads.
        """
        reasons = {
            node: self._reason(node) if self.dtype else "no product and no Linear"
            for node in self._nodes
        }
        for node in self._behind_indices():
            reasons[node] = reasons[node] or "indices of edges"
        for node in self._before_kernels(reasons):
            reasons[node] = reasons[node] or "read by what has no step, before any kernel"
        levels: dict[int, int] = {}
        parts: dict[int, list[Node]] = collections.defaultdict(list)
        for node in self._nodes:
            reason = reasons[node]
            self.reasons[reason] += 1
            level = max((levels.get(v, 0) for v in node.inputs), default=0)
            level += level % 2 != (not reason)
            levels |= dict.fromkeys(node.outputs, level)
            parts[level].append(node)
        return [self._stage(parts, level) for level in sorted(parts)]

    def _behind_indices(self) -> set[Node]:
        """Return the nodes that index arrays of kernels are computed by.

        Indices are checked before a kernel runs, and so these nodes are no part of it.
        """
        todo = []
        for node in self._nodes:
            if node.name in KERNELS:
                what = node.params["form"]
                todo += node.inputs[len(what.inputs) :]
        return self._behind(todo)

    def _before_kernels(self, reasons: dict[Node, str]) -> set[Node]:
        """Return the equations that compute nodes without a step, if no kernel is among them.

        XLA computes it before the first kernel, which it would cut in two.
        """
        of_kernels: set[int] = set()
        todo: list[int] = []
        for node in self._nodes:
            if node.name in KERNELS or of_kernels.intersection(node.inputs):
                of_kernels.update(node.outputs)
            elif reasons[node]:
                todo += node.inputs
        return self._behind(todo)

    def _behind(self, todo: list[int]) -> set[Node]:
        result: set[Node] = set()
        while todo:
            node = self.trace.node(todo.pop())
            if node is not None and node not in result:
                result.add(node)
                todo += node.inputs
        return result

    def _reason(self, node: Node) -> str:
        if node.eqn.effects:
            return f"{node.name} has effects"
        try:
            Converter(self.trace, self.dtype).convert(node)
        except NoStepError as error:
            return str(error)
        return ""

    def _stage(self, parts, level: int) -> Stage:
        nodes = parts[level]
        if level % 2 == 0 or not any(n.name in KERNELS for n in nodes):
            return Stage(tuple(nodes))
        converter = Converter(self.trace, self.dtype)
        for node in nodes:
            converter.convert(node)
        own = set(map(id, nodes))
        later = {v for n in self._nodes if id(n) not in own for v in n.inputs}
        later |= set(self.trace.outputs)
        made = [v for n in nodes for v in n.outputs if v in later]
        outputs = tuple(v for v in made if self.trace.avals[v].size)
        results: list[int] = []
        outside, known = set(converter.inputs.values()), set()
        for value in outputs:
            read = converter.numbers[value]
            if isinstance(read, Number) or read in outside or read in known:
                aval = self.trace.avals[value]
                array = converter.new(aval.size, str(aval.dtype))
                read = converter.copy(read, array, (aval.size,), (1,))
            results.append(read)
            known.add(read)
        inputs = converter.inputs
        parts = converter.arrays, inputs.values(), results, converter.steps, converter.indices
        return Stage(tuple(nodes), Program(*map(tuple, parts)), tuple(inputs), outputs)


CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
CALLS |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr"}
CALLS |= {"checkpoint": "jaxpr", "remat": "jaxpr"}


def expanded(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the same function without calls, fused ops as their products and Linears."""

    def run(jaxpr, consts, arrays) -> list:
        env = dict(zip(jaxpr.constvars, consts, strict=True))
        env |= dict(zip(jaxpr.invars, arrays, strict=True))

        def read(v):
            return v.val if isinstance(v, jax.extend.core.Literal) else env[v]

        for eqn in jaxpr.eqns:
            primitive, inputs = eqn.primitive, [read(v) for v in eqn.invars]
            if primitive in rules.definitions:
                outputs = rules.definitions[primitive](*inputs, **eqn.params)
            elif primitive.name in CALLS:
                inner = eqn.params[CALLS[primitive.name]]
                is_closed = isinstance(inner, ClosedJaxpr)
                parts = (inner.jaxpr, inner.consts) if is_closed else (inner, ())
                outputs = run(*parts, inputs)
            else:
                outputs = _outputs(eqn, inputs)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def function(*arrays):
        return run(closed.jaxpr, closed.consts, arrays)

    return jax.make_jaxpr(function)(*closed.in_avals)


def _outputs(eqn, arrays) -> list:
    if not arrays and eqn.primitive.name == "iota":  # a constant, and no operation
        with jax.ensure_compile_time_eval():
            return [eqn.primitive.bind(**eqn.params)]
    return bind(eqn, arrays)


class Sequence:
    """A traced function and its stages. Each is one of its own: equal only to itself.

    Constants that are `tracers` are operands. With more than `most` elements it is computed as it
    is written; `log` gets a line where that turns out later.
    """

    def __init__(self, closed: ClosedJaxpr, most: float, log: Callable = lambda line: None):
        consts = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        traced = [(v, c) for v, c in consts if isinstance(c, jax.core.Tracer)]
        kept = [(v, c) for v, c in consts if not isinstance(c, jax.core.Tracer)]
        jaxpr = closed.jaxpr.replace(
            constvars=[v for v, _ in kept],
            invars=[*(v for v, _ in traced), *closed.jaxpr.invars],
            debug_info=closed.jaxpr.debug_info.with_unknown_names(),
        )
        self.tracers = [c for _, c in traced]
        self.closed, self.most, self.log = ClosedJaxpr(jaxpr, [c for _, c in kept]), most, log

    @functools.cached_property
    def stages(self) -> Stages:
        return Stages(self.closed)

    @functools.cached_property
    def reason(self) -> str:
        if self.closed.effects:
            return "it has effects, such as a debug print"
        elements, backends, placed = _looked_through(self.closed.jaxpr)
        if placed:  # jit has to see it, to know the devices that it compiles for
            return f"it decides where arrays lie ({', '.join(sorted(placed))})"
        if BACKEND not in backends:
            return f'no product and no Linear on backend "{BACKEND}"'
        if elements > self.most:
            return f"it writes more elements than {self.most:,.0f}"
        return "" if self.stages.native else "no product and no Linear that is a step"

    @property
    def choice(self) -> str:
        if self.reason:
            return f"as written: {self.reason}"
        steps = [len(s.program.in_loops.steps) for s in self.stages.native]
        calls = "one native call" if len(steps) == 1 else f"{len(steps)} native calls"
        return f"{calls} of {sum(steps)} steps"

    @property
    def table(self) -> str:
        """Return the choice, and a line for each reason why others are no native calls."""
        counted = {} if self.reason else self.stages.reasons
        left = [f"XLA computes {count}: {why}" for why, count in sorted(counted.items()) if why]
        return "\n".join([self.choice, *left])


def _looked_through(jaxpr) -> tuple[int, set, set[str]]:
    """Return the elements that a trace writes, its backends, and primitives that name devices."""
    total, backends, placed = 0, set(), set()
    for eqn in jaxpr.eqns:
        backends |= {eqn.params.get("backend"), getattr(eqn.params.get("call"), "backend", None)}
        placed |= PLACED & {eqn.primitive.name}
        inner = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        for part in inner:
            elements, others, places = _looked_through(getattr(part, "jaxpr", part))
            total, backends, placed = total + elements, backends | others, placed | places
        if not inner:
            total += sum(v.aval.size for v in eqn.outvars if hasattr(v.aval, "size"))
    return total, backends, placed


# the primitive


def _definition(*arrays, call: Sequence) -> list:
    return jaxpr_as_fun(call.closed)(*arrays)


def _transformed(*arrays, call: Sequence) -> list:
    call.log("as written: differentiated, mapped, or part of another sequence")
    return _definition(*arrays, call=call)


def _abstract(*arrays, call: Sequence):
    return [aval.update(weak_type=False) for aval in call.closed.out_avals]


sequence_p = rules.defined_primitive("eqfuse_sequence", _transformed, _abstract)


def run_sequence(*arrays, call: Sequence) -> list:
    stages, trace = call.stages, call.stages.trace
    env = dict(trace.given) | dict(zip(trace.inputs, arrays, strict=True))
    for stage in stages.stages:
        if stage.program is None:
            for node in stage.nodes:
                outputs = _outputs(node.eqn, [env[v] for v in node.inputs])
                env.update(zip(node.outputs, outputs, strict=True))
            continue
        given = [_given(env, key) for key in stage.inputs]
        results = _native_call(stage.program, given, stages.dtype)
        for v in (v for node in stage.nodes for v in node.outputs):
            if not trace.avals[v].size:
                env[v] = jnp.zeros(trace.avals[v].shape, trace.avals[v].dtype)
        for value, result in zip(stage.outputs, results, strict=True):
            env[value] = result.reshape(trace.avals[value].shape)
    return [env[v] for v in trace.outputs]


def _given(env, key):
    """Return an input of a kernel, by its key of `Converter.inputs`."""
    if isinstance(key, int):
        return env[key]
    name, value, size, _ = key
    index = env[value].astype(jnp.int32)
    if name == "order":
        return jnp.argsort(index).astype(jnp.int32)
    if name == "offsets":
        counts = jnp.zeros(size, jnp.int32).at[index + 1].add(1)
        return jnp.cumsum(counts, dtype=jnp.int32)
    return index


def _native_call(program: Program, arrays, dtype: str) -> list[jax.Array]:
    module = native_program.generate(program, dtype, machine.machine())
    indices = {n for n, _, _ in program.indices}
    shaped = [
        a.reshape(-1) if n in indices else a.reshape(1, -1)
        for n, a in zip(program.inputs, arrays, strict=True)
    ]
    outputs = [program.arrays[n] for n in program.outputs]
    shapes = (*((1, a.size) for a in outputs), *((1, width) for width in module.copies))
    dtypes = (*(a.dtype for a in outputs), *(dtype for _ in module.copies))
    results = native_p.bind(*shaped, module=module, shapes=shapes, dtypes=dtypes)
    return results[: len(outputs)]


def _lower(ctx, *operands, call: Sequence):
    if _jax_compat.is_on_one_device(ctx.module_context.axis_context):
        return mlir.lower_fun(run_sequence, multiple_results=True)(ctx, *operands, call=call)
    return _lower_as_written(ctx, *operands, call=call, where="on several devices")


def _lower_as_written(ctx, *operands, call: Sequence, where: str = "not on a CPU"):
    call.log(f"as written: {where}")
    return mlir.lower_fun(_definition, multiple_results=True)(ctx, *operands, call=call)


mlir.register_lowering(sequence_p, _lower_as_written)
mlir.register_lowering(sequence_p, _lower, platform="cpu")


def sequence(
    function: Callable | None = None,
    *,
    most: float = MOST,
    report: bool | Callable[[str], None] = False,
    **options,
) -> Callable:
    """Compile a function, as `jax.jit` does, into one native call where it is small.

    A network of few channels, on few atoms, spends most of its time on beginning operations. The
    function is traced, and its products, Linears and fused ops of backend "llvm" with
    what is between them (element-wise functions, changes of shape, sums, rows gathered and added)
    become one kernel, which runs them one after the other. What it does not know, XLA computes:
    before it, after it, or between several such kernels. On a GPU, on several devices, on a mesh of
    explicit axes, inside `shard_map`, and with one in it or with a sharding constraint, the
    function is computed as it is written.

    Pass a function that takes its gradients itself, such as `jax.value_and_grad(loss)` or a whole
    training step. What is returned can be differentiated and mapped too: its derivatives are those
    of `function`, computed as they are without `sequence`.

    Args:
      function: of any arguments that `jax.jit` takes.
      most: elements of all results of its operations beyond which the function is computed as it is
        written: then it is worth more to share each operation out.
      report: print, whenever the function is traced, what is computed how, and why not otherwise. A
        function in its place is given one line about what was chosen. Another
        line follows where it is computed as it is written after all, for what becomes known later:
        several devices, another kind of device, derivatives, `vmap`.
      options: of `jax.jit`.
    Returns:
      The compiled function. Without a `function`, a decorator.

    Example:
      >>> gradient = ops.sequence(jax.grad(lambda x: (x**2).sum()))
      >>> gradient(jnp.arange(3.0))
      Array([0., 2., 4.], dtype=float32)
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
        closed, arrays, result_of = traced(function, args, kwargs)
        call = Sequence(closed, most, log)
        if report:
            log(call.choice if callable(report) else call.table)
        if call.reason:
            return result_of(jaxpr_as_fun(call.closed)(*call.tracers, *arrays))
        return result_of(sequence_p.bind(*call.tracers, *arrays, call=call))

    return jax.jit(sequenced, **options)
