"""A traced function as a list of nodes: nested `jit` inlined, equal computations made once."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Primitive

from eqfuse import _jax_compat
from eqfuse.ops._edges import as_int32
from eqfuse.ops.primitives.choice import resolve_fused
from eqfuse.ops.transforms.fuse.polynomials import Unfit

LARGEST_CONSTANT = 1 << 16
"""Elements of an array that is folded at most."""
ELEMENTWISE = frozenset(["mul", "add", "sub", "div", "neg", "sqrt", "rsqrt", "integer_pow"])
ELEMENTWISE |= frozenset(["max", "min", "convert_element_type"])
FLOATS = frozenset(["bfloat16", "float16", "float32", "float64"])
"""Names of the dtypes whose arithmetic is followed; all others, such as random keys, are kept."""

STRICT = contextvars.ContextVar("eqfuse_fuse_strict", default=False)
"""Whether tests see faults of matching and rewriting, which leave code as it is elsewhere."""


def is_strict() -> bool:
    """Return whether faults are raised: in tests, and where "always" asks for ops or an error."""
    return STRICT.get() or resolve_fused(None) == "always"


@contextlib.contextmanager
def guarded(note: Callable[[str], object]):
    """Leave the block where a part does not fit, or by a fault of ours, and note the reason."""
    try:
        yield
    except Unfit as error:
        note(str(error))
    except Exception as error:
        if is_strict():
            raise
        note(fault(error))


def fault(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"a fault of ops.fuse, please report it: {type(error).__name__}: {first}"


mark_p = Primitive("eqfuse_mark")  # an array, made by the rewriting of this number
mark_p.def_abstract_eval(lambda array, number: array)


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
    """The nodes of a traced function, in an order in which they can be computed.

    Values are numbered. `known` are the numbers that some of the function's inputs always have.
    """

    def __init__(self, closed: ClosedJaxpr, known: dict[int, np.ndarray]):
        self.nodes: list[Node] = []
        self.avals: list = []  # of each value
        self.producer: dict[int, tuple[int, int]] = {}  # number of the node, place of the output
        self.given: dict[int, object] = {}  # constants, or tracers of an outer transformation
        self.marks: dict[int, set[int]] = {}  # of values: the numbers of `mark_p`
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
            if _is_plain_jit(eqn):
                outputs = self._inline(eqn.params["jaxpr"], given)
            elif eqn.primitive is mark_p:
                outputs = given
                self.marks.setdefault(given[0], set()).add(eqn.params["number"])
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
        if not eqn.effects and self._fixed.issuperset(inputs):
            self._fixed.update(outputs)
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
            self._folded[value] = self._fold(value) if value in self._fixed else None
        return self._folded[value]

    def first_equal(self, value: int) -> int:
        """Return the first value that was asked for and is the same constant; itself if none."""
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
        node = self.node(value)
        if has_functions(node.params):
            return None
        arrays = [self.constant(v) for v in node.inputs]
        if any(a is None for a in arrays):
            return None
        return computed(node, arrays)[self.producer[value][1]]

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
        return computed(node, numbers)[0]


def computed(node: Node, arrays, **params) -> list[np.ndarray]:
    """Return the outputs of a node, computed from known arrays while JAX traces."""
    with jax.ensure_compile_time_eval():
        results = node.eqn.primitive.bind(*map(jnp.asarray, arrays), **node.params | params)
    return list(map(np.asarray, results if node.eqn.primitive.multiple_results else [results]))


def free_axes(params, shapes) -> list[list[int]]:
    """Return the axes of the operands of a matmul that are neither contracted nor batch axes."""
    sides = zip(shapes, *params["dimension_numbers"], strict=True)
    return [[n for n in range(len(s)) if n not in (*c, *b)] for s, c, b in sides]


def reads_rows(trace: Trace, node: Node) -> bool:
    """Return whether a gather reads whole rows, by indices [..., 1]."""
    d, sizes = node.params["dimension_numbers"], node.params["slice_sizes"]
    operand, indices = (trace.avals[v] for v in node.inputs)
    return (
        tuple(d.collapsed_slice_dims) == (0,) == tuple(d.start_index_map)
        and not (d.operand_batching_dims or d.start_indices_batching_dims)
        and tuple(sizes) == (1, *operand.shape[1:])
        and indices.shape[-1:] == (1,)
        and tuple(d.offset_dims) == tuple(indices.ndim - 1 + n for n in range(operand.ndim - 1))
    )


def adds_rows(trace: Trace, node: Node) -> bool:
    """Return whether a scatter adds whole rows, by indices [..., 1]."""
    d = node.params["dimension_numbers"]
    start, indices, updates = (trace.avals[v] for v in node.inputs)
    leading = indices.ndim - 1
    return (
        tuple(d.inserted_window_dims) == (0,) == tuple(d.scatter_dims_to_operand_dims)
        and not (d.operand_batching_dims or d.scatter_indices_batching_dims)
        and tuple(d.update_window_dims) == tuple(leading + n for n in range(start.ndim - 1))
        and indices.shape[-1:] == (1,)
        and tuple(updates.shape[leading:]) == tuple(start.shape[1:])
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


def _is_plain_jit(eqn) -> bool:
    """Return whether an equation is `jit` of a function, without shardings of its own."""
    if eqn.primitive.name not in ("jit", "pjit"):
        return False
    names = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    asked = [s for name in names for s in eqn.params.get(name, ())]
    return all(map(_jax_compat.is_unspecified, asked))


def bind(eqn, arrays, params: dict | None = None) -> list:
    """Return the outputs of an equation as where it stands; of other `params`, if given."""
    with _jax_compat.same_source(eqn.source_info), eqn.ctx.manager:
        params = eqn.primitive.get_bind_params(dict(eqn.params if params is None else params))
        results = eqn.primitive.bind(*arrays, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


class RewriteError(Exception):
    """An op cannot be computed in the place of the value of this number."""


def outputs_of(trace: Trace, arrays, replaced: dict[int, object], bind, note) -> list:
    """Return the outputs of a trace, some of whose values ops compute in the place of nodes.

    `bind` gives the outputs of a node from its inputs. An op that fails is left out, and `note`
    gets its value and the reason.
    """
    while True:
        try:
            return _outputs_of(trace, arrays, replaced, bind)
        except RewriteError as error:
            [value] = error.args
            note(value, fault(error.__cause__))
            replaced = {v: op for v, op in replaced.items() if v != value}


def _outputs_of(trace: Trace, arrays, replaced: dict[int, object], bind) -> list:
    values, nodes = needed(trace, replaced)
    env = dict(trace.given) | dict(zip(trace.inputs, arrays, strict=True))
    shared: dict = {}
    for number, node in enumerate(trace.nodes):
        for v in node.outputs:
            if v in values and v in replaced:
                env[v] = _replaced(trace, v, replaced[v], env, shared)
        if number in nodes:
            results = bind(node, [env[v] for v in node.inputs])
            env.update(zip(node.outputs, results, strict=True))
    return [env[v] for v in trace.outputs]


def _replaced(trace: Trace, value: int, op, env: dict, shared: dict):
    """Return a value by an op, of the shape and dtype that it has in the trace."""
    try:
        result, aval = op.compute(env, shared), trace.avals[value]
        if (result.shape, result.dtype) != (aval.shape, aval.dtype):
            raise ValueError(f"{result.dtype}{result.shape} is in the place of {aval}")
        return result
    except Exception as error:
        if is_strict():
            raise
        raise RewriteError(value) from error


def needed(trace: Trace, replaced) -> tuple[set[int], set[int]]:
    """Return the values and the nodes that the outputs need where ops compute some values."""
    values, nodes = set(trace.outputs), set()
    for number in reversed(range(len(trace.nodes))):
        node = trace.nodes[number]
        wanted = [v for v in node.outputs if v in values]
        for v in wanted:
            if v in replaced:
                values.update(replaced[v].inputs)
        if node.eqn.effects or any(v not in replaced for v in wanted):
            nodes.add(number)
            values.update(node.inputs)
    return values, nodes


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Rows of nodes, as an operand of each row; all but mode and fill are values of a trace."""

    value: int  # [nodes, ...]
    index: int  # integers, [rows]
    mode: str  # of `jax.lax.gather`
    fill: float | None  # what a row out of range is made of, in mode FILL_OR_DROP
    rows: int  # [rows, ...], what is gathered


