"""`python -m benchmarks.gpu` on a CPU, in tiny cases: what it compares, and what it survives."""

import json
import lzma
import math
import time
import types

import jax
import numpy as np
import pytest

from benchmarks import peers
from benchmarks.gpu import live, measure, page, prebuild, sides, steps
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.sides import Case, Side


def doubled(by: float, shape=(64,)):
    return lambda: (lambda x: (x * by,), (jax.ShapeDtypeStruct(shape, "float32"),))


CASES = [
    Case("first", (Side("judge", doubled(2.0)), Side("same", doubled(2.0)))),
    Case("second", (Side("judge", doubled(2.0)), Side("wrong", doubled(2.001)))),
    Case("third", (Side("fails", lambda: 1 / 0), Side("judge", doubled(2.0)))),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Compile `CASES` into a folder."""
    monkeypatch.setattr(sides, "groups", lambda tiny: {"ops": CASES})
    prebuild.run(tmp_path, tiny=True)
    return tmp_path


def by_name(result: dict) -> dict[str, dict]:
    return {side["side"]: side for side in result["sides"]}


def measured(folder, **options) -> dict[str, dict]:
    measure.run(folder, **options)
    return {r["case"]: r for r in measure.results(folder) if "case" in r}


def test_one_command_each_from_compiling_to_the_page(tmp_path, monkeypatch, capsys):
    written = tmp_path / "gpu.md"
    monkeypatch.setattr(page, "PAGE", written)
    for part in ("prebuild", "measure", "page"):
        main([part, str(tmp_path), *(["--tiny"] if part == "prebuild" else [])])
    text = written.read_text()
    for row in (
        "| canary | XLA |",
        "| tetris-1, double | eqfuse |",
        "| training step of nequip, 40",
    ):
        assert row in text
    assert text.startswith("# Measured on a GPU\n\n")
    assert "cpu, driver unknown; jax" in text
    found = {r["case"]: r for r in measure.results(tmp_path) if "case" in r}
    ours = by_name(found["tetris-1, double"])["eqfuse"]
    assert 0 < ours["difference"] <= ours["allowed"] < 1e-6
    assert ours["repeats"]


def test_what_differs_or_fails_is_said_and_not_timed(folder):
    found = measured(folder)
    assert by_name(found["first"])["same"]["difference"] == 0
    assert len(by_name(found["first"])["same"]["ms"]) == 3
    wrong = by_name(found["second"])["wrong"]
    assert wrong["error"] == "differs by 5.0e-04 of the largest element"
    assert "ms" not in wrong
    third = by_name(found["third"])
    assert third["fails"]["error"] == "ZeroDivisionError: division by zero"
    assert third["judge"]["ms"]


def test_what_is_there_is_kept_and_a_next_call_goes_on(folder, capsys):
    before = {path: path.stat().st_mtime_ns for path in (folder / "entries").iterdir()}
    prebuild.run(folder, tiny=True)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "entries").iterdir()}
    assert list(measured(folder, only="first")) == ["first"]
    assert list(measured(folder)) == ["first", "second", "third"]
    assert sum("machine" in result for result in measure.results(folder)) == 1


def test_a_case_that_kills_or_hangs_its_process_costs_itself_alone(folder, monkeypatch):
    [entry] = [p for p in (folder / "entries").iterdir() if '"first"' in p.read_text()]
    content = json.loads(entry.read_text())
    content["leaves"][0]["shape"] = [2**50]  # NumPy cannot, and the process ends
    entry.write_text(json.dumps(content))
    monkeypatch.setattr(measure, "PATIENCE_S", 20)
    found = measured(folder)
    assert "error" in found["first"]
    assert by_name(found["second"])["judge"]["ms"]


DIES = """
import os, sys
from benchmarks.gpu import measure
right = measure.measured
measure.measured = lambda store, e: os._exit(3) if e["case"] == "second" else right(store, e)
measure.child(*sys.argv[1:])
"""


def test_a_case_whose_process_dies_is_a_row_of_its_group(folder, monkeypatch):
    monkeypatch.setattr(measure, "CHILD", DIES)
    monkeypatch.setattr(page, "PAGE", folder / "gpu.md")
    assert list(measured(folder)) == ["first", "second", "third"]
    page.run(folder)
    text = (folder / "gpu.md").read_text()
    assert text.count("## Ops") == 1
    assert "| second |  | the process died (3) |" in text


def test_results_of_live_may_come_first(folder, monkeypatch):
    monkeypatch.setattr(page, "PAGE", folder / "gpu.md")
    measure.append(folder, {"key": "live", "group": "live", "case": "forces", "sides": []})
    with pytest.raises(SystemExit, match="has no results: run `python"):
        page.run(folder)
    measured(folder, only="first")
    page.run(folder)
    assert "; cpu, driver" in (folder / "gpu.md").read_text()


def test_a_case_that_the_minutes_cut_off_is_measured_by_the_next_call(folder, monkeypatch, capsys):
    def watched(child, folder, end):
        (folder / "started").write_text(json.loads((folder / "order.json").read_text())[0] + "\n")
        time.sleep(max(0.0, end - time.monotonic()) + 0.01)
        return "stopped"

    with monkeypatch.context() as patch:
        patch.setattr(measure, "RESERVE_S", 0)
        patch.setattr(measure, "_watched", watched)
        patch.setattr(measure.subprocess, "Popen", lambda *args, **options: None)
        assert measured(folder, minutes=1e-3) == {}
    assert "3 cases are left" in capsys.readouterr().out
    assert by_name(measured(folder)["first"])["same"]["ms"]
    assert "are left" not in capsys.readouterr().out


def test_patience_is_with_each_side(folder, monkeypatch):
    entries = [json.loads(p.read_text()) for p in (folder / "entries").iterdir()]
    (started := folder / "started").write_text("")
    times, store = [], measure.Store(folder)

    def call(side, count):
        times.append(started.stat().st_mtime_ns)
        time.sleep(0.05)
        return lambda *leaves: leaves

    monkeypatch.setattr(store, "call", call)
    measure.measured(store, next(e for e in entries if e["case"] == "first"))
    assert len(times) == len(set(times)) == 2


def test_kernels_are_compiled_ahead_for_the_device_that_is_there(tmp_path, monkeypatch):
    a100 = types.SimpleNamespace(platform="gpu", compute_capability="8.0", device_kind="A100")
    targets = []

    def compile_ahead(*args, target):
        targets.append(target)
        raise InterruptedError

    monkeypatch.setattr(prebuild.ops, "compile_ahead", compile_ahead)
    monkeypatch.setattr(jax.sharding, "SingleDeviceSharding", lambda device: None)
    builder = prebuild.Builder(tmp_path, a100, tiny=False)
    assert "InterruptedError" in builder.entry(CASES[0])["sides"][0]["error"]
    assert set(targets) == {"sm_80"}


def test_a_process_that_hangs_is_ended(folder, monkeypatch):
    class Hangs:
        pid, polls = 2**22 + 1, 0

        def wait(self, timeout=None):
            if timeout is not None:
                raise measure.subprocess.TimeoutExpired("child", timeout)

    killed = []
    monkeypatch.setattr(measure.os, "killpg", lambda pid, signal: killed.append(pid))
    monkeypatch.setattr(measure, "PATIENCE_S", 0.1)
    why = measure._watched(Hangs(), folder, math.inf)
    assert why.startswith("stopped after")
    assert killed == [Hangs.pid]


def test_parity_is_measured_by_twice_the_errors_of_e3nn():
    entry = {"tolerance": None, "products": [1, 10**8]}
    assert measure._allowed(entry, [1e-6, 1e-6]) == [2e-6, 1e4 * 2.0**-24]
    assert measure._allowed({"tolerance": 0.1}, [1.0, 1.0]) == [0.1, 0.1]


def test_differences_are_of_the_largest_element():
    assert measure.difference(np.array([1.0, 4.0]), np.array([1.0, 5.0])) == 0.25
    assert measure.difference(np.zeros(2), np.array([0.0, math.nan])) == math.inf


def test_arrays_of_a_case_are_those_that_were_given(tmp_path):
    numbers = np.arange(6, dtype=np.int32)
    builder = prebuild.Builder(tmp_path, jax.devices()[0], tiny=True)
    leaf = builder._leaf(numbers)
    stored = lzma.decompress((tmp_path / "arrays" / leaf["stored"]).read_bytes())
    assert numbers.tobytes() in stored
    assert builder._leaf(np.zeros(3)) == {"shape": [3], "dtype": "float64", "zeros": True}


@pytest.mark.slow
def test_a_calculator_and_dynamics_are_timed_with_graphs_and_without(tmp_path):
    live.run(tmp_path, tiny=True)
    found = {r["case"]: by_name(r) for r in measure.results(tmp_path)}
    assert list(found) == ["forces by a calculator", "a step of dynamics"]
    for case in found.values():
        assert len(case) == 2
        assert all(side["ms"][1] > 0 for side in case.values())


def test_peers_that_are_missing_say_so(tmp_path):
    peers.run(tmp_path, (("tetris-1", (4, 9)),))
    [first, *_] = measure.results(tmp_path)
    found = by_name(first)
    assert found["eqfuse"]["ms"][1] > 0
    assert "not installed" in found["cuequivariance"]["error"] or found["cuequivariance"]["ms"]


def test_a_side_whose_results_differ_is_not_timed_beside_peers(tmp_path, monkeypatch):
    from eqfuse import ops

    right = ops.graph_tensor_product

    def product(*args, backend, **options):
        out = right(*args, backend=backend, **options)
        return out if backend == "e3nn" else out * 1.001

    monkeypatch.setattr(ops, "graph_tensor_product", product)
    peers.run(tmp_path, (("tetris-1", (4, 9)),))
    for found in map(by_name, measure.results(tmp_path)):
        assert found["eqfuse"]["error"] == "differs by 1.0e-03 of the largest element"
        assert "ms" not in found["eqfuse"]
        assert found["e3nn-jax"]["ms"]


@pytest.mark.parametrize("model", steps.MODELS)
def test_gradients_of_tables_are_traced_in_float32(model):
    """Their networks are evaluated in float64, which JAX forgets when it transposes a gather."""
    step, arguments = steps.training_step(model, "xla", 10, 40, radial="table")
    out, *_ = jax.eval_shape(step, *arguments)
    assert out.dtype == "float32"


def test_cases_that_the_mission_asks_for_are_there():
    found = {group: [case.name for case in cases] for group, cases in sides.groups().items()}
    assert list(found)[:3] == ["ceilings", "parity", "ops"]
    for size in (2_700, 40_000, 160_000):
        names = [n for group in ("ops", "small ops", "middle ops") for n in found[group]]
        for op in (*sides.PRODUCTS, *sides.LAYERS):
            for order in ("forward", "backward", "double"):
                assert f"{op}, {order}, {size:,} edges, float32" in names
    for model in ("nequip", "mace", "allegro"):
        assert f"training step of {model}, 160,000 edges" in found["steps"]
    assert all("bfloat16" in name for name in found["bfloat16"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sides_of_an_op_have_results_of_the_same_shapes(dtype):
    """Traced, as `prebuild` traces them: none needs a GPU, nor what its irreps do not have."""
    for case in sides.op_cases(sides.TINY, dtype):
        shapes = []
        for function, args in (side.build() for side in case.sides):
            results = jax.tree.leaves(jax.eval_shape(function, *args))
            shapes.append([leaf.shape for leaf in results])
        assert shapes == [shapes[0]] * len(case.sides), case.name
