"""A traced function cut into stages: those that are steps of one native kernel, and the rest."""

from __future__ import annotations

import collections
import dataclasses
import functools

import jax
from jax.extend.core import ClosedJaxpr

from eqfuse.ops.backends.triton import program as triton_program
from eqfuse.ops.ir.program import Copy, Number, Program
from eqfuse.ops.primitives.rules import definitions
from eqfuse.ops.transforms.fuse import trace as traces
from eqfuse.ops.transforms.fuse.trace import Node, needed_values
from eqfuse.ops.transforms.sequence.conversion import FORM, LINEAR_FORM, Converter, NoStepError

KERNELS = (FORM, LINEAR_FORM)
BACKENDS = ("llvm", "triton", "triton-interpret")


@dataclasses.dataclass(frozen=True)
class Stage:
    """Nodes that are computed together.

    Attributes:
      nodes: in order.
      program: one native kernel for all of them; None where XLA computes them one by one.
      inputs: what the kernel reads: values, or see `Converter.inputs`.
      outputs: the values that are its results.
    """

    nodes: tuple[Node, ...]
    program: Program | None = None
    inputs: tuple = ()
    outputs: tuple[int, ...] = ()


class Stages:
    """A traced function as stages.

    Attributes:
      trace: its nodes.
      stages: in the order in which they run.
      reasons: why nodes are no steps, with how many.
      backend: of the forms, one of `BACKENDS`; "" where there is none.
      dtype: of the forms; "" where there is none.
    """

    def __init__(self, closed: ClosedJaxpr):
        self.trace = traces.Trace(expanded(closed), {})
        needed = needed_values(self.trace, {})
        self._nodes = [n for k, n in enumerate(self.trace.nodes) if k in needed.nodes]
        of_kernels = [n for n in self._nodes if n.name in KERNELS]
        backends = [n.params["backend"] for n in of_kernels]
        self.backend = next((b for b in BACKENDS if b in backends), "")
        of_kernels = [n for n in of_kernels if n.params["backend"] == self.backend]
        dtypes = {str(self.trace.avals[n.inputs[0]].dtype) for n in of_kernels}
        self.dtype = next((d for d in ("float32", "float64") if d in dtypes), "")
        self.reasons: collections.Counter[str] = collections.Counter()
        self.stages = self._cut()

    @functools.cached_property
    def native(self) -> tuple[Stage, ...]:
        """Return the stages that are one kernel each."""
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
        """Return what nodes without a step are computed by, if no kernel is among it.

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
        """Return the nodes that values are computed by."""
        result: set[Node] = set()
        while todo:
            node = self.trace.node(todo.pop())
            if node is not None and node not in result:
                result.add(node)
                todo += node.inputs
        return result

    def _converter(self) -> Converter:
        return Converter(self.trace, self.dtype, self.backend)

    def _reason(self, node: Node) -> str:
        """Return why a node is no step, or ""."""
        if node.eqn.effects:
            return f"{node.name} has effects"
        converter = self._converter()
        try:
            converter.convert(node)
        except NoStepError as error:
            return str(error)
        if self.backend == "llvm":
            return ""
        return next(filter(None, map(triton_program.left_out, converter.steps)), "")

    def _stage(self, parts, level: int) -> Stage:
        nodes = parts[level]
        if level % 2 == 0 or not any(n.name in KERNELS for n in nodes):
            return Stage(tuple(nodes))
        converter = self._converter()
        for node in nodes:
            converter.convert(node)
        own = set(map(id, nodes))
        later = {v for n in self._nodes if id(n) not in own for v in n.inputs}
        later |= set(self.trace.outputs)
        made = [v for n in nodes for v in n.outputs if v in later]
        outputs = tuple(v for v in made if self.trace.avals[v].size)
        results: list[int] = []
        known: set[int] = set()
        for value in outputs:
            read = converter.numbers[value]
            if isinstance(read, Number) or read in converter.inputs or read in known:
                aval = self.trace.avals[value]
                array = converter.new(aval.size, str(aval.dtype))
                stride = 0 if isinstance(read, Number) else 1
                converter.steps.append(Copy((read,), array, (aval.size,), (stride,), (1,)))
                read = array
            results.append(read)
            known.add(read)
        parts = converter.arrays, converter.inputs, results, converter.steps, converter.indices
        program = Program(*map(tuple, parts))
        return Stage(tuple(nodes), program, tuple(converter.inputs.values()), outputs)


def expanded(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the same function without calls, fused ops as their products and Linears."""

    def evaluate(jaxpr, consts, arrays) -> list:
        env = dict(zip(jaxpr.constvars, consts, strict=True))
        env |= dict(zip(jaxpr.invars, arrays, strict=True))

        def read(v):
            return v.val if isinstance(v, jax.extend.core.Literal) else env[v]

        for eqn in jaxpr.eqns:
            result = _expand(eqn, [read(v) for v in eqn.invars], evaluate)
            env.update(zip(eqn.outvars, result, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def function(*arrays):
        return evaluate(closed.jaxpr, closed.consts, arrays)

    return jax.make_jaxpr(function)(*closed.in_avals)


CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
CALLS |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr"}
CALLS |= {"checkpoint": "jaxpr", "remat": "jaxpr"}


def _expand(eqn, arrays, evaluate) -> list:
    primitive = eqn.primitive
    if primitive in definitions:
        return list(definitions[primitive](*arrays, **eqn.params))
    if primitive.name in CALLS:
        inner = eqn.params[CALLS[primitive.name]]
        if isinstance(inner, ClosedJaxpr):
            return evaluate(inner.jaxpr, inner.consts, arrays)
        return evaluate(inner, (), arrays)
    return bind(eqn, arrays)


def bind(eqn, arrays) -> list:
    """Return the outputs of an equation, as JAX computes it."""
    if not arrays and eqn.primitive.name == "iota":  # a constant, and no operation
        with jax.ensure_compile_time_eval():
            return [eqn.primitive.bind(**eqn.params)]
    with eqn.ctx.manager:
        params = eqn.primitive.get_bind_params(dict(eqn.params))
        result = eqn.primitive.bind(*arrays, **params)
    return list(result) if eqn.primitive.multiple_results else [result]
