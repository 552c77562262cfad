"""`python -m benchmarks.gpu`, run on the CPU: what it refuses to time, and what it survives."""

import fcntl
import re
import threading
import time

import jax
import optax
import pytest

from benchmarks.gpu import command as program
from benchmarks.gpu import parity, steps, times
from benchmarks.gpu.problems import ORDERS, PROBLEMS
from benchmarks.gpu.times import ParityError
from eqfuse import ops
from tests.benchmarks import worker_program

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
    return program.Run([InProcess()], tmp_path / "out.json", {}, minutes, SETTINGS)


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


def test_times_in_16_bits_are_printed_without_the_exact_side(tmp_path, capsys):
    rows = run_of(tmp_path).all([KERNELS._replace(dtype="bfloat16")])["results"]
    assert {*rows[0]["sides"]} == {"eqfuse", "e3nn-jax"}
    assert "| tetris-1 | 4 / 9 | bfloat16 | forward | eqfuse |" in capsys.readouterr().out


def test_what_is_timed_waits_for_others_and_they_for_it(tmp_path):
    path, order = tmp_path / "lock", []
    path.touch()
    with open(path) as other, times.beside_others(path):
        fcntl.flock(other, fcntl.LOCK_SH)  # another process compiles

        def release():
            order.append("the other ends")
            fcntl.flock(other, fcntl.LOCK_UN)

        timer = threading.Timer(0.2, release)
        timer.start()
        with times.alone():
            order.append("alone")
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        timer.join()
    assert order == ["the other ends", "alone"]


def test_jobs_are_shared_and_run_again_alone_where_memory_ran_out(tmp_path):
    ran = []

    class Full:
        def run(self, job, settings, seconds):
            ran.append(job)
            time.sleep(0.01)
            full = ran.count(job) == 1 and job.size < (2, 2)
            return [{"error": "out of memory"} if full else {"skipped": "fine"}]

        def stop(self):
            pass

    run = program.Run([Full(), Full()], tmp_path / "out.json", {}, 5.0, SETTINGS)
    jobs = [KERNELS._replace(size=(n, n)) for n in range(5)]
    rows = run.all(jobs)["results"]
    assert {row["size"] for row in rows} == {job.size for job in jobs}
    assert [row.get("skipped") for row in rows] == ["fine"] * 5
    assert len(ran) == 7


@pytest.mark.parametrize("model", steps.MODELS)
def test_gradients_of_tables_are_traced_in_float32(model):
    """Their networks are evaluated in float64, which JAX forgets when it transposes a gather."""
    with times.precision("float32"):
        step, arguments = steps.training_step(model, "xla", 10, 40, radial="table")
        out, *_ = jax.eval_shape(step, *arguments)
    assert out.dtype == "float32"


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
    assert [job.case for job in jobs[:2]] == [*program.MAIN]
    assert {job.group for job in jobs[: len(program.PARITY)]} == {"parity"}
    networks = set(steps.PUBLISHED) | set(steps.MODELS)
    for job in jobs:
        assert job.case in (networks if job.group in ("steps", "forces") else PROBLEMS)
    assert set(steps.PUBLISHED) <= {job.case for job in jobs if job.group == "forces"}
    assert {job.case for job in jobs if job.tf32x3} == set(program.MATMULS)
    for dtype in ("float32", "float64", "bfloat16"):
        found = {job.case for job in jobs if job.group == "parity" and job.dtype == dtype}
        assert set(program.PARITY) - found == (
            {"fused-gate-64-l2-always"} if dtype == "float64" else set()
        )
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
