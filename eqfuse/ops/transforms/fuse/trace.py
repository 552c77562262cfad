"""A traced function as a list of nodes: nested `jit` inlined, equal computations made once."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from eqfuse import _jax_compat

LARGEST_CONSTANT = 1 << 16
"""Elements of an array that is folded at most."""
ELEMENTWISE = frozenset(["mul", "add", "sub", "div", "neg", "sqrt", "rsqrt", "integer_pow"])
ELEMENTWISE |= frozenset(["max", "min", "convert_element_type"])


@dataclasses.dataclass(frozen=True)
class Node:
    """An equation on numbered values."""

    eqn: object
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    @property
    def params(self) -> dict:
        return self.eqn.params


class Trace:
    """The nodes of a traced function, in order; values are numbered.

    Attributes:
      nodes: in an order in which they can be computed.
      avals: of each value.
      producer: of a value, the number of its node and its place among the outputs.
      given: the values that are known from the start: constants of the trace (which may be
        tracers of an outer transformation).
      inputs, outputs: numbers of values.
    """

    def __init__(self, closed: ClosedJaxpr, known: dict[int, np.ndarray]):
        """Read a traced function; `known` are the numbers that some of its inputs always have."""
        self.nodes: list[Node] = []
        self.avals: list = []
        self.producer: dict[int, tuple[int, int]] = {}
        self.given: dict[int, object] = {}
        self._literals: dict = {}
        self._known: dict = {}
        self._equal: dict[tuple, int] = {}
        self.inputs = [self._new(v.aval) for v in closed.jaxpr.invars]
        self._folded: dict[int, np.ndarray | None] = {self.inputs[n]: a for n, a in known.items()}
        self.outputs = self._inline(closed, self.inputs)

    def _new(self, aval) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def _constant(self, value, aval, key) -> int:
        if key not in self._literals:
            self._literals[key] = self._new(aval)
            self.given[self._literals[key]] = value
        return self._literals[key]

    def _inline(self, closed: ClosedJaxpr, inputs: list[int]) -> list[int]:
        jaxpr = closed.jaxpr
        number = dict(zip(jaxpr.invars, inputs, strict=True))
        for v, value in zip(jaxpr.constvars, closed.consts, strict=True):
            number[v] = self._constant(value, v.aval, ("const", id(value)))

        def read(v) -> int:
            if not isinstance(v, Literal):
                return number[v]
            key = ("literal", str(v.aval), np.asarray(v.val).tobytes())
            return self._constant(v.val, v.aval, key)

        for eqn in jaxpr.eqns:
            given = [read(v) for v in eqn.invars]
            if _is_plain_jit(eqn):
                outputs = self._inline(eqn.params["jaxpr"], given)
            else:
                outputs = self._add(eqn, tuple(given))
            number.update(zip(eqn.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _add(self, eqn, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """Return the values of an equation, those of an equal one where there is one."""
        key = None if eqn.effects else _key(eqn, inputs)
        if key in self._known:
            return self._known[key]
        outputs = tuple(self._new(v.aval) for v in eqn.outvars)
        for place, value in enumerate(outputs):
            self.producer[value] = len(self.nodes), place
        self.nodes.append(Node(eqn, inputs, outputs))
        if key is not None:
            self._known[key] = outputs
        return outputs

    def node(self, value: int) -> Node | None:
        """Return the node that makes a value; None for what is given."""
        made = self.producer.get(value)
        return None if made is None else self.nodes[made[0]]

    def constant(self, value: int) -> np.ndarray | None:
        """Return a value that depends on no input, if it is small; None otherwise."""
        if value not in self._folded:
            self._folded[value] = self._fold(value)
        return self._folded[value]

    def first_equal(self, value: int) -> int:
        """Return the first value that was asked for and is the same constant; itself if none."""
        known = self.constant(value)
        if known is None:
            return value
        return self._equal.setdefault((known.shape, str(known.dtype), known.tobytes()), value)

    def _fold(self, value: int) -> np.ndarray | None:
        if not hasattr(self.avals[value], "size") or self.avals[value].size > LARGEST_CONSTANT:
            return None
        if value in self.given:
            given = self.given[value]
            return None if isinstance(given, jax.core.Tracer) else np.asarray(given)
        node = self.node(value)
        if node is None or node.eqn.effects or has_functions(node.params):
            return None
        arrays = [self.constant(v) for v in node.inputs]
        if any(a is None for a in arrays):
            return None
        with jax.ensure_compile_time_eval():
            results = node.eqn.primitive.bind(*map(jnp.asarray, arrays), **node.params)
        results = results if node.eqn.primitive.multiple_results else [results]
        return np.asarray(results[self.producer[value][1]])

    def uniform(self, value: int) -> np.ndarray | None:
        """Return the number that all elements of a value are, if it is known; None otherwise."""
        constant = self.constant(value)
        if constant is not None:
            first = constant.reshape(-1)[:1]
            return first[0] if constant.size and (constant == first).all() else None
        node = self.node(value)
        if node is None:
            return None
        if node.name in ("broadcast_in_dim", "reshape"):
            return self.uniform(node.inputs[0])
        if node.name not in ELEMENTWISE:
            return None
        numbers = [self.uniform(v) for v in node.inputs]
        if any(n is None for n in numbers):
            return None
        with jax.ensure_compile_time_eval():
            return np.asarray(node.eqn.primitive.bind(*map(jnp.asarray, numbers), **node.params))


def _key(eqn, inputs):
    if has_functions(eqn.params):
        return None
    try:
        key = (eqn.primitive, inputs, tuple(sorted(eqn.params.items())))
        hash(key)
    except TypeError:
        return None
    return key


def has_functions(params) -> bool:
    """Return whether an equation holds a function."""
    return any(
        hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")
        for leaf in jax.tree.leaves(list(params.values()), is_leaf=lambda p: hasattr(p, "eqns"))
    )


def _is_plain_jit(eqn) -> bool:
    """Return whether an equation is `jit` of a function, without shardings of its own."""
    if eqn.primitive.name not in ("jit", "pjit"):
        return False
    names = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    asked = [s for name in names for s in eqn.params.get(name, ())]
    return all(map(_jax_compat.is_unspecified, asked))


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What is computed in the place of a value.

    Attributes:
      inputs: the values that it reads.
      compute: of their arrays, gives the array of the value.
    """

    inputs: tuple[int, ...]
    compute: Callable


