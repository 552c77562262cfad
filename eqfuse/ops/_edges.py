"""The edges of a graph, with the orders in which kernels sum over them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

LEAST, MOST = -(2**31), 2**31 - 1
"""What an int32 holds."""
_WAYS = 16
"""In so many parts a step of `_count_below` divides what is left."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Edges:
    """Directed edges from senders to receivers, and the edge orders that sums over them use.

    Edge e carries a message from node `senders[e]` to node `receivers[e]`. `receiver_order` lists
    the edges grouped by receiver: those of node i are
    `receiver_order[receiver_ptr[i] : receiver_ptr[i + 1]]`, in the order in which they were given;
    `sender_order` and `sender_ptr` are the same for the senders. Make one with `Edges.from_arrays`.

    Attributes:
      senders, receivers: [n_edges] int32, in [0, num_nodes); any order.
      receiver_order, sender_order: [n_edges] int32, permutations of the edges.
      receiver_ptr, sender_ptr: [num_nodes + 1] int32.
      num_nodes: static.
    """

    senders: jax.Array
    receivers: jax.Array
    receiver_order: jax.Array
    receiver_ptr: jax.Array
    sender_order: jax.Array
    sender_ptr: jax.Array
    num_nodes: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def from_arrays(cls, senders, receivers, num_nodes: int) -> "Edges":
        """Sort the edges once: on the host for numpy arrays, inside `jit` for traced ones.

        Args:
          senders, receivers: [n_edges], integers.
          num_nodes: number of nodes, static.
        Raises:
          ValueError: shapes that differ, a negative number of nodes, or (for an array that is not
            traced) an index out of range.
          TypeError: indices that are not integers, or a `num_nodes` that is traced.
        """
        if isinstance(num_nodes, jax.core.Tracer):
            raise TypeError(
                "num_nodes is the size of an array, and cannot be traced: make it static "
                "(jax.jit's static_argnames), or take it from a shape, such as x.shape[0]"
            )
        num_nodes = int(num_nodes)
        if not 0 <= num_nodes <= MOST:
            raise ValueError(f"num_nodes must be from 0 to {MOST}, got {num_nodes}")
        ends = {"senders": _array(senders), "receivers": _array(receivers)}
        shapes = [index.shape for index in ends.values()]
        if shapes[0] != shapes[1] or len(shapes[0]) != 1:
            raise ValueError(
                "senders and receivers must be vectors of one length, "
                f"got shapes {shapes[0]} and {shapes[1]}"
            )
        for name, index in ends.items():
            if index.size == 0:
                continue
            if not jnp.issubdtype(index.dtype, jnp.integer):
                raise TypeError(f"{name} must be integers, got {index.dtype}")
            if isinstance(index, np.ndarray) and (index.min() < 0 or index.max() >= num_nodes):
                raise ValueError(
                    f"{name} must be in [0, {num_nodes}), got {index.min()} to {index.max()}"
                )
        senders, receivers = (as_int32(index) for index in ends.values())
        return cls(senders, receivers, *orders((receivers, senders), num_nodes), num_nodes)

    @property
    def num_edges(self) -> int:
        return self.senders.shape[0]


def check_edges(edges, weights=None) -> None:
    """Refuse edges that are no `Edges`, and those given in the place of weights."""
    if isinstance(weights, Edges):
        raise ValueError(
            "edges were given as the weights, which come before them: give edges=edges, or None "
            "for the weights"
        )
    if edges is not None and not isinstance(edges, Edges):
        raise ValueError(
            f"edges must be an eqfuse.ops.Edges, got {type(edges).__name__}: "
            "Edges.from_arrays(senders, receivers, num_nodes) makes them"
        )


def as_int32(index) -> np.ndarray | jax.Array:
    """Return integers as int32: on the host for what is no JAX array.

    A number that int32 does not hold becomes the nearest that it does, which is an index of
    nothing. A cast would wrap it around to an index that may be valid.
    """
    xp = jnp if isinstance(index, jax.Array) else np
    index = xp.asarray(index)
    if index.size and jnp.iinfo(index.dtype).max > MOST:
        index = xp.minimum(index, MOST)
    if index.size and jnp.iinfo(index.dtype).min < LEAST:
        index = xp.maximum(index, LEAST)
    return index.astype(xp.int32)


