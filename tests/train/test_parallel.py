"""Data parallel runs do what runs on one device do, within rounding."""

import signal
import socket
import subprocess
import time

import jax
import numpy as np
import pytest

from eqfuse.data import Batcher
from eqfuse.data.store import StoredSamples, samples_of, store_structures
from eqfuse.train import load_run
from eqfuse.train.main import main
from tests.child import ROOT, start_python
from tests.small_runs import TINY, rewritten, rows_of

TWO = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def processes(count, arguments, folders=(None, None)):
    """Start each in its folder, and tell it where the others are, as a launcher would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
    given = ROOT / "train.py", "devices=distributed", *arguments
    return [
        start_python(*given, variables=common | {"JAX_PROCESS_ID": str(k)}, cwd=folders[k], **PIPES)
        for k in range(count)
    ]


def ended(started) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    try:
        outputs = [process.communicate(timeout=200) for process in started]
        return [(p.returncode, *o) for p, o in zip(started, outputs, strict=True)]
    finally:
        for process in started:
            process.kill()


def on_two_devices(arguments) -> str:
    """Train in a process with two devices; return what it prints."""
    given = ROOT / "train.py", *arguments, "devices=all"
    [(code, out, error)] = ended([start_python(*given, variables=TWO, **PIPES)])
    assert code == 0, error[-3000:]
    return out


@pytest.fixture
def settings(water):
    # 5 in each batch: a device has 3 of them and the other 2; the last batch has 1.
    more = ["data.batch_size=5", "data.train=16", "dtype=float64", "training.schedule=constant"]
    return [f"data={water}", *TINY, *more]


def assert_alike(first, second):
    """Assert the same metrics and parameters but for rounding in float64."""
    rows = [rows_of(folder) for folder in (first, second)]
    assert len(rows[0]) == len(rows[1]) > 1
    for a, b in zip(*rows, strict=True):
        for name in a.keys() - {"ms_per_step", "elapsed_s"}:
            assert float(a[name]) == pytest.approx(float(b[name]), rel=1e-8), name
    with jax.enable_x64(True):
        params = [load_run(folder, which="last")[1] for folder in (first, second)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), *params)


@pytest.fixture(scope="module")
def partly_labelled(copper, tmp_path_factory):
    """Return a file of frames of which some lack a label, so that a device may have none of it."""
    lacking = {1: "energy", 2: "forces", 5: "stress", 8: "forces"}

    def change(number, atoms):
        atoms.calc.results.pop(lacking.get(number), None)

    return rewritten(copper, tmp_path_factory.mktemp("data") / "partly.xyz", change)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "backend"),
    [("nequip", "llvm"), ("nequip", "e3nn"), ("mace", "xla"), ("allegro", "llvm")],
)
def test_gradients_are_those_of_one_device(partly_labelled, tmp_path, model, backend):
    """In each step of a run, for stress too; the last batch leaves a device with padding only."""
    given = [f"model={model}", f"backend={backend}", f"data={partly_labelled}", "cutoff=3.6"]
    given += ["channels=2", "layers=1", "lmax=1", "data.val=3", "data.batch_size=4", "epochs=2"]
    given += ["dtype=float64", "training.stress_weight=1", "training.second_stage=null"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*given, f"run={one}"]) == 0
    on_two_devices([*given, f"run={two}"])
    assert_alike(one, two)


@pytest.mark.slow
def test_two_devices_and_two_processes_train_like_one(settings, tmp_path, monkeypatch):
    """The processes store the frames, at once."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "cache"))
    one, devices, several = (tmp_path / name for name in ("one", "devices", "processes"))
    assert main([*settings, "epochs=3", f"run={one}"]) == 0
    assert "devices    2" in on_two_devices([*settings, "epochs=2", f"run={devices}"])
    # It goes on with one device, and the processes with two of the other's.
    assert main([f"resume={devices}", "devices=1", "epochs=3"]) == 0
    assert_alike(one, devices)
    first = [*settings, "epochs=2", "data.store=on", f"run={several}"]
    for arguments in (first, [f"resume={several}", "epochs=3"]):
        main_process, other = ended(processes(2, arguments))
        assert (main_process[0], other[0]) == (0, 0), (main_process[2], other[2])
        assert "all steps done" in main_process[1]
        assert "epoch" not in other[1], "only the main process prints"
    assert_alike(one, several)
    assert len([*(tmp_path / "cache" / "store").glob("[!.]*")]) == 1, "written once"


def test_each_process_reads_its_part_of_stored_frames(water, tmp_path, monkeypatch):
    samples = samples_of(store_structures([water], folder=tmp_path), 3.0, (1, 8), {1: 0.0, 8: 0.0})
    item, read = StoredSamples.item, ([], [])
    batchers = [Batcher(samples, 5, parts=2, own=[part]) for part in (0, 1)]
    for batcher, numbers in zip(batchers, read, strict=True):

        def noted(self, k, numbers=numbers):
            numbers.append(int(self.indices[k]))
            return item(self, k)

        monkeypatch.setattr(StoredSamples, "item", noted)
        assert len([*batcher.batches(epoch=3)]) == 4
    assert sorted(read[0] + read[1]) == list(range(20))
    assert abs(len(read[0]) - len(read[1])) <= 5, "about half of each batch"


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_at_the_same_step(settings, tmp_path):
    folders = [tmp_path / "main", tmp_path / "other"]
    for path in folders:
        path.mkdir()
    started = processes(2, [*settings, "epochs=1000000", "run=run"], folders)
    folder = folders[0] / "run"
    deadline = time.monotonic() + 120
    while not (folder / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    started[1].send_signal(signal.SIGTERM)
    results = ended(started)
    assert [code for code, _, _ in results] == [128 + signal.SIGTERM] * 2
    messages = {error.splitlines()[-1] for _, _, error in results}
    assert len(messages) == 1
    step = load_run(folder, which="last")[2]["step"]
    assert f"step {step};" in messages.pop()
    assert list(folders[1].iterdir()) == [], "only the main process writes"


@pytest.mark.slow
def test_parallel_failure_of_the_main_process_ends_the_others(settings, tmp_path):
    (tmp_path / "run" / "other").mkdir(parents=True)
    begun = time.monotonic()
    results = ended(processes(2, [*settings, f"run={tmp_path / 'run'}"]))
    assert time.monotonic() - begun < 60
    assert [code for code, _, _ in results] == [2, 1]
    assert "exists already" in results[0][2]
    assert "process 0 failed" in results[1][2]
