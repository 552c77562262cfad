"""The benchmark on a GPU, run on the CPU: what it refuses to time, and what it survives."""

import json
import sys
import time

import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.bench import command as program
from eqfuse.bench import measure, op_times, parity, peers, plan, steps
from eqfuse.bench.errors import first_line, spoiled
from eqfuse.bench.problem import ORDERS
from eqfuse.bench.problems import PROBLEMS
from eqfuse.bench.record import ParityError
from eqfuse.bench.tables import Tables
from eqfuse.bench.worker import Job, Worker
from tests.bench import worker_program

TINY = (4, 9)


class InProcess:
    """Runs jobs here, so that what is patched here counts."""

    def run(self, job, seconds):
        yield from (result for result, _ in measure.results(job.function, job.arguments))

    def stop(self):
        pass


def request(name="tetris-1", **fields):
    defaults = {"size": TINY, "dtype": "float32", "backend": "llvm", "peers": {}, "seconds": 0.01}
    return op_times.Request(name, **(defaults | {"machine": {}} | fields))


def wrong(monkeypatch, by: float):
    """Make what eqfuse computes wrong by a factor; the definition stays."""
    right = ops.graph_tensor_product

    def product(*args, backend, **options):
        out = right(*args, backend=backend, **options)
        return out if backend == "e3nn" else out * by

    monkeypatch.setattr(ops, "graph_tensor_product", product)


def run_of(tmp_path, minutes=5.0) -> program.Run:
    run = program.Run(InProcess(), tmp_path / "out.json", {"dry_run": True}, minutes)
    run._content["environment"] = {"machine": {}}
    return run


@pytest.fixture
def tetris(monkeypatch):
    """Return a plan of one op, small enough for a test: its parity, then its times."""
    label = {"group": "kernels", "case": "tetris-1", "dtype": "float32", "size": TINY}
    fields = {"name": "tetris-1", "size": TINY, "dtype": "float32", "backend": "llvm"}
    return Job("kernels", fields | {"peers": {}, "seconds": 0.01}, label, cost_s=1)


@pytest.mark.slow
def test_every_order_is_timed_where_parity_is_green(tetris, tmp_path, capsys):
    content = run_of(tmp_path).all([tetris])
    checked, *timed = content["results"]
    assert checked["group"] == "parity"
    assert set(checked["orders"]) == set(ORDERS)
    assert [row["order"] for row in timed] == list(ORDERS)
    for row in timed:
        assert row["checked_against"] == "e3nn-jax"
        assert row["bytes"] > 0 < row["operations"]
        for side in ("eqfuse", "e3nn-jax"):
            assert row["sides"][side]["ms"].median > 0
        assert row["sides"]["eqfuse"]["difference"] < 1e-5
    assert "| tetris-1 | 4 / 9 | double | float32 | e3nn-jax |" in capsys.readouterr().out


def test_nothing_is_timed_where_parity_is_red(tetris, tmp_path, monkeypatch, capsys):
    wrong(monkeypatch, 1.00001)
    checked, timed = run_of(tmp_path).all([tetris])["results"]
    assert "times what is allowed" in checked["error"]
    assert timed["error"].startswith("not timed: forward in float32 differs by")
    assert "ms" not in json.dumps(json.loads((tmp_path / "out.json").read_text())["results"])


def test_nothing_is_timed_where_results_differ_in_the_size_itself(monkeypatch):
    wrong(monkeypatch, 1.001)
    for row in op_times.measure(request()):
        assert row["error"].startswith("eqfuse: results differ by 1.0e-03 from e3nn-jax")
        assert "sides" not in row


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_wrong_results_are_found_in_other_dtypes(dtype, monkeypatch):
    parity.check("tetris-1", dtype, "llvm", TINY)
    wrong(monkeypatch, 1.02)
    with pytest.raises(ParityError, match="times what is allowed"):
        parity.check("tetris-1", dtype, "llvm", TINY)


def test_results_that_differ_from_run_to_run_are_found(monkeypatch):
    """They are said, and are no error: on a GPU XLA's sums differ."""
    assert all(o["repeatable"] for o in parity.check("tetris-1", "float32", "llvm", TINY).values())
    right, runs = ops.graph_tensor_product, iter(range(100))

    def product(*args, backend, **options):
        out = right(*args, backend=backend, **options)
        if backend == "e3nn":
            return out
        shape, fixed = jax.ShapeDtypeStruct((), out.dtype), jax.lax.stop_gradient(out.array)
        change = jax.pure_callback(lambda _: np.float32(1e-7 * (next(runs) % 2)), shape, fixed)
        return e3nn.IrrepsArray(out.irreps, out.array + change)

    monkeypatch.setattr(ops, "graph_tensor_product", product)
    orders = parity.check("tetris-1", "float32", "llvm", TINY)
    assert not orders["forward"]["repeatable"]
    printed = []
    label = plan.parity("tetris-1", "float32", "llvm", True).label
    Tables(printed.append).add(label | {"orders": orders})
    assert ", not repeatable |" in printed[-1]


