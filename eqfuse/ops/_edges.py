"""The edges of a graph, with the orders in which kernels sum over them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

LEAST, MOST = -(2**31), 2**31 - 1
"""What an int32 holds."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Edges:
    """Directed edges from senders to receivers, and the edge orders that sums over them use.

    Edge e carries a message from node `senders[e]` to node `receivers[e]`. `receiver_order` lists
    the edges grouped by receiver: those of node i are
    `receiver_order[receiver_ptr[i] : receiver_ptr[i + 1]]`, in the order in which they were given;
    `sender_order` and `sender_ptr` are the same for the senders. Make one with `Edges.from_arrays`.

    Indices out of range are an error: `from_arrays` raises where they are known. Where they are
    traced, the native kernels of a CPU raise when they run, as they do for orders that are not
    those of the ends. XLA and the kernels of a GPU cannot raise. They read nothing outside of an
    array; an edge with an end out of range is in no sum, and its gradients are zeros. An op that
    is composed of others (`fused="never"`) gathers and sums as JAX does: from the nearest sender.

    Attributes:
      senders, receivers: [n_edges] int32, in [0, num_nodes); any order.
      receiver_order, sender_order: [n_edges] int32, permutations of the edges.
      receiver_ptr, sender_ptr: [num_nodes + 1] int32.
      num_nodes: static.
      num_receivers: static; the first nodes, which alone are receivers and have rows of an output.
        Those behind them only send, as ghosts of a domain do. None for all.

    Example:
      >>> edges = ops.Edges.from_arrays(senders=[0, 1, 2], receivers=[1, 2, 1], num_nodes=3)
      >>> edges.receiver_order, edges.receiver_ptr  # of node 1 the edges 0 and 2, of node 2 edge 1
      (array([0, 2, 1], dtype=int32), array([0, 0, 2, 3], dtype=int32))
    """

    senders: jax.Array
    receivers: jax.Array
    receiver_order: jax.Array
    receiver_ptr: jax.Array
    sender_order: jax.Array
    sender_ptr: jax.Array
    num_nodes: int = dataclasses.field(metadata={"static": True})
    num_receivers: int | None = dataclasses.field(default=None, metadata={"static": True})

    @classmethod
    def from_arrays(cls, senders, receivers, num_nodes: int) -> "Edges":
        """Sort the edges once: on the host for numpy arrays, inside `jit` for traced ones.

        Args:
          senders, receivers: [n_edges], integers.
          num_nodes: number of nodes, static.
        Raises:
          ValueError: shapes that differ, a negative number of nodes, edges without nodes, or (for
            an array that is not traced) an index out of range.
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
        ends = {
            name: index if isinstance(index, jax.core.Tracer) else np.asarray(index)
            for name, index in (("senders", senders), ("receivers", receivers))
        }
        shapes = [index.shape for index in ends.values()]
        if shapes[0] != shapes[1] or len(shapes[0]) != 1:
            raise ValueError(
                "senders and receivers must be vectors of one length, "
                f"got shapes {shapes[0]} and {shapes[1]}"
            )
        if num_nodes == 0 and isinstance(shapes[0][0], int) and shapes[0][0]:
            raise ValueError(f"there are {shapes[0][0]} edges, and no nodes")
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

    def of_receivers(self, rows):
        """Return the rows of the receivers, given the rows of all nodes, [num_nodes, ...]."""
        return rows if self.num_receivers is None else rows[: self.num_receivers]

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
    if edges is not None:
        _check_order(edges)


def _check_order(edges: Edges) -> None:
    """Refuse orders that do not group edges by their ends, where they are on the host."""
    for end in ("receiver", "sender"):
        nodes, order = getattr(edges, f"{end}s"), getattr(edges, f"{end}_order")
        if not isinstance(nodes, np.ndarray) or not isinstance(order, np.ndarray):
            continue  # a kernel checks the order when it runs
        count = len(nodes)
        fits = order.shape == nodes.shape and ((order >= 0) & (order < count)).all()
        if not fits or (np.bincount(order) != 1).any() or (np.diff(nodes[order]) < 0).any():
            raise ValueError(
                f"{end}_order must list all {count} edges in the order of their {end}s, and does "
                "not: Edges.from_arrays makes edges from senders and receivers in any order"
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
    if all(isinstance(index, np.ndarray) for index in ends):
        result = []
        for index in ends:
            order = np.argsort(index, stable=True).astype(np.int32)
            ptr = np.searchsorted(index[order], np.arange(num_nodes + 1)).astype(np.int32)
            result += [order, ptr]
        return result
    count = ends[0].shape[0]  # symbolic in `jax.export`
    numbers = jax.lax.iota(jnp.int32, count)
    groups = jnp.stack(ends)
    outside = jnp.any((groups < 0) | (groups >= num_nodes), axis=0)
    groups = jnp.where(outside, num_nodes, groups)  # behind all, and in no group of a node
    if isinstance(count, int) and (num_nodes + 1) * count <= MOST:
        # XLA sorts numbers several times as fast as pairs, and both ends in the launches of one
        order = jnp.sort(groups * count + numbers, axis=1) % max(count, 1)
    else:
        pairs = groups, jnp.broadcast_to(numbers, groups.shape)
        order = jax.lax.sort(pairs, dimension=1, num_keys=1, is_stable=True)[1]
    counts = jnp.zeros((len(ends), num_nodes + 1), jnp.int32)
    counts = jax.vmap(lambda sums, of: sums.at[of + 1].add(1, mode="drop"))(counts, groups)
    ptr = jnp.cumsum(counts, axis=1, dtype=jnp.int32)
    return [array for both in zip(order, ptr, strict=True) for array in both]


def group_by_interval(interval, num_intervals: int) -> Edges:
    """Return the rows of each interval, by which gradients of a table are summed.

    Args:
      interval: [rows] integers, in [0, num_intervals).
      num_intervals: static.

    Example:
      >>> ops.group_by_interval(jnp.array([1, 0, 1]), 2).receiver_order
      Array([1, 0, 2], dtype=int32)
    """
    interval = as_int32(interval)
    order, ptr = orders([interval], num_intervals)
    return Edges(interval, interval, order, ptr, order, ptr, num_intervals)
