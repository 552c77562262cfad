"""`ops.fuse` on the table of patterns: what it makes of each, against e3nn-jax."""

from __future__ import annotations

import re

import jax
import pytest

from eqfuse import ops
from tests.fuse.patterns import (
    CASES,
    GATED,
    GRAPH,
    LAYER,
    LAYERS,
    WRITTEN,
    of_arrays,
    operands,
)
from tests.ops import tiers
from tests.ops.parity import BACKENDS, UNOPTIMIZED, along_random_directions, assert_close


def rows_of_report(report: str) -> list[list[str]]:
    """Return the cells of the lines of a table, without its head."""
    lines = (line for line in report.splitlines() if "|" in line)
    return [[cell.strip() for cell in line.split("|")] for line in lines][1:]


def results(function, arrays, second: bool) -> dict:
    """Return values, gradients and, with `second`, their derivatives, by all arrays."""
    orders = ("value", "vjp", "vjp of vjp")[: 2 + second]
    return along_random_directions(function, *arrays, orders=orders, options=UNOPTIMIZED)


def on_graph(function, *arrays) -> int:
    """Return how many products on graphs a function has."""
    return str(jax.make_jaxpr(function)(*arrays)).count("outputs out[receiver")


def cases_by_backend():
    """Yield each case with each backend that it is about; by default, the native one runs."""
    for given in tiers.slow_unless([tiers.NATIVE], *BACKENDS):
        [backend] = given.values
        for name, case in CASES.items():
            if backend != "xla" or name not in LAYERS:  # XLA has no fused layers
                slow = [pytest.mark.slow] * case.slow
                yield pytest.param(name, backend, marks=[*given.marks, *slow])


@pytest.mark.parametrize(("name", "backend"), [*cases_by_backend()])
def test_a_pattern(name, backend, monkeypatch, capsys, request):
    """It is computed by these ops, the report says so, and values and gradients are e3nn-jax's."""
    case = CASES[name]
    monkeypatch.setenv("EQFUSE_BACKEND", backend)
    if case.whole:
        request.getfixturevalue("one_op")
    with jax.enable_x64(True):
        arrays, function = operands(), of_arrays(case.function)
        jaxpr, report = traced(function, arrays, capsys)
        rows = rows_of_report(report)
        assert tuple(computed for *_, computed, _ in rows) == case.ops, report
        assert case.says in report
        assert all(cell for row in rows for cell in row)
        assert all(where.startswith("patterns.py:") for where, *_ in rows)
        layers = sum(op.startswith(LAYER) for op in case.ops)
        assert jaxpr.count("= eqfuse_fused[") == layers
        assert jaxpr.count("Gate(tiles") == case.ops.count(GATED)
        assert layers or jaxpr.count("outputs out[receiver") == case.ops.count(GRAPH)
        assert "eqfuse_" not in str(jax.make_jaxpr(function)(*arrays))
        fused = ops.fuse(function, patch=True)
        found, expected = (results(f, arrays, case.second) for f in (fused, function))
        assert_close(found, expected, case.tolerance, least=1.0)
        if case.followed is None:
            return
        followed = of_arrays(case.followed)
        _, report = traced(followed, arrays, capsys)
        assert GRAPH in report
        assert WRITTEN not in report
        assert case.says not in report
        if case.same:
            assert_close(followed(*arrays), function(*arrays), 1e-12)


def traced(function, arrays, capsys):
    """Return the trace of a function that is fused, and the report of it."""
    jaxpr = jax.make_jaxpr(ops.fuse(function, patch=True, report=True))(*arrays)
    return str(jaxpr), re.sub(" +", " ", capsys.readouterr().out)