def evaluate(trace: Trace, arrays, replaced: dict[int, Replacement], bind) -> list:
    """Return the outputs of a trace.

    Args:
      arrays: its inputs.
      replaced: by value; each takes the place of the node that makes it.
      bind: (node, arrays) -> its outputs.
    """
    needed = needed_values(trace, replaced)
    env = dict(trace.given) | dict(zip(trace.inputs, arrays, strict=True))
    for number, node in enumerate(trace.nodes):
        wanted = [v for v in node.outputs if v in needed]
        for v in wanted:
            if v in replaced:
                env[v] = replaced[v].compute(*(env[n] for n in replaced[v].inputs))
        if number in needed.nodes:
            results = bind(node, [env[v] for v in node.inputs])
            env.update(zip(node.outputs, results, strict=True))
    return [env[v] for v in trace.outputs]


class Needed(set):
    """Values that are needed, and the nodes that are computed for them."""

    def __init__(self, values):
        super().__init__(values)
        self.nodes: set[int] = set()


def needed_values(trace: Trace, replaced) -> Needed:
    """Return the values that the outputs need where some are replaced."""
    needed = Needed(trace.outputs)
    for number in reversed(range(len(trace.nodes))):
        node = trace.nodes[number]
        wanted = [v for v in node.outputs if v in needed]
        for v in wanted:
            if v in replaced:
                needed.update(replaced[v].inputs)
        if node.eqn.effects or any(v not in replaced for v in wanted):
            needed.nodes.add(number)
            needed.update(node.inputs)
    return needed
