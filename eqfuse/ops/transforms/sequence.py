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
from eqfuse.ops.backends.llvm.program import generate
from eqfuse.ops.ir.program import Number, Program
from eqfuse.ops.primitives import native, rules
from eqfuse.ops.transforms.conversion import FORM, LINEAR_FORM, Converter, NoStepError, whole
from eqfuse.ops.transforms.trace import Node, Trace, bind, needed, traced

KERNELS = (FORM, LINEAR_FORM)
BACKEND = "llvm"
"""The backend of the forms that are steps. On a GPU, one block that takes all steps was predicted
to take three times as long as their launches (benchmarks/results/sequences.md)."""
MOST = 4_800_000
"""A function that writes more elements runs faster as XLA's operations, on all threads."""

PLACED = frozenset(("shard_map", "sharding_constraint"))
"""Primitives by which `jit` finds the devices that it compiles for."""
CALLS = dict.fromkeys(("jit", "remat2", "checkpoint", "remat"), "jaxpr")
CALLS |= dict.fromkeys(("closed_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr")
"""The parameter that is the function which an equation calls, by its primitive."""


def called(eqn) -> ClosedJaxpr | None:
    """Return the function that an equation calls, or the products and Linears of a fused op."""
    if eqn.primitive in rules.definitions:
        function = functools.partial(rules.definitions[eqn.primitive], **eqn.params)
        return jax.make_jaxpr(function)(*(v.aval for v in eqn.invars))
    if not eqn.invars and eqn.primitive.name == "iota":  # a constant, and no operation
        with jax.ensure_compile_time_eval():
            numbers = eqn.primitive.bind(**eqn.params)
        return jax.make_jaxpr(lambda: [numbers])()
    inner = eqn.params.get(CALLS.get(eqn.primitive.name))
    return inner if inner is None or isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


@dataclasses.dataclass(frozen=True)
class Stage:
    """Nodes that are computed together, by one native kernel or, without a program, by XLA."""

    nodes: tuple[Node, ...]
    program: Program | None = None
    inputs: tuple = ()  # what the kernel reads, by the keys of `Converter.inputs`
    outputs: tuple[int, ...] = ()  # the values that are its results


class Sequence:
    """A traced function, cut into stages. Each is one of its own: equal only to itself.

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
    def reason(self) -> str:
        """Return why it is computed as it is written, or ""."""
        if self.closed.effects:
            return "it has effects, such as a debug print"
        equations = list(_equations(self.closed.jaxpr))
        if placed := PLACED & {eqn.primitive.name for eqn, _ in equations}:
            # jit has to see it, to know the devices that it compiles for
            return f"it decides where arrays lie ({', '.join(sorted(placed))})"
        params = [eqn.params for eqn, _ in equations]
        if BACKEND not in {p.get("backend", getattr(p.get("call"), "backend", "")) for p in params}:
            return f'no product and no Linear on backend "{BACKEND}"'
        results = (v.aval for eqn, calls in equations if not calls for v in eqn.outvars)
        elements = sum(getattr(aval, "size", 0) for aval in results)
        elements += sum(getattr(p.get("call"), "unwritten", 0) for p in params)
        if elements > self.most:
            return f"it writes more elements than {self.most:,.0f}"
        return "" if self.native else "no product and no Linear that is a step"

    @property
    def choice(self) -> str:
        if self.reason:
            return f"as written: {self.reason}"
        steps = [len(s.program.in_loops.steps) for s in self.native]
        calls = "one native call" if len(steps) == 1 else f"{len(steps)} native calls"
        return f"{calls} of {sum(steps)} steps"

    @property
    def table(self) -> str:
        """Return the choice, and a line for each reason why others are no native calls."""
        counted = {} if self.reason else collections.Counter(self.reasons.values())
        left = [f"XLA computes {count}: {why}" for why, count in sorted(counted.items()) if why]
        return "\n".join([self.choice, *left])

    @functools.cached_property
    def native(self) -> list[Stage]:
        return [s for s in self.stages if s.program is not None]

    @functools.cached_property
    def trace(self) -> Trace:
        return Trace(self.closed, {}, called)

    @functools.cached_property
    def nodes(self) -> list[Node]:
        return needed(self.trace, {})[1]

    @functools.cached_property
    def dtype(self) -> str:
        """Return the dtype of the forms that are steps, "" without any."""
        forms = (n for n in self.nodes if n.name in KERNELS and n.params["backend"] == BACKEND)
        dtypes = {str(self.trace.avals[n.inputs[0]].dtype) for n in forms}
        return next((d for d in ("float32", "float64") if d in dtypes), "")

    @functools.cached_property
    def reasons(self) -> dict[Node, str]:
        """Return why each node is no step, "" if it is one."""
        reasons = {node: self._reason(node) for node in self.nodes}
        # indices are checked before a kernel runs, and so what computes them is no part of it
        kernels = [n for n in self.nodes if n.name in KERNELS]
        indices = [v for n in kernels for v in n.inputs[len(n.params["form"].inputs) :]]
        for node in self.trace.behind(indices):
            reasons[node] = reasons[node] or "indices of edges"
        # a node without a step before any kernel would cut the first one in two
        of_kernels: set[int] = set()
        before: list[int] = []
        for node in self.nodes:
            if node.name in KERNELS or of_kernels.intersection(node.inputs):
                of_kernels.update(node.outputs)
            elif reasons[node]:
                before += node.inputs
        for node in self.trace.behind(before):
            reasons[node] = reasons[node] or "read by what has no step, before any kernel"
        return reasons

    def _reason(self, node: Node) -> str:
        if not self.dtype:
            return "no product and no Linear"
        if node.eqn.effects:
            return f"{node.name} has effects"
        try:
            Converter(self.trace, self.dtype).convert(node)
        except NoStepError as error:
            return str(error)
        return ""

    @functools.cached_property
    def stages(self) -> list[Stage]:
        """Cut so that what runs natively comes as early, and in as few pieces, as can be.

        Each node gets a level, an odd one if it is a step, at least that of what it reads.
        """
        levels: dict[int, int] = {}
        parts: dict[int, list[Node]] = collections.defaultdict(list)
        for node in self.nodes:
            level = max((levels.get(v, 0) for v in node.inputs), default=0)
            level += level % 2 != (not self.reasons[node])
            levels |= dict.fromkeys(node.outputs, level)
            parts[level].append(node)
        return [self._stage(tuple(parts[level]), level) for level in sorted(parts)]

    def _stage(self, nodes: tuple[Node, ...], level: int) -> Stage:
        if level % 2 == 0 or not any(n.name in KERNELS for n in nodes):
            return Stage(nodes)
        converter, avals = Converter(self.trace, self.dtype), self.trace.avals
        for node in nodes:
            converter.convert(node)
        own = set(nodes)
        later = {v for n in self.nodes if n not in own for v in n.inputs}
        later.update(self.trace.outputs)
        outputs = tuple(v for n in nodes for v in n.outputs if v in later and avals[v].size)
        results: list[int] = []
        for value in outputs:
            read = converter.numbers[value]
            given = isinstance(read, Number) or read in converter.views
            if given or read in converter.inputs.values() or read in results:
                array = converter.new(avals[value].size, str(avals[value].dtype))
                read = converter.copy(read, array, whole((avals[value].size,)))
            results.append(read)
        return Stage(nodes, converter.program(results), tuple(converter.inputs), outputs)

    def run(self, *arrays) -> list:
        """Return the outputs, stage by stage."""
        trace = self.trace
        env = dict(trace.given) | dict(zip(trace.inputs, arrays, strict=True))
        for stage in self.stages:
            if stage.program is None:
                for node in stage.nodes:
                    outputs = bind(node, [env[v] for v in node.inputs])
                    env.update(zip(node.outputs, outputs, strict=True))
                continue
            given = [
                env[k] if isinstance(k, int) else native.of_sets(k[0], env[k[1]], k[2] - 1)
                for k in stage.inputs
            ]
            results = _native_call(stage.program, given, self.dtype)
            for v in (v for node in stage.nodes for v in node.outputs):
                if not trace.avals[v].size:
                    env[v] = jnp.zeros(trace.avals[v].shape, trace.avals[v].dtype)
            for value, result in zip(stage.outputs, results, strict=True):
                env[value] = result.reshape(trace.avals[value].shape)
        return [env[v] for v in trace.outputs]


def _equations(jaxpr):
    """Yield equations, also those inside of functions, and whether each calls some."""
    for eqn in jaxpr.eqns:
        inner = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        yield eqn, bool(inner)
        for part in inner:
            yield from _equations(getattr(part, "jaxpr", part))


def _native_call(program: Program, arrays, dtype: str) -> list[jax.Array]:
    module = machine.write(functools.partial(generate, program, dtype))
    indices = {n for n, _, _ in program.indices}
    shaped = [
        a.reshape(-1) if n in indices else a.reshape(1, -1)
        for n, a in zip(program.inputs, arrays, strict=True)
    ]
    results = native.native_p.bind(*shaped, module=module, num_rows=1, num_nodes=1)
    return results[: len(program.outputs)]


# the primitive


def _definition(*arrays, call: Sequence) -> list:
    return jaxpr_as_fun(call.closed)(*arrays)


def _transformed(*arrays, call: Sequence) -> list:
    call.log("as written: differentiated, mapped, or part of another sequence")
    return _definition(*arrays, call=call)


def _abstract(*arrays, call: Sequence):
    return call.closed.out_avals


def _lower(ctx, *operands, call: Sequence, on_cpu: bool = False):
    run = functools.partial(_definition, call=call)
    if on_cpu and _jax_compat.is_on_one_device(ctx.module_context.axis_context):
        run = call.run
    else:
        call.log(f"as written: {'on several devices' if on_cpu else 'not on a CPU'}")
    return rules.lowering_by(run)(ctx, *operands)


sequence_p = rules.defined_primitive("eqfuse_sequence", _transformed, _abstract)
mlir.register_lowering(sequence_p, _lower)
mlir.register_lowering(sequence_p, functools.partial(_lower, on_cpu=True), platform="cpu")


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
