"""Kernels are chosen by what was measured; here by a clock of the test's own, on native kernels."""

import concurrent.futures
import json
import os
import shutil
import time
import types

import ase.io
import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqfuse
from benchmarks.gpu import steps
from eqfuse import inference, models, ops
from eqfuse.ops import _kept
from eqfuse.ops.info import info
from eqfuse.ops.primitives import choice, forms, layer, lowering, measured, measuring
from tests import interpreter  # noqa: F401  (runs backend "triton" on this CPU)
from tests.child import run_python
from tests.small_runs import train_on_copper

ROWS = 300
"""For which the rule chooses NATIVE."""
RULE, OTHER = "NATIVE", "APART"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep what is measured in a folder of this test."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "cache"))
    measured._results.clear()
    yield tmp_path / "cache" / "measured"
    measured._results.clear()


def clock(**seconds):
    """Return a timer that reports these seconds, and remembers what it was asked for."""

    def timer(calls):
        timer.asked.append(sorted(calls))
        return {name: seconds[name] for name in calls}

    timer.asked = []
    return timer


class Layer:
    """A function with one op, and its arguments."""

    def __init__(self, rows: int = ROWS, **options):
        self.module = ops.TensorProductLinearGate("8x0e+4x1o", backend="llvm", **options)
        self.args = (
            e3nn.normal("4x0e+4x1o", jax.random.key(0), (rows,)),
            e3nn.normal("0e+1o", jax.random.key(1), (rows,)),
        )
        self.params = self.module.init(jax.random.key(2), *self.args)

    def __call__(self, x, y):
        return self.module.apply(self.params, x, y).array

    def loss(self, scale):
        x, y = self.args
        return jnp.sum(self(x * scale, y) ** 2)

    def text(self) -> str:
        """Return what the op says of its choice."""
        with ops.recorded() as found:
            jax.eval_shape(lambda *args: self(*args), *self.args)
        [op] = found
        return op.fused


def measure(timer, made=None):
    made = made or Layer()
    return ops.measure(made, *made.args, timer=timer)


def test_the_fastest_is_measured_once_chosen_and_kept():
    timer = clock(NATIVE=2.0, APART=1.0)
    assert Layer().text() == "fused: 256 rows or more"
    [found] = measure(timer)
    assert found.is_new
    assert (found.result.chosen, found.result.ms) == ("APART", {"NATIVE": 2000.0, "APART": 1000.0})
    measured._results.clear()  # as in another process
    assert Layer().text() == "apart: measured, APART takes 1e+03 ms, NATIVE 2e+03"
    assert [m.is_new for m in measure(timer)] == [False]
    assert timer.asked == [["APART", "NATIVE"]]


def test_what_runs_is_what_was_chosen():
    made = Layer()
    run, again = jax.jit(made), jax.jit(lambda *args: made(*args))
    expected = run(*made.args)
    ops.measure(again, *made.args, timer=clock(NATIVE=2.0, APART=1.0))  # which leaves no trace
    kernels = ["eqfuse_fused" in str(f.trace(*made.args).jaxpr) for f in (run, again)]
    assert kernels == [True, False]  # what was traced before keeps its choice
    np.testing.assert_allclose(again(*made.args), expected, rtol=2e-5, atol=2e-6)


def test_a_gain_below_three_percent_changes_nothing():
    [found] = measure(clock(NATIVE=1.0, APART=0.98))
    assert found.result.chosen == RULE
    measured._results.clear()
    [found] = measure(clock(NATIVE=1.0, APART=0.96), Layer(600))
    assert found.result.chosen == OTHER


def test_derivatives_are_timed_that_the_function_takes():
    made, timer = Layer(), clock(NATIVE=1.0, APART=2.0)
    gradient = jax.grad(made.loss)
    orders = [
        [m.result.order for m in ops.measure(f, 1.0, timer=timer)]
        for f in (made.loss, jax.jit(gradient), lambda s: jax.grad(lambda t: gradient(t) ** 2)(s))
    ]
    assert orders == [[0], [1], [2]]
    assert len(timer.asked) == 3  # each time more is timed
    assert [m.result.order for m in ops.measure(made.loss, 1.0, timer=timer)] == [2]


def test_rows_count_to_a_power_of_two():
    timer = clock(NATIVE=1.0, APART=2.0)
    for rows in (240, 256, 350):
        [found] = measure(timer, Layer(rows))
        assert found.problem.num_rows == 256
    assert len(timer.asked) == 1


