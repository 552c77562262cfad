"""What the sizes of the plan exercise, and the kernels that measure a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.bench import machine, plan
from eqfuse.bench.problems import PROBLEMS
from eqfuse.bench.worker import UNRECORDED, Job, Worker
from eqfuse.ops.backends.triton import linear
from eqfuse.ops.backends.triton.form import edge_lanes
from tests.bench import worker_program


@pytest.mark.parametrize("name", ["nequip-64-l2", "mace-large"])
def test_one_size_has_several_edges_at_a_time_and_one_walks_edges_one_by_one(name):
    form = PROBLEMS[name](*plan.REDUCED).forms["forward"]
    few, many = (edge_lanes(form, "float32", edges, n) for n, edges in (plan.REDUCED, plan.MANY))
    assert few > 1 == many


def test_tiles_of_matmuls_are_wide_in_the_larger_size(monkeypatch):
    """Those of the Linear of 64 channels and l <= 2, whose every order is checked in both sizes."""
    tiles = []
    right = linear.tile
    monkeypatch.setattr(linear, "tile", lambda *a: tiles.append(right(*a)) or tiles[-1])
    for nodes, edges in (plan.REDUCED, plan.MANY):
        problem = PROBLEMS["linear-64-l2"](nodes, edges)
        _kernels_of(problem)
    assert set(tiles) == {linear.TILE, linear.WIDE_TILE}


def _kernels_of(problem):
    function = problem.function("triton-interpret")
    arguments = problem.arguments("forward", "float32")
    jax.jit(function).lower(*arguments, problem.integers)


def test_kernels_are_checked_in_the_precision_that_trains():
    jobs = plan.jobs("triton", {}, 1.0, dry=False)
    found = {job.arguments["name"] for job in jobs if job.arguments.get("tf32x3")}
    assert found == set(plan.MATMULS)


def test_without_command_buffers_is_another_process(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user=1")
    worker = Worker(worker_program.serve, {"WHAT": "42"})
    try:
        jobs = (Job("flags", {}, {}, 0, recorded=recorded) for recorded in (False, False, True))
        [first], [second], [third] = (list(worker.run(job, 20)) for job in jobs)
        assert first["flags"] == f"--xla_of_the_user=1 {UNRECORDED}"
        assert first["process"] == second["process"] != third["process"]
        assert third["flags"] == "--xla_of_the_user=1"
    finally:
        worker.stop()


def test_straight_kernels_are_as_long_as_they_say():
    pytest.importorskip("triton")
    from eqfuse.ops.backends.triton.compile import compile_kernel

    short, long = (compile_kernel(machine.straight_kernel(n, 0), "sm_90") for n in (2048, 8192))
    assert len(long.binary) - len(short.binary) == pytest.approx(6144, rel=0.1)
    other = machine.straight_kernel(2048, 1)
    assert other.source.splitlines()[12] != machine.straight_kernel(2048, 0).source.splitlines()[12]


def test_kernels_that_store_do():
    pytest.importorskip("triton")
    x = jnp.arange(32, dtype=jnp.float32)
    size = machine.LANES * machine.COMPONENTS
    side_by_side, apart = (
        np.asarray(
            jax.jit(functools.partial(machine.stores, strided, 2 * size, "triton-interpret"))(x)
        ).reshape(2, -1)
        for strided in (False, True)
    )
    expected = np.tile(x, 4) + np.arange(3)[:, None]
    np.testing.assert_array_equal(side_by_side, np.tile(expected.ravel(), (2, 1)))
    np.testing.assert_array_equal(apart, np.tile(expected.T.ravel(), (2, 1)))


def test_every_number_of_a_machine_is_measured():
    pytest.importorskip("triton")
    found = list(machine.measure("triton-interpret", 0.0, small=True))
    assert [r["what"] for r in found] == [
        "from kernel to kernel",
        *(f"cold code, {n // 64} bytes" for n in machine.CODE_BYTES),
        "contiguous stores",
        "strided stores",
    ]
    assert found[0]["us"] > 0
