"""Gathers and sums of rows in a trace, and its outputs where ops compute some of its values."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from eqfuse import _jax_compat
from eqfuse.fuse.polynomials import Unfit
from eqfuse.ops._edges import as_int32
from eqfuse.ops.primitives.choice import resolve_fused
from eqfuse.ops.transforms.trace import FLOATS, Node, Trace, moves_rows, needed

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


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """A value of a trace, computed in another way from others."""

    node: Node  # that makes it
    inputs: tuple[int, ...]
    function: Callable  # of the arrays by value

    def compute(self, arrays: dict, shared: dict):
        eqn = self.node.eqn
        with _jax_compat.same_source(eqn.source_info), eqn.ctx.manager:
            return self.function(arrays)


def outputs_of(trace: Trace, arrays, replaced: dict[int, object], bind) -> list:
    """Return the outputs of a trace, some of whose values ops compute in the place of nodes.

    `bind` gives the outputs of a node from its inputs.
    """
    values, nodes = needed(trace, replaced)
    computed = set(nodes)
    env = dict(trace.given) | dict(zip(trace.inputs, arrays, strict=True))
    shared: dict = {}
    for node in trace.nodes:
        for v in node.outputs:
            if v in values and v in replaced:
                result, aval = replaced[v].compute(env, shared), trace.avals[v]
                if (result.shape, result.dtype) != (aval.shape, aval.dtype):
                    raise ValueError(f"{result.dtype}{result.shape} is in the place of {aval}")
                env[v] = result
        if node in computed:
            results = bind(node, [env[v] for v in node.inputs])
            env.update(zip(node.outputs, results, strict=True))
    return [env[v] for v in trace.outputs]


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Rows of nodes, as an operand of each row; all but mode and fill are values of a trace."""

    value: int  # [nodes, ...]
    index: int  # integers, [rows]
    mode: GatherScatterMode
    fill: float | None  # what a row out of range is made of, in mode FILL_OR_DROP


def _index_of_rows(trace: Trace, node: Node, name: str) -> int | None:
    """Return the vector by which a node of this name reads, or adds, whole rows of nodes."""
    if node.name != name or not moves_rows(trace, node) or not trace.avals[node.inputs[0]].shape[0]:
        return None
    value = node.inputs[1]  # [rows, 1]
    node = trace.producer.get(value)
    if node is None or node.name not in ("broadcast_in_dim", "reshape", "expand_dims"):
        return None
    [inner] = node.inputs[:1]
    shape = tuple(trace.avals[inner].shape)
    if len(shape) != 1 or tuple(trace.avals[value].shape) != (*shape, 1):
        return None
    if node.name == "broadcast_in_dim" and tuple(node.params["broadcast_dimensions"]) != (0,):
        return None
    return trace.first_equal(inner)  # indices that are made twice of one array are the same


def gathered(trace: Trace, node: Node) -> Gathered | None:
    """Return the array that a node gathers whole rows of nodes from, one for each row."""
    index = _index_of_rows(trace, node, "gather")
    if index is None or trace.avals[node.inputs[0]].dtype.name not in FLOATS:
        return None
    fill, mode = None, GatherScatterMode.from_any(node.params["mode"])
    if mode is GatherScatterMode.FILL_OR_DROP:
        fill = node.params["fill_value"]
        fill = np.nan if fill is None else float(fill)
    return Gathered(node.inputs[0], index, mode, fill)


@dataclasses.dataclass(frozen=True)
class Scatter:
    """A sum of rows to nodes, start.at[index].add(updates), of values of a trace."""

    start: int
    index: int
    updates: int
    mode: GatherScatterMode


def summed(trace: Trace, node: Node) -> Scatter | None:
    """Return the rows that a node sums, if it adds whole rows to nodes."""
    index = _index_of_rows(trace, node, "scatter-add")
    if index is None:
        return None
    start, _, updates = node.inputs
    return Scatter(start, index, updates, GatherScatterMode.from_any(node.params["mode"]))


def is_within(trace: Trace, index: int, count: int) -> bool:
    """Return whether integers are known to be in [0, count)."""
    known = trace.constant(index)
    return known is not None and bool(((known >= 0) & (known < count)).all())


def placed(index, count: int, most: int):
    """Return indices as int32: `most` where they are below [0, count), one more where above."""
    index = jnp.asarray(as_int32(index))
    return jnp.where(index < 0, most, jnp.where(index < count, index, most + 1))


def gather_rows(array, index, mode: GatherScatterMode, fill):
    return array.at[index].get(mode=mode, fill_value=fill, wrap_negative_indices=False)


def outside(rows):
    """Return an index below the range of rows, and one above."""
    return jnp.array([-1, len(rows)])