def test_a_case_that_is_wrong_in_one_size_is_red(tetris, tmp_path, monkeypatch):
    """Whatever a later comparison in another size says."""
    checks = iter([ParityError("wrong"), None])

    def check(*arguments):
        if error := next(checks):
            raise error
        return {}

    monkeypatch.setattr(parity, "check", check)
    small, large = (
        plan.parity("tetris-1", "float32", "llvm", False, size) for size in (TINY, (7, 9))
    )
    *_, timed = run_of(tmp_path).all([small, large, tetris])["results"]
    assert timed["error"] == "not timed: wrong"


def test_a_peer_that_is_missing_or_wrong_or_fails_is_a_result(monkeypatch):
    for name in ("cuequivariance_jax", "openequivariance"):
        monkeypatch.setitem(sys.modules, name, None)

    def lies(problem, dtype):
        return peers.Side(lambda *a: 2 * problem.function("e3nn")(*a))

    def fails(problem, dtype):
        def function(floats, integers):
            raise MemoryError("no room\nat all")

        return peers.Side(function)

    monkeypatch.setitem(peers.PEERS, "liar", lies)
    monkeypatch.setitem(peers.PEERS, "failure", fails)
    names = ("cuequivariance", "openequivariance", "liar", "failure")
    for row in op_times.measure(request(peers={name: {} for name in names})):
        sides = row["sides"]
        assert sides["cuequivariance"]["error"].startswith("not installed: ")
        assert sides["openequivariance"]["error"] == "it has no such product"  # without weights
        assert sides["liar"] == {"error": "results differ by 1.0e+00 from e3nn-jax"}
        assert sides["failure"] == {"error": "MemoryError: no room"}
        assert {"eqfuse", "e3nn-jax"} == {name for name in sides if "ms" in sides[name]}


def test_times_go_on_without_the_reference(monkeypatch):
    right = ops.graph_tensor_product

    def product(*args, backend, **options):
        if backend == "e3nn" and not isinstance(args[0].array, jax.ShapeDtypeStruct):
            raise MemoryError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16 GB.")
        return right(*args, backend=backend, **options)

    problem = PROBLEMS["tetris-1"](*TINY)
    monkeypatch.setattr(type(problem), "results", lambda *_: ())
    shapes = problem.arguments("double", "float32")
    monkeypatch.setattr(type(problem), "arguments", lambda *_: shapes)
    monkeypatch.setattr(ops, "graph_tensor_product", product)
    for row in op_times.measure(request()):
        assert row["sides"]["e3nn-jax"]["error"].startswith("out of memory: RESOURCE_EXHAUSTED")
        assert row["checked_against"] == "itself in a reduced size"
        assert row["sides"]["eqfuse"]["ratio"].median == 1


def test_a_step_is_timed_only_where_loss_and_gradient_agree(monkeypatch):
    def shapes(model, nodes, edges):
        def functions(backend):
            def step(params, state, graph, *labels):
                off = 0.0 if backend == "e3nn" or model == "right" else 1e-3
                loss = (params**2).sum() + off
                return params, (State(2 * params + off),), loss

            return step, (params, (), {}, *labels)

        params, *labels = (jax.ShapeDtypeStruct((n,), "float32") for n in (3, 5, 7))
        return functions, functions("e3nn")[1]

    class State(tuple):
        mu = property(lambda self: self[0])

        def __new__(cls, mu):
            return tuple.__new__(cls, (mu,))

    jax.tree_util.register_pytree_node(State, lambda s: ((s[0],), None), lambda _, c: State(*c))
    monkeypatch.setattr(steps, "shapes", shapes)
    size = (20, 40)
    [right] = steps.measure(steps.Request("right", (size,), "llvm", 0.01))
    assert {"ms", "ratio", "compile_s", "scratch_bytes"} <= set(right["sides"]["e3nn-jax"])
    [row] = steps.measure(steps.Request("wrong", (size,), "llvm", 0.01))
    assert row["error"].startswith("eqfuse: results differ by")
    assert "sides" not in row


def test_batches_have_as_many_edges_as_asked_for_within_the_cutoff():
    graph = steps.batch(135, 2700)
    lengths = np.linalg.norm(graph.vectors, axis=-1)
    assert graph.edges.num_edges == 2700
    assert 1 < lengths.min() <= lengths.max() < steps.CUTOFF
    pairs = set(zip(graph.edges.senders.tolist(), graph.edges.receivers.tolist(), strict=True))
    assert len(pairs) == 2700
    assert pairs == {(j, i) for i, j in pairs}
    assert (
        graph.graph_index[graph.edges.senders] == graph.graph_index[graph.edges.receivers]
    ).all()
    assert (np.diff(graph.edges.receivers) >= 0).all()


def test_a_batch_of_more_edges_than_pairs_is_refused():
    with pytest.raises(ValueError, match="2 atoms have 1 pairs, fewer than 2 bonds"):
        steps.batch(10, 20)