@pytest.mark.parametrize("fault", ["raises", "differs", "spills"])
def test_a_candidate_that_fails_or_differs_is_left_out(fault, monkeypatch):
    right = layer.evaluate

    def evaluate(call, *arrays):
        if call.kernels is not choice.Kernels.APART:
            return right(call, *arrays)
        if fault == "raises":
            raise MemoryError("RESOURCE_EXHAUSTED: out of memory\nand more")
        return right(call, *arrays) * 1.001

    if fault == "spills":  # both candidates do, and the rule's is kept
        spilled = types.SimpleNamespace(spilled_bytes=64, target="sm_90")
        monkeypatch.setattr(measuring, "has_gpu", lambda: True)
        monkeypatch.setattr(measuring.lowering, "compile_ahead", lambda *_: [spilled])
    monkeypatch.setattr(layer, "evaluate", evaluate)
    timer = clock(NATIVE=1.0, APART=0.1)
    [found] = measure(timer)
    assert found.result.chosen == RULE
    assert timer.asked == [[RULE]]
    reason = {
        "raises": "RESOURCE_EXHAUSTED: out of memory",
        "differs": "results differ by 1",
        "spills": "64 bytes of each thread's registers are spilled",
    }[fault]
    assert found.result.left_out[OTHER].startswith(reason)
    assert f"{OTHER} is left out: {reason}" in Layer().text()


