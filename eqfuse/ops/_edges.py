"""The edges of a graph, with the orders in which kernels sum over them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


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
        """Sort once: on the host for numpy arrays, inside `jit` for traced ones.

        Args:
          senders, receivers: [n_edges], integers.
          num_nodes: number of nodes, static.
        Raises:
          ValueError: shapes that differ, or (for arrays that are not traced) an index out of range.
          TypeError: indices that are not integers, or a `num_nodes` that is traced.
        """
        if isinstance(num_nodes, jax.core.Tracer):
            raise TypeError(
                "num_nodes is the size of an array, and cannot be traced: make it static "
                "(jax.jit's static_argnames), or take it from a shape, such as x.shape[0]"
            )
        traced = isinstance(senders, jax.core.Tracer) or isinstance(receivers, jax.core.Tracer)
        xp = jnp if traced else np
        senders, receivers = xp.asarray(senders), xp.asarray(receivers)
        if senders.shape != receivers.shape or senders.ndim != 1:
            raise ValueError(
                "senders and receivers must be vectors of one length, "
                f"got shapes {senders.shape} and {receivers.shape}"
            )
        for name, index in (("senders", senders), ("receivers", receivers)):
            if index.size == 0:
                continue
            if not xp.issubdtype(index.dtype, xp.integer):
                raise TypeError(f"{name} must be integers, got {index.dtype}")
            if not traced and (index.min() < 0 or index.max() >= num_nodes):
                raise ValueError(
                    f"{name} must be in [0, {num_nodes}), got {index.min()} to {index.max()}"
                )
        orders = []
        for index in (receivers, senders):
            order = xp.argsort(index, stable=True).astype(xp.int32)
            ptr = xp.searchsorted(index[order], xp.arange(num_nodes + 1)).astype(xp.int32)
            orders += [order, ptr]
        return cls(senders.astype(xp.int32), receivers.astype(xp.int32), *orders, int(num_nodes))

    @property
    def num_edges(self) -> int:
        return self.senders.shape[0]


def check_edges(edges, weights=None) -> None:
    """Refuse edges that are no `Edges`, and those given in the place of weights.

    Raises:
      ValueError: saying what to give.
    """
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
