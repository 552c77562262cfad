"""All that is counted of a launch: by the emulator's run of a sample of blocks, and in its SASS."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.predictions import reuse, sass
from benchmarks.predictions.traffic import SECTOR, Traffic
from eqfuse.ops.backends.triton.compile import CompiledKernel, compile_kernel
from eqfuse.ops.backends.triton.spec import TRITON_TYPES, KernelSpec
from tests.emulator.arrays import Array, poison
from tests.emulator.functions import Launch
from tests.emulator.machine import Machine

SAMPLE = 16
"""Blocks of a launch that are run, evenly spread over the grid; all of them if there are fewer."""
SAMPLED_OF_A_JOB = 4
"""Blocks that are run of each job of a Linear's kernel; some have few blocks, others many."""
SAMPLED_EDGES = 320
"""Fewer blocks, but not fewer than 6, where those would walk more edges."""
_SIZES = {
    pointer: np.dtype("u2" if "16" in n else n).itemsize for n, pointer in TRITON_TYPES.items()
}


_JOB = re.compile(r"^    (?:count =|first \+=) ([^a-z\n].*|num_.*)$", re.MULTILINE)


class UnknownIndexError(ValueError):
    """The numbers of an index array are not known: the program computes them."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Blocks that were run: what they touch, which they are, for how many each stands, barriers."""

    traffic: Traffic
    chosen: np.ndarray
    scale: float
    barriers: float


@dataclasses.dataclass
class Counts:
    """What a launch does. Numbers are of the whole launch, of the sample times blocks by sample.

    Attributes:
      kernel: the kernel, with its registers and shared memory.
      blocks, warps: of the grid, and of a block.
      edges: that a graph's kernel walks; 0 for others.
      channel_blocks: how often the grid has each node.
      pipes: instructions of warps by pipe, of SASS.
      method: how SASS was weighted, "loops" or "accesses"; see `sass.weights`.
      wavefronts: of the level-1 cache, by (space, instruction).
      sector_bytes: of global memory, which pass through level 2: sectors that a block reads, each
        once in a walk, as level 1 holds what it reads again; and sectors of each store, as that
        writes through.
      requested_bytes: sectors of all loads and stores.
      unique_bytes: of global memory, each once.
      missed_bytes: of those that pass, what misses an LRU of the cache; see `reuse`.
      walks: how often a block walks its edges, on the mean, over blocks of channels too.
      barriers: that a block passes, on the mean.
      chain: the longest dependent chain of the loop that takes most, in instructions.
      loop: instructions of a turn of that loop.
      turns: of that loop, of a block, on the mean of the sample.
      longest: edges of the block that has most, by the mean.
      parts: the instructions of a block in order, in runs, with how often it runs each.
    """

    kernel: CompiledKernel
    blocks: int
    warps: int
    edges: int
    channel_blocks: int
    pipes: dict[str, float]
    method: str
    wavefronts: dict[tuple[str, str], float]
    sector_bytes: float
    requested_bytes: float
    unique_bytes: float
    missed_bytes: float
    walks: float
    barriers: float
    chain: int
    loop: int
    turns: float
    longest: float
    parts: tuple[tuple[float, tuple[sass.Code, ...]], ...]

    @property
    def instructions(self) -> float:
        return sum(self.pipes.values())


@functools.lru_cache(maxsize=256)
def _prepared(spec: KernelSpec, target: str) -> tuple[CompiledKernel, sass.Listing]:
    kernel = compile_kernel(spec, target)
    return kernel, sass.listing(kernel.assembly)


def count(launch: Launch, target: str, cache: float, resident, edges=None) -> Counts:
    """Count a launch.

    Args:
      launch: its index arrays must be known.
      target: "sm_80" or "sm_90".
      cache: bytes of the LRU.
      resident: kernel, warps -> blocks that run at a time.
      edges: `ops.Edges` of the graph, if there is one.
    """
    kernel, listing = _prepared(launch.spec, target)
    graph = _graph(launch, edges)
    arrays, arguments = _arguments(launch, graph, kernel.num_warps)
    orders = frozenset(n for n, a in enumerate(arrays) if a.name == "order")
    samples: list[Sample] = []
    seen: list[Traffic] = []
    # what is known altogether is run altogether, as branches may hang on any number
    only = any(isinstance(a, jax.ShapeDtypeStruct) for a in launch.arrays)
    machine = Machine(kernel.assembly, kernel.shared_bytes, lambda *a: seen[-1](*a), only)
    blocks, warps = math.prod(launch.grid), machine.program.warps
    weight = np.zeros(len(listing.codes))
    for chosen, scale in _samples(launch, graph):
        seen.append(Traffic(orders=orders))
        run = machine.run(arguments, launch.grid, chosen, checked=False)
        own, method = sass.weights(listing, run)
        weight += scale * np.array(own)
        samples.append(Sample(seen[-1], chosen, scale, float(np.mean(list(run.barriers.values())))))
    pipes: collections.Counter = collections.Counter()
    for code, times in zip(listing.codes, weight, strict=True):
        pipes[code.pipe] += times * warps
    main = max(listing.loops, key=lambda loop: _work(loop, weight), default=None)
    body = listing.codes[main.first : main.last + 1] if main else listing.codes
    reused = reuse.of(arrays, samples, blocks, launch.grid[0], graph)
    wavefronts: collections.Counter = collections.Counter()
    for s in samples:
        wavefronts.update({key: n * s.scale for key, n in s.traffic.wavefronts.items()})
    counted = sum(s.scale * len(s.chosen) for s in samples)
    return Counts(
        kernel=kernel,
        blocks=blocks,
        warps=warps,
        edges=0 if graph is None else graph.num_edges,
        channel_blocks=reused.channel_blocks,
        pipes=dict(pipes),
        method=method,
        wavefronts=dict(wavefronts),
        sector_bytes=sum(s.scale * _through_level_2(arrays, s.traffic) for s in samples),
        requested_bytes=sum(s.scale * SECTOR * sum(s.traffic.sectors.values()) for s in samples),
        unique_bytes=reused.unique_bytes,
        missed_bytes=reused.missed(cache, resident(kernel, warps)),
        walks=0.0 if graph is None else reused.walks * reused.channel_blocks,
        barriers=sum(s.barriers * s.scale * len(s.chosen) for s in samples) / counted,
        chain=sass.chain(body),
        loop=len(body),
        turns=weight[main.last] / counted if main else 1.0,
        longest=1.0 if graph is None else graph.longest,
        parts=_parts(listing, weight, counted),
    )


