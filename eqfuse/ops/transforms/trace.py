"""A traced function as a list of nodes: nested `jit` inlined, equal computations made once."""

from __future__ import annotations

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
FLOATS = frozenset(["bfloat16", "float16", "float32", "float64"])
"""Names of the dtypes whose arithmetic is followed; all others, such as random keys, are kept."""


def _stretched(x, shape, broadcast_dimensions, sharding=None):
    """Return a view of x with the axes that `broadcast_in_dim` adds or repeats."""
    added = [n for n in range(len(shape)) if n not in broadcast_dimensions]
    return [np.broadcast_to(np.expand_dims(x, added), shape)]


VIEWS = {
    "broadcast_in_dim": _stretched,
    "transpose": lambda x, permutation: [x.transpose(permutation)],
    "rev": lambda x, dimensions: [np.flip(x, dimensions)],
    "slice": lambda x, start_indices, limit_indices, strides: [
        x[tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))]
    ],
    "split": lambda x, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
}
"""By primitive that moves elements: the views of a NumPy array that its outputs are."""


def plain_jit(eqn) -> ClosedJaxpr | None:
    """Return the function that an equation is `jit` of, if it is, without shardings of its own."""
    if eqn.primitive.name != "jit":
        return None
    names = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    asked = [s for name in names for s in eqn.params.get(name, ())]
    return eqn.params["jaxpr"] if all(map(_jax_compat.is_unspecified, asked)) else None


@dataclasses.dataclass(frozen=True, eq=False)
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
    """The nodes of a traced function, in an order in which they can be computed.

    Values are numbered. `known` are the numbers that some of the function's inputs always have.
    `called` gives the function that stands in the place of an equation, or None.
    """

    def __init__(self, closed: ClosedJaxpr, known: dict[int, np.ndarray], called=plain_jit):
        self._called = called
        self.nodes: list[Node] = []
        self.avals: list = []  # of each value
        self.producer: dict[int, Node] = {}  # of each value that is not given
        self.given: dict[int, object] = {}  # constants, or tracers of an outer transformation
        self._literals: dict = {}
        self._known: dict = {}
        self._equal: dict[tuple, int] = {}
        self._uniform: dict[int, np.ndarray | None] = {}
        self.inputs = [self._new(v.aval) for v in closed.jaxpr.invars]
        self._folded: dict[int, np.ndarray | None] = {self.inputs[n]: a for n, a in known.items()}
        self._fixed = set(self._folded)  # values that depend on no input
        self.outputs = self._inline(closed, self.inputs)

    def _new(self, aval) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def _constant(self, value, aval, key) -> int:
        if key not in self._literals:
            self._literals[key] = self._new(aval)
            self.given[self._literals[key]] = value
            if not isinstance(value, jax.core.Tracer):
                self._fixed.add(self._literals[key])
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
            if (called := self._called(eqn)) is not None:
                outputs = self._inline(called, given)
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
        self.nodes.append(Node(eqn, inputs, outputs))
        self.producer |= dict.fromkeys(outputs, self.nodes[-1])
        if not eqn.effects and self._fixed.issuperset(inputs):
            self._fixed.update(outputs)
        if key is not None:
            self._known[key] = outputs
        return outputs

    def behind(self, values, follow: Callable = lambda node: True):
        """Yield the nodes that make some values, through those it is to `follow`."""
        seen, todo = set(), list(values)
        while todo:
            node = self.producer.get(todo.pop())
            if node is not None and node not in seen:
                seen.add(node)
                yield node
                todo += node.inputs if follow(node) else ()

    def constant(self, value: int) -> np.ndarray | None:
        """Return a value that depends on no input, if it is small; None otherwise."""
        if value not in self._folded:
            self._folded[value] = self._fold(value) if value in self._fixed else None
        return self._folded[value]

    def first_equal(self, value: int) -> int:
        """Return the earliest value that is the same constant, or the value itself."""
        known = self.constant(value)
        if known is None:
            return value
        return self._equal.setdefault((known.shape, str(known.dtype), known.tobytes()), value)

    def _fold(self, value: int) -> np.ndarray | None:
        aval = self.avals[value]
        if not hasattr(aval, "size") or aval.size > LARGEST_CONSTANT:
            return None
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended):  # a random key is no numpy array
            return None
        if value in self.given:
            return np.asarray(self.given[value])
        node = self.producer[value]
        if has_functions(node.params):
            return None
        arrays = [self.constant(v) for v in node.inputs]
        if any(a is None for a in arrays):
            return None
        return computed(node, arrays)[node.outputs.index(value)]

    def uniform(self, value: int) -> np.ndarray | None:
        """Return the number that all elements of a value are, if it is known; None otherwise."""
        if value not in self._uniform:
            self._uniform[value] = self._number(value) if value in self._fixed else None
        return self._uniform[value]

    def _number(self, value: int) -> np.ndarray | None:
        constant = self.constant(value)
        if constant is not None:
            first = constant.reshape(-1)[:1]
            return first[0] if constant.size and (constant == first).all() else None
        node = self.producer.get(value)
        if node is None:
            return None
        if node.name in ("broadcast_in_dim", "reshape"):
            return self.uniform(node.inputs[0])
        if node.name not in ELEMENTWISE:
            return None
        numbers = [self.uniform(v) for v in node.inputs]
        return None if any(n is None for n in numbers) else computed(node, numbers)[0]


