"""Which bytes a launch reads and writes, and which of them miss a cache of level 2.

The model: the cache is an LRU of rows. Blocks start in the order of their numbers, as many at a
time as the GPU holds; these walk their edges in step, one edge each in turn, and when they have
ended the next ones start. An edge costs the bytes that a block touches of its own rows (those of
the edge's arrays, written ones too), and of the row of the node at its other end. What several
walks of a block touch is one part if they touch the same sectors, and several parts if not. Rows of
the block's own node, parameters and index arrays count once, as do all bytes of a launch that walks
no edges: its blocks are taken to share only what is small enough to stay.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

import numpy as np

from benchmarks.predictions.traffic import SECTOR


class Graph:
    """The edges that blocks walk, each those of one node.

    Args:
      edges: an `ops.Edges`.
      owner: "receiver" or "sender", the node that a block has.
    """

    def __init__(self, edges, owner: str):
        self.num_edges, self.num_nodes = len(np.asarray(edges.senders)), edges.num_nodes
        self.order = np.asarray(getattr(edges, f"{owner}_order"))
        self.pointers = np.asarray(getattr(edges, f"{owner}_ptr"))
        other = "senders" if owner == "receiver" else "receivers"
        self.others = np.asarray(getattr(edges, other))

    @property
    def degrees(self) -> np.ndarray:
        return np.diff(self.pointers)

    @functools.cached_property
    def longest(self) -> float:
        """Return the most edges of a node by the mean."""
        return float(self.degrees.max() / self.degrees.mean())


@dataclasses.dataclass
class Reuse:
    """The bytes of a launch, as its blocks touch them.

    Attributes:
      unique_bytes: each once.
      once: those of them that miss once, whatever the cache.
      per_edge, per_other: bytes of an edge's rows and of the other node's that a block touches.
      walks: of a block over its edges.
      parts: of a row, that different walks touch.
      nodes: blocks of one block of channels.
      channel_blocks: how often the grid has each node.
      graph: None where no edges are walked.
    """

    unique_bytes: float
    once: float
    per_edge: float
    per_other: float
    walks: float
    parts: int
    nodes: int
    channel_blocks: int
    graph: Graph | None

    def missed(self, cache: float, resident: int) -> float:
        """Return bytes that miss, of a cache of so many bytes and so many blocks at a time."""
        if self.graph is None:
            return self.unique_bytes
        lru = _LRU(cache)
        walks = max(1, round(self.walks))
        per_block = self.graph.num_nodes / self.nodes  # nodes of a block, one or more
        blocks = self.nodes * self.channel_blocks
        for start in range(0, blocks, resident):
            together = range(start, min(start + resident, blocks))
            rows = [self._edges(b % self.nodes, per_block) for b in together]
            for walk in range(walks):
                part = walk % self.parts
                for step in range(max(map(len, rows), default=0)):
                    if walks == 1:  # nobody reads these again: one row of the cache for all
                        wide = sum(step < len(own) for own in rows)
                        lru.touch((2, start, step), wide * self.per_edge)
                    for block, own in zip(together, rows, strict=True):
                        if step >= len(own):
                            continue
                        tag = block // self.nodes * self.parts + part
                        if walks > 1:
                            lru.touch((0, own[step], tag), self.per_edge / self.parts)
                        other = int(self.graph.others[own[step]])
                        lru.touch((1, other, tag), self.per_other / self.parts)
        return self.once + lru.missed

    def _edges(self, block: int, per_block: float) -> list[int]:
        first, last = (min(round((block + n) * per_block), self.graph.num_nodes) for n in (0, 1))
        pointers = self.graph.pointers
        return self.graph.order[pointers[first] : pointers[last]].tolist()


class _LRU:
    """A cache that forgets what was used longest ago."""

    def __init__(self, size: float):
        self.size, self.used, self.missed = size, 0.0, 0.0
        self._rows: collections.OrderedDict = collections.OrderedDict()

    def touch(self, row, size: float) -> None:
        if not size:
            return
        if row in self._rows:
            self._rows.move_to_end(row)
            return
        self.missed += size
        self._rows[row] = size
        self.used += size
        while self.used > self.size:
            self.used -= self._rows.popitem(last=False)[1]


def edges_of(graph: Graph, blocks, nodes: int) -> np.ndarray:
    """Return how many edges blocks walk, of `nodes` blocks that share the nodes of a graph."""
    bounds = np.round(np.arange(nodes + 1) * graph.num_nodes / nodes).astype(int)
    return np.diff(graph.pointers[bounds])[np.asarray(blocks) % nodes]


def of(arrays, samples, blocks: int, nodes: int, graph: Graph | None) -> Reuse:
    """Return the reuse of a launch.

    Args:
      arrays: of the launch, with their shapes.
      samples: of its blocks, a `counts.Sample` of each job; one where edges are walked.
      blocks: of the launch.
      nodes: blocks along the first axis of the grid.
      graph: whose edges they walk.
    """
    [sample, *_], chosen = samples, samples[0].chosen
    unique = once = per_edge = per_other = 0.0
    walks = parts = 1.0
    if graph is not None:
        edges = max(float(edges_of(graph, chosen, nodes).sum()), 1.0)
    for number, array in enumerate(arrays):
        found = sample.traffic.unique(number)
        distinct = (s.scale * len(np.unique(s.traffic.unique(number)[2])) for s in samples)
        size = min(array.nbytes, SECTOR * sum(distinct))
        unique += size
        each = len(np.unique(found[0] << 31 | found[2])) * SECTOR  # of blocks, summed
        length = array.shape[-2] if len(array.shape) > 2 else (array.shape or (1,))[0]
        if graph is None or array.name.startswith("index") or array.name == "order":
            once += size
            if array.name == "order" and found.size:
                walks = float(np.mean([found[1][found[0] == b].max() for b in set(found[0])])) + 1
        elif length == graph.num_edges:
            per_edge += each / edges
            touched = found.shape[1] * SECTOR  # by all walks of all blocks
            parts = max(parts, walks * each / touched if touched else 1)
        elif length == graph.num_nodes and each > 3 * len(chosen) * array.nbytes / length:
            per_other += each / edges
        else:
            once += size
    channel_blocks = max(blocks // nodes, 1)
    return Reuse(
        unique, once, per_edge, per_other, walks, max(1, round(parts)), nodes, channel_blocks, graph
    )
