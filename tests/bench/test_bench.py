"""`eqfuse bench`, run on the CPU: what it refuses to time, and what it survives."""

import re
import time

import jax
import optax
import pytest

from eqfuse import ops
from eqfuse.bench import command as program
from eqfuse.bench import parity, steps, times
from eqfuse.bench.problems import ORDERS, PROBLEMS
from eqfuse.bench.times import ParityError
from tests.bench import worker_program

TINY = (4, 9)
SETTINGS = {"dry": True, "backend": "llvm", "seconds": 0.01, "peers": ""}
KERNELS = program.Job("kernels", "tetris-1", TINY)
"""One op, small enough for a test: its parity, then its times."""


class InProcess:
    """Runs jobs here, so that what is patched here counts."""

    def run(self, job, settings, seconds):
        return program.results(job, settings)

    def stop(self):
        pass


def timed(**fields):
    return times.of_op(
        "tetris-1", TINY, **{"dtype": "float32", "backend": "llvm", "seconds": 0.01} | fields
    )


def checked(dtype="float32", size=TINY):
    [result] = parity.check("tetris-1", dtype, "llvm", size)
    return result["orders"]


def wrong(monkeypatch, by: float):
    """Make what eqfuse computes wrong by a factor; the definition stays."""
    right = ops.graph_tensor_product

    def product(*args, backend, **options):
        out = right(*args, backend=backend, **options)
        return out if backend == "e3nn" else out * by

    monkeypatch.setattr(ops, "graph_tensor_product", product)


def run_of(tmp_path, minutes=5.0) -> program.Run:
    return program.Run(InProcess(), tmp_path / "out.json", {}, minutes, SETTINGS)


@pytest.mark.slow
def test_every_order_is_timed(tmp_path, capsys):
    rows = run_of(tmp_path).all([KERNELS])["results"]
    assert [row["order"] for row in rows] == list(ORDERS)
    for row in rows:
        assert row["checked_against"] == "e3nn-jax"
        for side in ("eqfuse", "e3nn-jax"):
            assert row["sides"][side]["ms"]["median"] > 0
        assert row["sides"]["eqfuse"]["difference"] < 1e-5
    assert "| tetris-1 | 4 / 9 | float32 | double | e3nn-jax |" in capsys.readouterr().out


def test_nothing_is_timed_where_results_differ_in_the_size_itself(monkeypatch):
    wrong(monkeypatch, 1.001)
    for row in timed():
        assert row["error"].startswith("eqfuse: results differ by 1.0e-03 from e3nn-jax")
        assert "sides" not in row


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_wrong_results_are_found_in_other_dtypes(dtype, monkeypatch):
    checked(dtype)
    wrong(monkeypatch, 1.02)
    with pytest.raises(ParityError, match="times what is allowed"):
        checked(dtype)


@pytest.mark.parametrize("off", [0.0, 1e-3])
def test_a_step_is_timed_only_where_loss_and_gradient_agree(off, monkeypatch):
    def training_step(name, backend, nodes, edges):
        def step(params, state, graph, *labels):
            extra = 0.0 if backend == "e3nn" else off
            moment = optax.ScaleByAdamState(0, 2 * params + extra, params)
            return params, (moment,), (params**2).sum() + extra

        params, *labels = (jax.ShapeDtypeStruct((n,), "float32") for n in (3, 5, 7))
        return step, (params, (), {}, *labels)

    monkeypatch.setattr(steps, "training_step", training_step)
    [row] = steps.measure("nequip", (20, 40), "llvm", 0.01)
    if off:
        assert re.fullmatch("eqfuse: results differ by .+e-04 from e3nn-jax", row["error"])
        return
    assert {"ms", "ratio", "compile_s", "scratch_bytes"} <= set(row["sides"]["e3nn-jax"])
    assert row["checked_against"] == "e3nn-jax"


def test_the_minutes_are_kept(tmp_path, capsys):
    content = run_of(tmp_path, minutes=0).all([KERNELS])
    [row] = content["results"]
    assert row["skipped"] == "0 s were left"
    printed = capsys.readouterr().out.splitlines()
    assert "| tetris-1 | 4 / 9 | float32 |  | skipped: 0 s were left | | | | |" in printed
    assert len({line.count("|") for line in printed if line}) == 1


def test_a_process_that_dies_or_hangs_is_replaced():
    ours = program.Worker(worker_program.answer, {"WHAT": "42"})
    try:
        [first] = ours.run("answer", {}, 20)
        [again] = ours.run("answer", {}, 20)
        assert first == again == {"answer": "42", "process": first["process"]}
        [spoiled] = ours.run("spoil", {}, 20)
        assert spoiled["process"] == first["process"]
        assert ours.run("die", {}, 20) == [{"error": "the process died"}]
        start = time.monotonic()
        [replaced] = ours.run("answer", {}, 20)
        [hung] = ours.run("hang", {}, 0.5)
        assert hung["error"].startswith("stopped after")
        [after] = ours.run("answer", {}, 20)
        assert len({found["process"] for found in (first, replaced, after)}) == 3
        assert time.monotonic() - start < 40
    finally:
        ours.stop()


def test_the_command_fails_where_a_result_is_an_error(tmp_path, monkeypatch):
    wrong(monkeypatch, 1.001)
    monkeypatch.setattr(program, "Worker", lambda *_: InProcess())
    arguments = ["--dry-run", "--only", "parity tetris-1 float32"]
    with pytest.raises(SystemExit, match=r'error: \{"group": "parity", "case": "tetris-1"'):
        program.main([*arguments, "--out", str(tmp_path / "out.json")])


def test_bench_runs_what_is_asked_for():
    jobs = program.jobs()
    assert [job.group for job in jobs[:5]] == ["parity", "parity", "kernels", "kernels", "parity"]
    assert [job.case for job in jobs[:4]] == [*program.MAIN, *program.MAIN]
    networks = set(steps.PUBLISHED) | set(steps.MODELS)
    for job in jobs:
        assert job.case in (networks if job.group in ("steps", "forces") else PROBLEMS)
    assert set(steps.PUBLISHED) <= {job.case for job in jobs if job.group == "forces"}
    assert {job.case for job in jobs if job.tf32x3} == set(program.MATMULS)
    for dtype in ("float32", "float64", "bfloat16"):
        found = {job.case for job in jobs if job.group == "parity" and job.dtype == dtype}
        assert found == set(program.PARITY)
    assert all(job.size < program.REDUCED for job in program.tiny(jobs))
    with pytest.raises(SystemExit, match="nothing holds only='nothing such'"):
        program.main(["--only", "nothing such"])


def test_errors_in_one_line():
    error = jax.errors.JaxRuntimeError("INTERNAL: illegal memory access\nmore")
    assert times.first_line(error).endswith("RuntimeError: INTERNAL: illegal memory access")
    assert program.is_device_error({"sides": {"eqfuse": {"error": times.first_line(error)}}})
    full = times.first_line(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    assert full == "out of memory: RESOURCE_EXHAUSTED: Out of memory"
    assert not program.is_device_error({"error": full})
