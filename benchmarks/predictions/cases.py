"""The launches of the benchmarks' cases and of training steps, at the sizes of `graphs`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import steps as networks
from benchmarks.gpu.problems import ORDERS, PROBLEMS, derivative
from benchmarks.predictions import counts, devices, graphs, launches, model
from benchmarks.predictions.devices import Device
from eqfuse import ops
from eqfuse.graph import Graph
from tests.emulator.functions import Launch

NAMES = tuple(PROBLEMS)
PRECISIONS = ("ieee", "tf32x3")
"""Of matmuls of float32; training on a GPU multiplies in "tf32x3" by default."""


def multiplied_in(precision: str):
    """Return the context in which matmuls have one of `PRECISIONS`."""
    return jax.default_matmul_precision(ops.TF32X3 if precision == "tf32x3" else "highest")


def launches_of(name: str, order: str, size: tuple[int, int], dtype: str = "float32"):
    """Return the launches of an order of a case.

    Args:
      name: of `NAMES`.
      order: "forward", "backward" or "double".
      size: of `graphs.SIZES`.
    """
    problem = PROBLEMS[name](*size)
    integers = problem.integers
    if isinstance(integers, ops.Edges):
        integers = graphs.edges(size)
    function = derivative(problem.function("triton"), order)
    return launches.launches_of(function, problem.arguments(order, dtype), integers)


def step(name: str, size: tuple[int, int], radial: str = "auto"):
    """Return a training step on a real structure and its arguments, mostly shapes."""
    function, (params, state, graph, *labels) = networks.training_step(
        name, "triton", *size, radial=radial
    )
    numbers = jax.tree.map(_zeros, graph)
    real = Graph(
        **{
            **{field: getattr(graph, field) for field in ("positions", "shifts", "cells")},
            "species": numbers.species,
            "edges": graphs.edges(size),
            "graph_index": numbers.graph_index,
            "node_mask": graph.node_mask,
            "graph_mask": graph.graph_mask,
        }
    )
    return function, (params, state, real, *labels)


def _zeros(struct):
    return np.zeros(struct.shape, struct.dtype) if jnp.issubdtype(struct.dtype, jnp.integer) else 0


_COUNTED: dict[tuple, counts.Counts] = {}


def counted(launch: Launch, size: tuple[int, int], device: Device) -> counts.Counts:
    """Return the counts of a launch for a device; computed once for all that have one cache."""
    key = launch.spec, launch.grid, launch.scalars, size
    key += device.target, device.cache, device.processors
    if key not in _COUNTED:
        resident = functools.partial(_resident, device)
        edges = graphs.edges(size)
        _COUNTED[key] = counts.count(launch, device.target, device.cache, resident, edges)
    return _COUNTED[key]


def _resident(device: Device, kernel, warps: int) -> int:
    return device.processors * model.resident_blocks(device, kernel, warps)


__all__ = ["NAMES", "ORDERS", "counted", "devices", "launches_of", "step"]