def row_indices(trace: Trace, value: int) -> int | None:
    """Return the vector of which indices [rows, 1] are made; None for others."""
    node = trace.node(value)
    if node is None or node.name not in ("broadcast_in_dim", "reshape", "expand_dims"):
        return None
    [inner] = node.inputs[:1]
    shape = tuple(trace.avals[inner].shape)
    if len(shape) != 1 or tuple(trace.avals[value].shape) != (*shape, 1):
        return None
    if node.name == "broadcast_in_dim" and tuple(node.params["broadcast_dimensions"]) != (0,):
        return None
    return trace.first_equal(inner)  # indices that are made twice of one array are the same


def gathered(trace: Trace, number: int) -> Gathered | None:
    """Return the array that a node gathers whole rows of nodes from, one for each row."""
    node = trace.nodes[number]
    if node.name != "gather":
        return None
    operand, index = trace.avals[node.inputs[0]], row_indices(trace, node.inputs[1])
    if index is None or not reads_rows(trace, node) or operand.shape[0] == 0:
        return None
    if operand.dtype.name not in FLOATS:
        return None
    fill, mode = None, mode_of(node.params)
    if mode == "FILL_OR_DROP":
        fill = node.params["fill_value"]
        fill = np.nan if fill is None else float(fill)
    return Gathered(node.inputs[0], index, mode, fill, node.outputs[0])