def test_the_minutes_are_kept(tetris, tmp_path, capsys):
    content = run_of(tmp_path, minutes=0).all([tetris])
    [row] = content["results"]
    assert row["skipped"] == "0 s were left"
    assert "| tetris-1 | 4 / 9 |  | float32 | skipped: 0 s were left |" in capsys.readouterr().out


def test_a_process_that_dies_or_hangs_is_replaced():
    worker = Worker(worker_program.serve, {"WHAT": "42"})
    try:
        [first] = worker.run(Job("answer", {}, {}, 0), 20)
        [again] = worker.run(Job("spoil", {}, {}, 0), 20)
        assert first == again == {"answer": "42", "process": first["process"]}
        [died] = worker.run(Job("die", {}, {}, 0), 20)
        assert died == {"error": "the process died with exit status 3"}
        start = time.monotonic()
        before, hung = worker.run(Job("hang", {}, {}, 0), 0.5)
        assert before == {"before": "it hangs"}
        assert hung["error"].startswith("stopped after")
        [after] = worker.run(Job("answer", {}, {}, 0), 20)
        [fresh] = worker.run(Job("answer", {}, {}, 0, fresh=True), 20)
        assert len({first["process"], after["process"], fresh["process"]}) == 3
        assert time.monotonic() - start < 20
    finally:
        worker.stop()


@pytest.mark.slow
def test_the_command_writes_all_of_its_results(tmp_path, capsys):
    out = tmp_path / "results.json"
    arguments = ["--dry-run", "--only", "parity tetris-1 float32", "--out", str(out)]
    program.main([*arguments, "--commit", "abc"])
    content = json.loads(out.read_text())
    assert content["dry_run"]
    assert content["finished"]
    assert "no number in it says anything about speed" in content["note"]
    assert content["environment"]["commit"] == "abc"
    assert {"device", "versions", "date", "machine"} <= set(content["environment"])
    [row] = content["results"]
    assert row["group"] == "parity"
    assert set(row["orders"]) == set(ORDERS)
    assert "a dry run on the CPU" in capsys.readouterr().out


def test_the_command_fails_where_a_result_is_an_error(tmp_path, monkeypatch, capsys):
    wrong(monkeypatch, 1.001)
    monkeypatch.setattr(program, "Worker", lambda *_: InProcess())
    monkeypatch.setattr(
        program.plan, "jobs", lambda *_: [plan.parity("tetris-1", "float32", "llvm", True)]
    )
    monkeypatch.setattr(measure, "FUNCTIONS", measure.FUNCTIONS | {"describe": lambda **_: [{}]})
    with pytest.raises(SystemExit, match=r'error: \{"group": "parity", "case": "tetris-1"'):
        program.main(["--dry-run", "--out", str(tmp_path / "out.json")])


def test_what_is_asked_for():
    jobs = program.jobs_of(program.options_of(["--peers", "--minutes", "3"]))
    groups = [job.label["group"] for job in jobs]
    assert groups.index("parity") < groups.index("kernels") < groups.index("steps")
    first = groups.index("compile")  # before all kernels: two cases, whole
    recorded = [job.recorded for job in jobs]
    assert recorded.index(True) == 5 == recorded.count(False)  # first without command buffers
    main = [job.label["case"] for job in jobs[:first] if job.label["group"] == "parity"]
    assert main == ["nequip-64-l2", "mace-large"] * 2
    sizes = {job.arguments["size"] for job in jobs if job.function == "parity"}
    assert sizes == {plan.REDUCED, plan.MANY}
    assert not any(job.arguments["cached"] for job in jobs if job.function == "steps")
    kept = program.jobs_of(program.options_of(["--cache", "kernels"]))
    assert all(job.arguments["cached"] for job in kept if job.function == "steps")
    assert {job.label["dtype"] for job in jobs} == {"float32", "float64", "bfloat16"}
    assert all(job.arguments["peers"] == {} for job in jobs if job.function == "kernels")
    with pytest.raises(SystemExit, match="nothing holds --only 'nothing such'"):
        program.main(["--only", "nothing such"])


def test_errors_in_one_line():
    error = jax.errors.JaxRuntimeError("INTERNAL: illegal memory access\nmore")
    assert first_line(error).endswith("RuntimeError: INTERNAL: illegal memory access")
    assert spoiled({"sides": {"eqfuse": {"error": first_line(error)}}})
    full = first_line(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    assert full == "out of memory: RESOURCE_EXHAUSTED: Out of memory"
    assert not spoiled({"error": full})


def test_results_that_stopped_early_fit_into_the_tables():
    for job in [*plan.jobs("triton", {}, 1.0, dry=False), *plan.ahead("sm_90")]:
        printed = []
        Tables(printed.append).add(job.label | {"skipped": "0 s were left"})
        empty, header, rule, line = printed
        assert empty == ""
        assert header.count("|") == rule.count("|") == line.count("|")
        assert "skipped: 0 s were left" in line
