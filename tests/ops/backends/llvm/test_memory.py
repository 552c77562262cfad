"""How kernels of forms use memory: blocks, prefetches, streams; results do not change."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops import _host
from eqfuse.ops.backends.llvm import form as codegen
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.layout import Machine
from eqfuse.ops.ir.form import derivatives
from tests.ops.backends.llvm.test_llvm import assert_bitwise, assert_is_definition, run
from tests.ops.cases import product_form

MIB = 1 << 20
LARGE, SMALL = Machine(64, 32, 2 * MIB, 480 * MIB), Machine(64, 32, MIB // 2, 8 * MIB)
HERE = Machine(64, 32)
X = "32x0e+32x1o"  # paths with 0e+1o: 0e0e, 0e1o, 1o0e, 1o1o -> 0e, 1e, 2e
LONG = "32x0e+32x1o+32x2e"
RNG = np.random.default_rng(0)


def assert_same_bits(results):
    for other in results[1:]:
        assert_bitwise(other, results[0])
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(results[0]))


@pytest.fixture
def patched(monkeypatch):
    """Return a function that changes an attribute, after which kernels are written anew."""

    def change(*args):
        monkeypatch.setattr(*args)
        codegen.generate.cache_clear()
        jax.clear_caches()

    yield change
    monkeypatch.undo()
    codegen.generate.cache_clear()
    jax.clear_caches()


# Sums over channels of products of components, for rows of many channels and of few.


@pytest.mark.parametrize("x", ["32x0e+32x1o+32x1e+32x2e", "5x0e+5x1o+5x1e"])  # long, short
def test_double_backward_of_rows(x):
    assert_is_definition(derivatives(product_form(x, "0e+1o+2e", on_graph=False))["double"])


def test_more_products_of_components_than_registers():
    form = product_form("64x3o", "2e", keep="3o")
    graph = ops.Edges.from_arrays(*np.random.default_rng(0).integers(0, 5, (2, 40)), 5)
    assert_is_definition(derivatives(form)["double"], graph)


# Rows that index arrays choose, and rows in order, are prefetched one block ahead.


def prefetches(form, machine) -> dict[str, int]:
    """Return how many cache lines of rows each pass asks for in a turn of its loops."""
    counts, whole = {}, codegen.generate(form, "float32", machine).text
    for text in whole.split("define internal void ")[1:]:
        name = text[1 : text.index("(")]
        kinds = re.findall(r"call void @llvm.prefetch.p0\(ptr %\w+, i32 0, i32 2, i32 1\)", text)
        assert len(kinds) == text.count("call void @llvm.prefetch")
        if name.startswith("pass_"):
            counts[name] = len(kinds)
    return counts


@pytest.mark.parametrize("machine", [Machine(64, 32), Machine(16, 8)])  # one group, and several
def test_prefetches_are_of_operands_read_in_place(machine):
    """A line of y, and each vector of a component once, in its loop over channels."""
    components_of_x, components_out, paths = 1 + 3, 1 + 3 + 3 + 1 + 3 + 5, 6
    forward = prefetches(product_form(X), machine)
    assert forward == {"pass_copy_sender": 0, "pass_receiver": 1 + components_of_x + paths}
    backward = derivatives(product_form(X))["backward"]
    of_x = backward.restrict(tuple(o.index.is_node for o in backward.outputs))
    assert prefetches(of_x, machine)["pass_sender"] == 1 + components_out + paths
    in_order = product_form(X, on_graph=False)  # the gradient packs x and dout
    assert prefetches(in_order, machine) == {"pass_row": 1 + paths}
    assert prefetches(derivatives(in_order)["backward"], machine) == {"pass_row": 1 + paths}


# Large outputs of rows are written past the caches.


@pytest.mark.parametrize(
    ("x", "graph", "rows"),
    [
        *(("32x0e+16x1o+16x2e", None, rows) for rows in (1, 15, 16, 257)),
        # the rows of edges are written among sums over the edges of nodes
        ("64x0e+64x1o", ops.Edges.from_arrays(*RNG.integers(0, 7, (2, 50)), 7), 50),
    ],
)
def test_streamed_rows_are_the_stored_ones(patched, x, graph, rows):
    form = product_form(x, on_graph=graph is not None)
    for of in (form, derivatives(form)["backward"]):
        found = []
        for size in (0, 1 << 60):
            patched(Machine, "streamed_bytes", size)
            found.append(run(of, graph, rows, np.float32)[0])
        assert_same_bits(found)


def test_only_whole_vectors_are_streamed():
    """Multiplicities that fill no vectors, and sums over edges, are stored."""

    def is_streamed(form):
        text = codegen.generate(form, "float32", HERE).text
        assert ("fence seq_cst" in text) == ("!nontemporal" in text)
        return "!nontemporal" in text

    long, short = (product_form(x, on_graph=False) for x in (LONG, "16x0e+8x1o"))
    assert is_streamed(long)
    assert is_streamed(derivatives(product_form("64x0e+64x1o"))["backward"])
    assert not is_streamed(short)
    assert not is_streamed(product_form(LONG))


# What kernels choose by the caches of the machine, for two machines that are made up.


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({2: "2048K", 3: "491520K"}, (2 * MIB, 480 * MIB)),
        ({2: "1M", 3: "32M"}, (MIB, 32 * MIB)),
        ({2: "262144"}, (MIB // 4, _host.DEFAULT_CACHES[1])),
        ({2: "unknown", 3: ""}, _host.DEFAULT_CACHES),
        ({}, _host.DEFAULT_CACHES),
    ],
)
def test_caches_that_linux_tells(tmp_path, sizes, expected):
    files = {"level": "1", "type": "Data", "size": "48K"}, {"level": "2", "type": "Instruction"}
    known = [{"level": str(n), "type": "Unified", "size": s} for n, s in sizes.items()]
    for k, content in enumerate([*files, *known]):
        (tmp_path / f"index{k}").mkdir()
        for name, text in content.items():
            (tmp_path / f"index{k}" / name).write_text(f"{text}\n")
    assert _host.caches(str(tmp_path)) == expected
    assert machine.machine().level2 == _host.caches()[0]


@pytest.mark.parametrize(("made_up", "num_bytes"), [(LARGE, 16 * MIB), (SMALL, 4 * MIB)])
def test_outputs_are_streamed_that_the_caches_do_not_hold(made_up, num_bytes):
    form = product_form(LONG, on_graph=False, weighted=False)
    least = -(-num_bytes // (4 * form.outputs[0].size))
    text = codegen.generate(form, "float32", made_up).text
    assert f"icmp sge i64 %rows, {least}\n" in text


def test_results_are_the_same_for_any_caches(patched):
    form = derivatives(product_form("100x0e+100x1o", on_graph=False))["backward"]
    found = []
    for level2 in (2 * MIB, MIB // 64):
        here = dataclasses.replace(machine.machine(), level2=level2)
        patched(machine, "machine", lambda here=here: here)
        found.append(run(form, num_rows=40, dtype=np.float32)[0])
    assert_same_bits(found)