def computed(node: Node, arrays, **params) -> list[np.ndarray]:
    """Return the outputs of a node, computed from known arrays while JAX traces."""
    with jax.ensure_compile_time_eval():
        results = node.eqn.primitive.bind(*map(jnp.asarray, arrays), **node.params | params)
    return list(map(np.asarray, results if node.eqn.primitive.multiple_results else [results]))


def free_axes(params, shapes) -> list[list[int]]:
    """Return the axes of the operands of a matmul that are neither contracted nor batch axes."""
    sides = zip(shapes, *params["dimension_numbers"], strict=True)
    return [[n for n in range(len(s)) if n not in (*c, *b)] for s, c, b in sides]


def matmul_views(params, arrays: list) -> tuple[tuple[np.ndarray, ...], int]:
    """Return both operands of a matmul as views of its products, and how many axes are not summed.

    Their axes are batch axes, those of the first operand, of the second, and those that are summed.
    """
    contracted, batch = params["dimension_numbers"]
    free = free_axes(params, [a.shape for a in arrays])
    first, second, end = np.cumsum([len(batch[0]), len(free[0]), len(free[1])]).tolist()
    missing = range(second, end), range(first, second)  # axes of the other one
    views = [
        np.expand_dims(a.transpose((*b, *f, *c)), tuple(m))
        for a, b, f, c, m in zip(arrays, batch, free, contracted, missing, strict=True)
    ]
    return np.broadcast_arrays(*views), end


def moves_rows(trace: Trace, node: Node) -> bool:
    """Return whether a gather reads, or a scatter adds, whole rows by indices [..., 1]."""
    array, indices = (trace.avals[v] for v in node.inputs[:2])
    d, count = node.params["dimension_numbers"], indices.ndim - 1
    if node.name == "gather":
        dims, moved = (d.collapsed_slice_dims, d.start_index_map, d.offset_dims), node.outputs[0]
    else:
        dims = d.inserted_window_dims, d.scatter_dims_to_operand_dims, d.update_window_dims
        moved = node.inputs[2]
    return (
        [*map(tuple, dims)] == [(0,), (0,), tuple(range(count, count + array.ndim - 1))]
        and not d.operand_batching_dims
        and indices.shape[-1:] == (1,)
        and tuple(trace.avals[moved].shape[count:]) == tuple(array.shape[1:])
    )


def traced(function, args, kwargs) -> tuple[ClosedJaxpr, list, Callable]:
    """Return a function's trace, the arrays among its arguments, and what makes outputs a result.

    Leaves of arguments and results that are no JAX arrays stay as they are: NumPy's are numbers.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    arrays, result = [leaves[n] for n in places], []

    def flat(*arrays):
        full = list(leaves)
        for n, array in zip(places, arrays, strict=True):
            full[n] = array
        args, kwargs = jax.tree.unflatten(tree, full)
        others, tree_out = jax.tree.flatten(function(*args, **kwargs))
        numbers = [n for n, o in enumerate(others) if isinstance(o, jax.Array)]
        outputs = [others[n] for n in numbers]
        for n in numbers:
            others[n] = None
        result[:] = others, numbers, tree_out
        return outputs

    closed = jax.make_jaxpr(flat)(*arrays)

    def result_of(outputs):
        others, numbers, tree_out = result
        for n, output in zip(numbers, outputs, strict=True):
            others[n] = output
        return jax.tree.unflatten(tree_out, others)

    return closed, arrays, result_of


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
    return any(
        hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")
        for leaf in jax.tree.leaves(list(params.values()), is_leaf=lambda p: hasattr(p, "eqns"))
    )


def bind(node: Node, arrays, params: dict | None = None) -> list:
    """Evaluate an equation in its own context, with its parameters or with `params`."""
    eqn = node.eqn
    with _jax_compat.same_source(eqn.source_info), eqn.ctx.manager:
        params = eqn.primitive.get_bind_params(dict(eqn.params if params is None else params))
        results = eqn.primitive.bind(*arrays, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def needed(trace: Trace, replaced) -> tuple[set[int], list[Node]]:
    """Return the values and nodes that the outputs need, if ops compute the replaced values."""
    values, nodes = set(trace.outputs), []
    for node in reversed(trace.nodes):
        wanted = [v for v in node.outputs if v in values]
        for v in wanted:
            if v in replaced:
                values.update(replaced[v].inputs)
        if node.eqn.effects or any(v not in replaced for v in wanted):
            nodes.append(node)
            values.update(node.inputs)
    return values, nodes[::-1]