def _samples(launch: Launch, graph: reuse.Graph | None):
    """Yield (blocks to run, by how much their counts are multiplied), for each job of a launch."""
    first = 0
    for blocks in _jobs(launch):
        sample = SAMPLE if graph is None else int(SAMPLED_EDGES / graph.degrees.mean())
        sample = min(max(sample, 6), SAMPLE, blocks)
        if blocks < math.prod(launch.grid):
            sample = min(SAMPLED_OF_A_JOB, blocks)
        chosen = first + np.unique(np.linspace(0, blocks - 1, sample).round().astype(int))
        scale = blocks / len(chosen)
        if graph is not None:  # by edges, of which blocks have not equally many
            walked = reuse.edges_of(graph, chosen, launch.grid[0]).sum()
            scale = graph.num_edges * blocks / launch.grid[0] / max(walked, 1)
        yield chosen, scale
        first += blocks


def _jobs(launch: Launch) -> list[int]:
    """Return the blocks of each job of a kernel, or all blocks if it has one job."""
    scalars = dict(zip(launch.spec.scalars, launch.scalars, strict=True))
    counts = _JOB.findall(launch.spec.source)
    found = [eval(count, {"__builtins__": {}}, scalars) for count in counts]
    if found and sum(found) != math.prod(launch.grid):
        raise ValueError(f"{launch.spec.name} has {launch.grid} blocks, its jobs {sum(found)}")
    return [n for n in found if n] or [math.prod(launch.grid)]


def _through_level_2(arrays, traffic: Traffic) -> float:
    found = 0
    for number, array in enumerate(arrays):
        reads = traffic.unique(number).shape[1]
        found += traffic.sectors[number] if array.writable else reads
    return SECTOR * found


def _work(loop: sass.Loop, weight) -> float:
    return float(np.sum(weight[loop.first : loop.last + 1]))


def _graph(launch: Launch, edges) -> reuse.Graph | None:
    """Return whose edges the blocks of a launch walk; None if they walk none."""
    if edges is None:
        return None
    for owner in ("receiver", "sender"):
        pointers = np.asarray(getattr(edges, f"{owner}_ptr"))
        if any(_same(a, pointers) for a in launch.arrays):
            return reuse.Graph(edges, owner)
    return None


def _same(array, other) -> bool:
    known = not isinstance(array, jax.ShapeDtypeStruct) and array.shape == other.shape
    return known and bool((np.asarray(array) == other).all())


def _arguments(launch: Launch, graph: reuse.Graph | None, warps: int):
    """Return the arrays of a launch and its arguments, of which floats have no numbers.

    Raises:
      UnknownIndexError: an index array whose numbers are not known.
    """
    aliased, spec = dict(launch.aliases), launch.spec
    whole = not any(isinstance(a, jax.ShapeDtypeStruct) for a in launch.arrays)
    outputs = []
    for n, (shape, kind) in enumerate(zip(launch.shapes, spec.output_types, strict=True)):
        size = math.prod(shape)
        found = Array(f"output {n}", size, _SIZES[kind], None, writable=True, shape=shape)
        if whole:
            values = poison((size,), jnp.dtype(spec.output_dtypes[n]))
            found = Array.output(found.name, values, warps)
            found = dataclasses.replace(found, shape=shape)
        outputs.append(found)
    inputs = []
    for n, (array, kind) in enumerate(zip(launch.arrays, spec.input_types, strict=True)):
        if n in aliased:
            inputs.append(outputs[aliased[n]])
        elif kind not in ("*i32", "*i64") and not whole:
            size = math.prod(array.shape)
            inputs.append(Array(f"input {n}", size, _SIZES[kind], None, shape=array.shape))
        elif isinstance(array, jax.ShapeDtypeStruct):
            text = f"the numbers of index array {n} of {spec.name} are not known"
            raise UnknownIndexError(text)
        else:
            order = graph is not None and _same(array, graph.order)
            name = "order" if order else f"input {n}"
            found = Array.input(name, np.asarray(array))
            inputs.append(dataclasses.replace(found, shape=np.shape(array)))
    arguments = [*inputs, *launch.scalars, *outputs]
    return list({id(a): a for a in arguments if isinstance(a, Array)}.values()), arguments


def _parts(listing: sass.Listing, weight, blocks: float):
    """Return runs of instructions with one weight each, and how often a block runs them."""
    pairs = itertools.groupby(zip(weight, listing.codes, strict=True), key=lambda pair: pair[0])
    return tuple((float(times) / blocks, tuple(c for _, c in group)) for times, group in pairs)
