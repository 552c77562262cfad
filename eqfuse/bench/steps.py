"""A training step of each model on energies and forces, on e3nn-jax and on eqfuse."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.bench import networks
from eqfuse.bench.errors import first_line
from eqfuse.bench.op_times import OURS, REFERENCE, largest_difference, random_arrays, scratch
from eqfuse.bench.record import ParityError
from eqfuse.bench.timing import compile_all, interleaved_batches, precision
from eqfuse.graph import Graph
from eqfuse.ops.backends.triton import compile as compiler

CUTOFF, TOLERANCE = 5.0, 1e-4
"""Å; and how much the loss and its gradient may differ in float32, by the largest element."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What to time.

    Attributes:
      model: "nequip", "allegro" or "mace".
      sizes: nodes and edges, the smallest first, so that peaks of memory can be separated.
      backend: of eqfuse.
      seconds: to time each size.
      cached: whether kernels may be those of an earlier run; then they do not tell how long
        compiling takes.
    """

    model: str
    sizes: tuple[tuple[int, int], ...]
    backend: str
    seconds: float
    cached: bool = False


@contextlib.contextmanager
def empty_cache():
    """Return a context in which nothing is compiled yet: the cache is an empty folder."""
    before = os.environ.get("EQFUSE_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EQFUSE_CACHE_DIR"] = folder
        compiler._KERNELS.clear()
        try:
            yield
        finally:
            os.environ.pop("EQFUSE_CACHE_DIR")
            if before is not None:
                os.environ["EQFUSE_CACHE_DIR"] = before
            compiler._KERNELS.clear()


def batch(nodes: int, edges: int) -> Graph:
    """Make periodic boxes of atoms, with equally many edges each: the shortest distances.

    The density is such that they are within the cutoff of the models.

    Raises:
      ValueError: more edges than pairs of atoms in a box.
    """
    boxes = networks.NUM_GRAPHS
    rng = np.random.default_rng(0)
    parts = [_box(rng, nodes // boxes, edges // boxes // 2) for _ in range(boxes)]
    positions, pairs, shifts = (np.concatenate(side) for side in zip(*parts, strict=True))
    first = np.repeat(np.arange(boxes) * (nodes // boxes), edges // boxes)
    senders, receivers = pairs.T + first
    order = np.lexsort((senders, receivers))
    return Graph(
        positions=positions.astype(np.float32),
        species=rng.integers(0, networks.NUM_SPECIES, nodes).astype(np.int32),
        edges=ops.Edges.from_arrays(senders[order], receivers[order], nodes),
        shifts=shifts[order].astype(np.float32),
        graph_index=np.repeat(np.arange(boxes), nodes // boxes).astype(np.int32),
        cells=np.zeros((boxes, 3, 3), np.float32),
        node_mask=np.ones(nodes, bool),
        graph_mask=np.ones(boxes, bool),
    )


def _box(rng, atoms: int, bonds: int):
    """Return positions [atoms, 3] Å, pairs [2 bonds, 2] and shifts [2 bonds, 3] Å."""
    cells = int(np.ceil(atoms ** (1 / 3)))
    grid = np.stack(np.meshgrid(*[np.arange(cells)] * 3), -1).reshape(-1, 3)[:atoms]
    spacing = 0.9 * CUTOFF / (2 * bonds / atoms * 3 / (4 * np.pi)) ** (1 / 3)
    positions = spacing * (grid + rng.uniform(-0.2, 0.2, (atoms, 3)))
    side = spacing * cells
    i, j = np.triu_indices(atoms, 1)
    if len(i) < bonds:
        raise ValueError(f"{atoms} atoms have {len(i)} pairs, fewer than {bonds} bonds")
    difference = positions[j] - positions[i]
    shift = -side * np.round(difference / side)
    nearest = np.argsort(np.linalg.norm(difference + shift, axis=-1), kind="stable")[:bonds]
    i, j, shift = i[nearest], j[nearest], shift[nearest]
    pairs = np.concatenate([np.stack([j, i], -1), np.stack([i, j], -1)])
    return positions, pairs, np.concatenate([shift, -shift])


def shapes(model: str, nodes: int, edges: int):
    """Return a step of Adam as a function of a backend, and the shapes of its arguments."""
    functions = functools.partial(networks.training_step, model, num_nodes=nodes, num_edges=edges)
    return functions, functions(backend="e3nn")[1]


def arguments(model: str, nodes: int, edges: int):
    """Return a step of Adam as a function of a backend, and its arguments, made on the device."""
    functions, (params, state, _, *labels) = shapes(model, nodes, edges)
    params, labels = random_arrays(params), random_arrays(tuple(labels))
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
    graph = jax.tree.map(jnp.asarray, batch(nodes, edges))
    return functions, (params, state, graph, *labels)


def measure(request: Request) -> Iterator[dict]:
    """Time the training steps of one model: one result for each size.

    The loss and its gradient (the first moment of Adam after a step from zero) of both sides are
    compared, and nothing is timed where they differ. eqfuse is compiled alone, the second size with
    the kernels of the first; e3nn-jax for all sizes at the same time, in threads. Peaks of memory
    are those of the whole process: exact where they grow from one run to the next, null where they
    do not; best in a fresh process.
    """
    with precision("float32"):
        steps = [arguments(request.model, *size) for size in request.sizes]
        compiled, ahead = {}, {}
        # without the kernels that other jobs have compiled
        with contextlib.nullcontext() if request.cached else empty_cache():
            for size, (functions, args) in zip(request.sizes, steps, strict=True):
                ours = functions(backend=request.backend)[0]
                ahead[size] = _compile_ahead(ours, request.backend, args)
                compiled |= compile_all({(size, OURS): (ours, args)}, "float32")
        compiled |= compile_all(
            {
                (size, REFERENCE): (functions(backend="e3nn")[0], args)
                for size, (functions, args) in zip(request.sizes, steps, strict=True)
            },
            "float32",
        )
        for size, (_, args) in zip(request.sizes, steps, strict=True):
            sides = {name: compiled[size, name] for name in (OURS, REFERENCE)}
            row = {
                "group": "steps",
                "case": request.model,
                "size": list(size),
                "order": "step",
                "dtype": "float32",
                "kernels_compile_s": ahead[size],
            }
            yield row | _measure(sides, args, request.seconds)


def _compile_ahead(step, backend: str, args) -> dict | None:
    """Return seconds to compile the kernels in parallel, and how many there are."""
    if backend != "triton":
        return None
    start = time.perf_counter()
    kernels = ops.compile_ahead(step, *args)
    return {"seconds": time.perf_counter() - start, "kernels": len(kernels)}


def _measure(compiled: dict, args, seconds: float) -> dict:
    calls, sides, results = {}, {}, {}
    for name, found in compiled.items():
        try:
            if isinstance(found, Exception):
                raise found
            step, compile_s = found
            sides[name] = {"compile_s": compile_s, "scratch_bytes": scratch(step)}
            sides[name] |= {"arguments_bytes": step.memory_analysis().argument_size_in_bytes}
            before, call = _peak(), functools.partial(step, *args)
            _, state, loss = jax.block_until_ready(call())
            sides[name]["peak_bytes"] = _peak() if _peak() > before else None
            results[name], calls[name] = (loss, state[0].mu), call
        except Exception as error:
            sides[name] = {"error": first_line(error)}
    if OURS not in calls:
        return {"error": f"{OURS}: {sides[OURS]['error']}"}
    if REFERENCE in calls:
        try:
            difference = largest_difference(results[REFERENCE], results[OURS])
        except ParityError as error:
            return {"error": f"{OURS}: {error}"}
        if not difference <= TOLERANCE:
            return {"error": f"{OURS}: results differ by {difference:.1e} from {REFERENCE}"}
        sides[OURS]["difference"] = difference
    for name, times in interleaved_batches(calls, seconds).items():
        sides[name] |= times
    return {"checked_against": REFERENCE if REFERENCE in calls else None, "sides": sides}


def _peak() -> int:
    """Return most bytes in use on the device since the process began; 0 if JAX has no count."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