@dataclasses.dataclass(frozen=True)
class Scatter:
    """A sum of rows to nodes, start.at[index].add(updates), of values of a trace."""

    start: int
    index: int
    updates: int
    mode: str


def summed(trace: Trace, number: int) -> Scatter | None:
    """Return the rows that a node sums, if it adds whole rows to nodes."""
    node = trace.nodes[number]
    if node.name != "scatter-add":
        return None
    start, indices, updates = node.inputs
    index = row_indices(trace, indices)
    if index is None or not adds_rows(trace, node) or trace.avals[start].shape[0] == 0:
        return None
    return Scatter(start, index, updates, mode_of(node.params))


def is_within(trace: Trace, index: int, count: int) -> bool:
    """Return whether integers are known to be in [0, count)."""
    known = trace.constant(index)
    return known is not None and bool(((known >= 0) & (known < count)).all())


def is_broken(trace: Trace, index: int, count: int, mode: str) -> bool:
    """Return whether indices may be out of a range that is promised to hold them.

    Then JAX reads the nearest row and adds to none, and the derivative of either is the other.
    """
    return mode == "PROMISE_IN_BOUNDS" and not is_within(trace, index, count)


def placed(index, count: int, most: int):
    """Return indices as int32: `most` where they are below [0, count), one more where above."""
    index = jnp.asarray(as_int32(index))
    return jnp.where(index < 0, most, jnp.where(index < count, index, most + 1))


def _outside(array, axis: int):
    return array.at[(*[slice(None)] * axis, jnp.array([-1, array.shape[axis]]))]


def from_outside(array, axis: int, mode: str, fill):
    """Return what is gathered along an axis by an index below the range, and by one above."""
    options = {"mode": jax.lax.GatherScatterMode[mode], "fill_value": fill}
    return _outside(array, axis).get(**options, wrap_negative_indices=False)


def added_outside(array, axis: int, mode: str, rows):
    """Return an array to which two rows are added by an index below the range, and one above."""
    options = {"mode": jax.lax.GatherScatterMode[mode]}
    return _outside(array, axis).add(rows, **options, wrap_negative_indices=False)


def mode_of(params) -> str:
    """Return the mode by name; no mode is that of `jax.lax`, FILL_OR_DROP."""
    return getattr(params.get("mode"), "name", "FILL_OR_DROP")