def test_where_the_rule_fails_by_itself_the_work_goes_on(monkeypatch):
    right, made = layer.evaluate, Layer()

    def evaluate(call, *arrays):
        if measured.collecting.value:
            return right(call, *arrays)
        raise MemoryError("RESOURCE_EXHAUSTED: out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(layer, "evaluate", evaluate)
        patch.setattr(measuring.lowering, "plans_of", lambda *args: {})
        with pytest.warns(UserWarning, match="could not be timed, and are chosen by rule: RESO"):
            [found] = measure(clock(), made)
    assert found.result is None
    assert made.text() == "fused: 256 rows or more"


def test_nothing_but_operands_is_in_memory_while_candidates_are_timed():
    """What a GPU has left decides which problems can be timed."""
    made, seen = Layer(), []
    before = jax.live_arrays()

    def bytes_of(arrays) -> int:
        return sum(array.nbytes for array in {id(array): array for array in arrays}.values())

    def timer(calls):
        operands = jax.tree.leaves([call.args for call in calls.values()])
        seen.extend((bytes_of(operands), bytes_of([*jax.live_arrays(), *before])))
        return dict.fromkeys(calls, 1.0)

    measure(timer, made)
    operands, live = seen
    assert 0 < live - bytes_of(before) < 1.1 * operands


def test_candidates_agree_within_what_rounding_allows():
    """None is left out, in the orders of derivative that networks take."""
    made = Layer()
    gradient = jax.grad(made.loss)
    for function in (made.loss, gradient, jax.grad(lambda s: gradient(s) ** 2)):
        [found] = ops.measure(function, 1.0, timer=clock(NATIVE=1.0, APART=2.0))
        assert found.result.left_out == {}


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_measured_anew(damage, folder):
    timer = clock(NATIVE=2.0, APART=1.0)
    measure(timer)
    [path] = folder.glob("*.json")
    content = path.read_bytes()
    changed = content.replace(b"APART", b"ROWS")
    path.write_bytes({"cut": content[:40], "changed": changed, "empty": b""}[damage])
    measured._results.clear()
    assert Layer().text() == "fused: 256 rows or more"
    measure(timer)
    assert len(timer.asked) == 2
    measured._results.clear()
    assert Layer().text().startswith("apart: measured")


def test_what_another_device_or_another_source_measured_is_not_read(monkeypatch):
    measure(clock(NATIVE=2.0, APART=1.0))
    key = measured.device_key("llvm")
    assert key["kernels"] == measured._digest_of_sources()
    for changed in ("device", "kernels"):
        measured._results.clear()
        other = key | {changed: "another"}
        monkeypatch.setattr(measured, "device_key", lambda _, other=other: other)
        assert Layer().text() == "fused: 256 rows or more"


def test_what_was_measured_is_of_one_version_of_triton():
    """Whose kernels another one compiles to other machine code."""
    triton = pytest.importorskip("triton")
    assert measured.device_key("triton")["triton"] == triton.__version__


def test_nothing_is_measured_under_vmap_and_in_shard_map():
    made = Layer(64)
    timer = clock(NATIVE=1.0, APART=2.0)
    mesh = jax.make_mesh((1,), ("data",))
    rows = jax.sharding.PartitionSpec("data")

    def members(x, y):
        return jax.vmap(made)(x[None], y[None])

    def parts(x, y):
        return jax.shard_map(made, mesh=mesh, out_specs=rows, check_vma=False)(x, y)

    for function in (members, parts, jax.jit(members)):
        assert ops.measure(function, *made.args, timer=timer) == []
    assert timer.asked == []
    assert len(measure(timer, made)) == 1


def test_arguments_and_the_environment_stay_above(monkeypatch):
    assert measure(clock(), Layer(fused="never")) == []
    measure(clock(NATIVE=2.0, APART=1.0))
    assert Layer(fused="always").text() == "fused: 'always' was asked for"
    monkeypatch.setenv("EQFUSE_MEASURE", "0")
    assert Layer().text() == "fused: 256 rows or more"
    with pytest.raises(ValueError, match="EQFUSE_MEASURE is 0: nothing is measured"):
        measure(clock())
    monkeypatch.setenv("EQFUSE_MEASURE", "often")
    with pytest.raises(ValueError, match="EQFUSE_MEASURE must be 0 or 1, got 'often'"):
        Layer().text()


PROGRAM = """
from tests.ops.primitives.test_measured import Layer
from eqfuse import ops
made = Layer()
[found] = ops.measure(made, *made.args)
print(found.is_new, found.result.chosen)
"""


def test_two_processes_at_once_agree(tmp_path):
    """The first measures, the other waits and reads."""

    def run(_):
        return run_python("-c", PROGRAM, env=os.environ | {"PYTHONPATH": "."}).stdout.split()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = list(pool.map(run, range(2)))
    assert sorted(is_new for is_new, _ in results) == ["False", "True"]
    assert results[0][1] == results[1][1]


def test_who_waits_for_another_process_says_so_once(capfd):
    pytest.importorskip("fcntl")
    _kept._print_once.cache_clear()
    text, end = "", time.monotonic() + 60
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with measured.alone("llvm"):
            others = [pool.submit(measure, clock(NATIVE=2.0, APART=1.0)) for _ in range(2)]
            while "waiting" not in text and time.monotonic() < end:
                time.sleep(0.1)
                text += capfd.readouterr().err
            assert not any(other.done() for other in others)
        results = [other.result()[0].result.chosen for other in others]
    assert results == ["APART"] * 2
    text += capfd.readouterr().err
    assert text.count("eqfuse: waiting for another process, which times kernels") == 1


def test_the_clock_takes_medians_in_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    found = measuring.in_turns(calls)
    assert set(found) == {"a", "b"}
    assert all(0 < seconds < 1 for seconds in found.values())
    turns = "".join(order).replace("aa", "a").replace("bb", "b")
    assert turns.count("ab") > 1


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Measure what eqfuse measures by itself on a GPU, on this CPU, by a clock."""
    monkeypatch.setattr(measuring, "has_gpu", lambda: True)
    monkeypatch.setattr(measuring, "in_turns", clock(NATIVE=2.0, APART=1.0))


def test_training_and_calculators_measure_before_they_compile(
    as_on_a_gpu, monkeypatch, copper, tmp_path_factory, capfd
):
    """They hand over what they are about to compile, with the derivatives that it takes."""
    seen = []

    def measure(function, *args):
        seen.append(str(jax.make_jaxpr(function)(*args)).count("eqfuse_"))
        result = measured.Result("APART", 1, {"APART": 1.0}, {})
        return [measuring.Measurement(None, result, True)] * 2

    monkeypatch.setattr(measuring, "measure", measure)
    # a network that no other test has compiled
    run = train_on_copper(copper, tmp_path_factory, "steps=1", "model.num_bessel=7")
    [of_step] = seen
    assert "the kernels of 2 ops were timed on this GPU in" in capfd.readouterr().err
    atoms = ase.io.read(copper, 0)
    atoms.calc = eqfuse.Calculator(run)
    atoms.get_forces()
    _, *_, of_calculator = seen
    assert of_step > of_calculator > 0  # the gradient of a loss on forces, and forces


def test_ops_and_plans_of_a_network_on_a_gpu_are_met_by_tracing():
    """A network of backend "triton" is traced here, where none can run."""
    pytest.importorskip("triton")
    potential, graph = steps.potential_of("nequip", "triton"), steps.batch(135, 2_700)
    params = steps.shapes_of(potential, graph)

    def loss(params):
        return models.predict(potential, params, graph).forces.sum()

    def met(function):
        return lowering.ops_of(function, params)

    forces, training = met(loss), met(jax.grad(loss))
    assert [set(map(str, f)) for f in (forces, training)] == [set(map(str, forces))] * 2
    assert (set(forces.values()), set(training.values())) == ({1}, {2})
    [first, *_] = forces
    assert choice.candidates(first) == [choice.Kernels.VALUE, choice.Kernels.APART]
    plans = lowering.plans_of(jax.grad(loss), params)
    counts = [len(forms.plans(p)) for p in plans]
    assert min(counts) >= 1
    assert max(counts) > 1


def test_nothing_is_measured_by_itself_on_a_cpu_or_where_it_is_off(as_on_a_gpu, monkeypatch):
    made = Layer()
    monkeypatch.setenv("EQFUSE_MEASURE", "0")
    assert ops.measure_on_gpu(made, *made.args) == []
    monkeypatch.delenv("EQFUSE_MEASURE")
    monkeypatch.setattr(measuring, "has_gpu", lambda: False)
    assert ops.measure_on_gpu(made, *made.args) == []


def test_processes_take_the_results_of_the_first(as_on_a_gpu, monkeypatch):
    made = Layer()
    other = measured.Result("NATIVE", 0, {"NATIVE": 1.0, "APART": 3.0}, {})
    first = json.dumps([other]).encode()

    def broadcast(value):
        return np.int32(len(first)) if np.ndim(value) == 0 else np.frombuffer(first, np.uint8)

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(measuring.multihost_utils, "broadcast_one_to_all", broadcast)
    [found] = ops.measure_on_gpu(made, *made.args)
    assert found.result == other
    assert made.text() == "fused: measured, NATIVE takes 1 ms, APART 3"


def test_processes_that_differ_measure_the_plans_of_what_the_first_chose(
    as_on_a_gpu, monkeypatch, tmp_path
):
    """The first takes the last candidates, the other the first ones; each has its own disk."""
    pytest.importorskip("triton")
    edges = ops.Edges.from_arrays(np.arange(32) % 4, np.arange(32) // 8, 4)
    x, y = (e3nn.normal("2x0e+2x1o", jax.random.key(n), (n,)) for n in (4, 32))
    module = ops.TensorProductLinearGate("2x0e+2x1o", backend="triton")
    params = jax.eval_shape(lambda: module.init(jax.random.key(2), x, y, edges=edges))
    sent = []

    def function(params):
        return module.apply(params, x, y, edges=edges).array

    def results_of(process: int, broadcast):
        def winner(problem, order, timer):
            names = [name for name, _ in measuring._candidates(problem, order)]
            return measured.Result(names[process - 1], order, dict.fromkeys(names, 1.0), {})

        monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / f"of-process-{process}"))
        monkeypatch.setattr(measuring, "_winner", winner)
        monkeypatch.setattr(measuring.multihost_utils, "broadcast_one_to_all", broadcast)
        measured._results.clear()
        found = ops.measure_on_gpu(function, params)
        with measured.alone("triton"):  # as when another function is measured
            assert [measured.lookup(m.problem) for m in found] == [m.result for m in found]
        return [(m.problem, m.result) for m in found]

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    first = results_of(0, lambda value: (sent.append(value), value)[1])
    numbers = iter(sent)
    assert results_of(1, lambda value: next(numbers)) == first
    assert first[0][1].chosen == "APART"
    assert len(first) > 1


def test_kernels_of_all_candidates_are_compiled_beside_each_other(as_on_a_gpu, monkeypatch, capfd):
    """Before the first is timed, so that nothing is left to compile when its turn comes."""
    pytest.importorskip("triton")
    edges = ops.Edges.from_arrays(np.arange(32) % 4, np.arange(32) // 8, 4)
    x, y = (e3nn.normal("2x0e+2x1o", jax.random.key(n), (n,)) for n in (4, 32))
    module = ops.TensorProductLinearGate("2x0e+2x1o", backend="triton")
    params = module.init(jax.random.key(2), x, y, edges=edges)
    calls, compiled, timed = [], set(), []

    def specs(function, *args):
        return set(lowering._specs(lowering._used(function, args)))

    def compile_ahead(function, *args):
        calls.append(1)
        compiled.update(specs(function, *args))
        return []

    def winner(problem, order, timer):
        sets, _ = measuring._operands(problem, order)
        for name, run in measuring._candidates(problem, order):
            timed.append(name)
            assert specs(run, sets) <= compiled
        return measured.Result(name, order, {name: 1.0}, {})

    monkeypatch.setattr(measuring.lowering, "compile_ahead", compile_ahead)
    monkeypatch.setattr(measuring, "_winner", winner)
    ops.measure(lambda x: module.apply(params, x, y, edges=edges).array, x, timer=clock())
    assert {"VALUE", "APART", "1", "8", "0"} <= set(timed)
    assert len(calls) == 4  # of ops and of plans, those of the rule and the others
    assert "eqfuse: compiling kernels of 1 op, to time them" in capfd.readouterr().err


def test_a_calculator_of_one_of_several_processes_waits_for_no_other(as_on_a_gpu, monkeypatch):
    def broadcast(value):
        raise AssertionError("no other process is here")

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(measuring.multihost_utils, "broadcast_one_to_all", broadcast)
    made = Layer()
    program = inference.Kept(lambda *args: made(*args), None)
    assert program(*made.args).shape[0] == ROWS
    assert "measured" in made.text()


@pytest.mark.parametrize("fault", ["removed", "no lock"])
def test_a_folder_that_is_removed_or_has_no_lock_stops_nothing(fault, folder):
    timer = clock(NATIVE=2.0, APART=1.0)
    measure(timer)
    if fault == "removed":
        shutil.rmtree(folder.parent)
    else:
        [lock] = folder.glob(".*.lock")
        lock.unlink()
        lock.mkdir()
    [found] = measure(timer, Layer(600))
    assert found.result.chosen == "APART"
    assert len([*folder.glob("*.json")]) == 1


def test_info_says_what_was_measured():
    measure(clock(NATIVE=2.0, APART=1.0))
    assert "APART takes 2e+03" not in info()
    assert (
        "measured    a product, a Linear and a gate, 4 paths, 256 rows, float32: "
        "APART takes 1e+03 ms, NATIVE 2e+03" in info()
    )


@pytest.mark.parametrize("wrong", [None, 2])
def test_every_plan_of_a_kernel_on_a_gpu_is_run_and_compared(wrong, monkeypatch):
    """In Triton's interpreter; the plan of 2 edges at a time is found out where it is wrong."""
    pytest.importorskip("triton")
    edges = ops.Edges.from_arrays(np.arange(32) % 4, np.arange(32) // 8, 4)
    x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (4,))
    y = e3nn.normal("0e+1o", jax.random.key(1), (32,))
    module = ops.TensorProductLinearGate("2x0e+2x1o", backend="triton")
    params = module.init(jax.random.key(2), x, y, edges=edges)
    run_form = forms.triton.run_form

    def run(*args):
        outputs = run_form(*args)
        return [a * 1.01 for a in outputs] if wrong and args[-1] == (wrong,) else outputs

    monkeypatch.setattr(forms.triton, "run_form", run)
    monkeypatch.setattr(measuring, "MOST_SETS", 1)
    timed = []

    def timer(calls):
        timed.append(list(calls))
        return dict.fromkeys(calls, 1.0)

    [layer] = ops.measure(lambda x: module.apply(params, x, y, edges=edges).array, x, timer=timer)
    assert set(layer.result.ms) == {"VALUE", "APART"}
    apart = module.clone(fused="never")
    found = ops.measure(lambda x: apart.apply(params, x, y, edges=edges).array, x, timer=timer)
    [product] = [m for m in found if not m.problem.op.has_matrices]
    left = {} if wrong is None else {"2": "results differ by 1"}
    assert {n: t[:19] for n, t in product.result.left_out.items()} == left
    assert set(product.result.ms) | set(left) == {"1", "2", "4", "8"}
    [linear] = [m for m in found if m.problem.op.has_matrices]
    assert set(linear.result.ms) == {"32", "64", "0"}


def test_a_linear_is_computed_by_xla_where_that_was_faster(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(measuring, "MOST_SETS", 1)
    x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (32,))
    module = ops.Linear("2x0e+2x1o", backend="triton")
    params = module.init(jax.random.key(2), x)

    def calls():
        traced = jax.jit(lambda x: module.apply(params, x).array)
        return traced.lower(x).as_text().count("xla_ffi_python_cpu_callback")

    def timer(names):
        return {name: 0.5 if name == "0" else 1.0 for name in names}

    before = calls()
    expected = module.apply(params, x).array
    ops.measure(lambda x: module.apply(params, x).array, x, timer=timer)
    assert (before, calls()) == (1, 0)
    again = jax.jit(lambda x: module.apply(params, x).array)(x)
    np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-6)