def nearest(index, num_sets: int) -> jax.Array:
    """Return the index of a set of weights as int32, in [0, num_sets).

    A negative one counts from the last set, and one that is out of range is the nearest: so e3nn's
    Linear reads it. Its gradient drops what it has read so; here it goes to the set that was read.
    """
    index = jnp.asarray(as_int32(index))
    return jnp.clip(jnp.where(index < 0, index + num_sets, index), 0, num_sets - 1)


def orders(ends, num_nodes: int) -> list:
    """Return for each end the order that groups edges by it, and where groups begin, in one list.

    They are [n_edges] and [num_nodes + 1], int32.
    """
    count = ends[0].shape[0]
    if not isinstance(count, int):
        return [array for index in ends for array in _of_any_number(index, num_nodes)]
    if any(isinstance(index, np.ndarray) for index in ends) or (num_nodes + _WAYS) * count > MOST:
        return [array for index in ends for array in _grouped(index, num_nodes)]
    # XLA sorts numbers several times as fast as pairs, and both ends in the launches of one; ends
    # out of range go before or behind all
    groups = jnp.clip(jnp.stack(ends), -1, num_nodes) + 1
    keys = jnp.sort(groups * count + jnp.arange(count, dtype=jnp.int32), axis=1)
    starts = jnp.arange(1, num_nodes + 2, dtype=jnp.int32) * count
    ptr = _count_below(keys, starts)
    order = keys % max(count, 1)
    return [array for both in zip(order, ptr, strict=True) for array in both]


def _count_below(keys, starts) -> jax.Array:  # [n_rows, n_keys], [n_starts]
    """Count the keys of each sorted row that are below each of the starts; all are int32.

    This is a search with 15 comparisons in each of few steps, of a launch each on a GPU. With those
    of `jnp.searchsorted`, "scan_unrolled" takes minutes to compile on a CPU from JAX 0.12 on, and
    "scan" is a loop of launches.
    """
    rows, count = keys.shape
    # one more key is above all starts, and stands for those that there are not
    padded = jnp.pad(keys, ((0, 0), (0, 1)), constant_values=MOST).reshape(-1)
    first = (count + 1) * jnp.arange(rows, dtype=jnp.int32)[:, None, None]
    ahead = jnp.arange(1, _WAYS, dtype=jnp.int32)
    place = jnp.zeros((rows, len(starts)), jnp.int32)
    step = 1
    while step <= count:
        step *= _WAYS
    while step := step // _WAYS:
        at = jnp.minimum(place[..., None] + (ahead * step - 1), count)
        key = padded.at[first + at].get(mode="promise_in_bounds")
        place += step * jnp.sum(key < starts[:, None], axis=2, dtype=jnp.int32)
    return place


def _grouped(index, num_nodes: int) -> list:
    """Return the order that groups the edges by an end of theirs, and where each group begins."""
    xp = np if isinstance(index, np.ndarray) else jnp
    order = xp.argsort(index, stable=True).astype(np.int32)
    return [order, xp.searchsorted(index[order], xp.arange(num_nodes + 1)).astype(np.int32)]


def _of_any_number(index, num_nodes) -> list:
    """Return the result of `_grouped` for a symbolic number of edges, which `jax.export` has."""
    numbers = jax.lax.iota(jnp.int32, index.shape[0])
    order = jax.lax.sort((index, numbers), num_keys=1, is_stable=True)[1]
    counts = jnp.zeros(num_nodes, jnp.int32).at[index].add(1)
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    return [order, jnp.concatenate([jnp.zeros(1, jnp.int32), ends])]


def _array(index) -> np.ndarray | jax.Array:
    return index if isinstance(index, jax.core.Tracer) else np.asarray(index)
