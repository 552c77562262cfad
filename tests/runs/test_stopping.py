"""The signals that end a run, with a checkpoint."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from jax._src import xla_bridge

from eqfuse.runs.checkpoint import read_metadata
from eqfuse.runs.stopping import StopRequest, exit_code
from tests.small_runs import TINY

ROOT = Path(__file__).parents[2]
# The first terminal that a session opens is its own, and says when it closes.
IN_ITS_TERMINAL = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("name", "stops"),
    [("SIGINT", True), ("SIGTERM", True), ("SIGHUP", False), ("SIGUSR1", False)],
)
def test_signals_are_noted_and_a_second_ctrl_c_stops_at_once(name, stops, capsys):
    """A terminal that closes may send two, which stop nothing."""
    signum = signal.Signals[name]
    given = signal.getsignal(signum)
    before = signal.SIG_DFL if given == signal.SIG_IGN else given  # nohup ignores SIGHUP
    signal.signal(signum, before)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signum)
            assert stop.signum == signum
            if stops:
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), signum)
            else:
                os.kill(os.getpid(), signum)
        assert signal.getsignal(signum) == before
    finally:
        signal.signal(signum, given)
    assert "stopping after this step" in capsys.readouterr().err


def test_exit_code_of_a_device_that_is_not_here(monkeypatch, capsys):
    def task():
        raise RuntimeError("Unable to initialize backend 'cuda': no GPU\nmore")

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert exit_code(task) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: JAX_PLATFORMS=cuda names a device that is not here; unset it")
    with pytest.raises(RuntimeError, match="another"):
        exit_code(lambda: (_ for _ in ()).throw(RuntimeError("another")))


def test_exit_code_of_a_plug_in_of_cuda_without_a_gpu(monkeypatch, capsys):
    """JAX leaves the platform out, and asserts that there is another."""
    for name in ("_backends", "_backend_errors"):
        monkeypatch.setattr(xla_bridge, name, {})
    monkeypatch.setattr(xla_bridge, "_default_backend", None)
    monkeypatch.setattr(xla_bridge.hardware_utils, "has_visible_nvidia_gpu", lambda: False)
    monkeypatch.setitem(xla_bridge._backend_factories, "cuda", xla_bridge._backend_factories["cpu"])
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", "cuda")
    try:
        assert exit_code(xla_bridge.backends) == 2
    finally:
        jax.config.update("jax_platforms", before)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: JAX_PLATFORMS=cuda names a device that is not here; unset it")
    with pytest.raises(AssertionError, match="another"):
        exit_code(lambda: (_ for _ in ()).throw(AssertionError("another")))


def test_nohup_is_heeded():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signum is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_run_whose_terminal_closes_writes_a_checkpoint(water, tmp_path):
    """What it prints then goes nowhere, which is no reason to fail."""
    settings = [f"data={water}", *TINY, f"run={tmp_path / 'run'}", "epochs=1000000"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_ITS_TERMINAL, ROOT / "train.py", *settings],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        metrics = tmp_path / "run" / "metrics.csv"
        text = b""
        while b"ms/step" not in text and process.poll() is None:
            text += os.read(ours, 10_000)
        while not metrics.exists() and process.poll() is None:
            os.read(ours, 10_000)
        assert process.poll() is None, text.decode()
        assert read_metadata(tmp_path / "run", which="last")["step"] == 0
        time.sleep(0.2)
        os.close(ours)
        assert process.wait(timeout=60) == 128 + signal.SIGHUP
    finally:
        process.kill()
        process.wait()
    assert read_metadata(tmp_path / "run", which="last")["step"] > 0
