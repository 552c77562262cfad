"""Wavefronts, sectors and rows that miss are those that can be counted by hand."""

import numpy as np
import pytest

from benchmarks.predictions.reuse import Graph, Reuse
from benchmarks.predictions.traffic import Traffic
from eqfuse.ops import Edges
from tests.emulator.arrays import Array
from tests.emulator.machine import Machine

KERNEL = """
.version 8.7
.target sm_90a
.visible .entry kernel(.param .u64 .ptr .global .align 1 a)
.reqntid 64
{{
    ld.param.b64 %rd1, [a];
    mov.u32 %r1, %tid.x;
    mul.lo.s32 %r2, %r1, {stride};
    mad.wide.u32 %rd2, %r2, 1, %rd1;
    {access}
    ret;
}}
"""
LOAD = "ld.global.b32 {{ %r3 }}, [ %rd2 + 0 ];"


@pytest.mark.parametrize(
    ("stride", "wavefronts", "sectors"),
    [
        (4, 1, 4),  # 32 neighbours of 4 bytes: a line
        (12, 3, 12),  # a component of vectors, as e3nn has them
        (20, 5, 20),
        (128, 32, 32),
        (0, 1, 1),
    ],
)
def test_a_load_of_a_warp(stride, wavefronts, sectors):
    traffic = Traffic()
    text = KERNEL.format(stride=stride, access=LOAD.format())
    machine = Machine(text, 0, traffic, addresses_only=True)
    machine.run([Array("a", 1 << 14, 4, None)], (3,), checked=False)
    assert traffic.instructions["global", "ld"] == 2 * 3  # warps and blocks
    assert traffic.wavefronts["global", "ld"] == 2 * 3 * wavefronts
    assert traffic.sectors[0] == 2 * 3 * sectors
    blocks, _, touched = traffic.unique(0)
    assert set(blocks) == {0, 1, 2}
    assert len(np.unique(touched)) == (2 * sectors if stride else 1)


@pytest.mark.parametrize(("stride", "wavefronts"), [(4, 1), (8, 2), (128, 32), (0, 1)])
def test_conflicts_of_banks(stride, wavefronts):
    traffic = Traffic()
    access = "st.shared.b32 [%r2], %r1;"
    machine = Machine(KERNEL.format(stride=stride, access=access), 1 << 14, traffic, True)
    machine.run([Array("a", 1, 4, None)], (1,), checked=False)
    assert traffic.wavefronts["shared", "st"] == 2 * wavefronts


def reuse(**fields) -> Reuse:
    # a ring of eight nodes, each with edges from its two neighbours
    nodes = np.arange(8)
    senders = np.concatenate([(nodes + 1) % 8, (nodes - 1) % 8])
    graph = Graph(Edges.from_arrays(senders, np.tile(nodes, 2), 8), "receiver")
    defaults = {"unique_bytes": 0.0, "once": 100.0, "per_edge": 10.0, "per_other": 1.0}
    defaults |= {"walks": 1.0, "parts": 1, "nodes": 8, "channel_blocks": 1, "graph": graph}
    return Reuse(**(defaults | fields))


def test_a_large_cache_misses_each_row_once():
    assert reuse().missed(cache=1e9, resident=2) == 100 + 16 * 10 + 8 * 1
    assert reuse(walks=3.0).missed(cache=1e9, resident=2) == 100 + 16 * 10 + 8 * 1


def test_no_cache_misses_every_row():
    assert reuse().missed(cache=0, resident=2) == 100 + 16 * (10 + 1)
    assert reuse(walks=3.0).missed(cache=0, resident=2) == 100 + 3 * 16 * (10 + 1)


def test_walks_that_touch_different_parts_share_nothing():
    parts = reuse(walks=2.0, parts=2).missed(cache=0, resident=2)
    assert parts == 100 + 16 * (10 + 1)


def test_a_cache_in_between_keeps_what_was_used_last():
    """Block by block, the node that a neighbour has read too is found if it was the last one."""
    most = reuse().missed(cache=0, resident=1)
    some = reuse().missed(cache=60, resident=1)
    assert reuse().missed(cache=1e9, resident=1) < some < most
