"""The signals that end a run, with a checkpoint."""

import contextlib
import functools
import os
import pty
import signal
import time

import jax
import pytest
from jax._src import xla_bridge

from eqfuse.runs.checkpoint import read_metadata
from eqfuse.runs.stopping import StopRequest, exit_code
from tests.child import ROOT, ends_here, start_python
from tests.small_runs import TINY

# The first terminal that a session opens is its own, and says when it closes.
IN_ITS_TERMINAL = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@contextlib.contextmanager
def handled(signum, handler):
    before = signal.signal(signum, handler)
    try:
        yield
        assert signal.getsignal(signum) == handler
    finally:
        signal.signal(signum, before)


@pytest.mark.parametrize(
    ("name", "stops"),
    [("SIGINT", True), ("SIGTERM", True), ("SIGHUP", False), ("SIGUSR1", False)],
)
def test_signals_are_noted_and_a_second_ctrl_c_stops_at_once(name, stops, capsys):
    """A terminal that closes may send two, which stop nothing."""
    signum = signal.Signals[name]
    given = signal.getsignal(signum)
    second = pytest.raises(KeyboardInterrupt) if stops else contextlib.nullcontext()
    before = signal.SIG_DFL if given == signal.SIG_IGN else given  # nohup ignores SIGHUP
    with handled(signum, before), StopRequest() as stop:
        os.kill(os.getpid(), signum)
        assert stop.signum == signum
        with second:
            os.kill(os.getpid(), signum)
    assert "stopping after this step" in capsys.readouterr().err


def fails(error):
    def task():
        raise error

    return task


def backend_of_cuda(monkeypatch):
    """Look for backends where JAX has CUDA's plug-in, which it leaves out, and no other."""
    for name in ("_backends", "_backend_errors"):
        monkeypatch.setattr(xla_bridge, name, {})
    monkeypatch.setattr(xla_bridge, "_default_backend", None)
    monkeypatch.setattr(xla_bridge.hardware_utils, "has_visible_nvidia_gpu", lambda: False)
    monkeypatch.setitem(xla_bridge._backend_factories, "cuda", xla_bridge._backend_factories["cpu"])
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", "cuda")
    try:
        xla_bridge.backends()
    finally:
        jax.config.update("jax_platforms", before)


@pytest.mark.parametrize("plug_in", [False, True])
def test_exit_code_of_a_device_that_is_not_here(plug_in, monkeypatch, capsys):
    """JAX raises an error without CUDA's plug-in, and an assertion with it."""
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    missing = RuntimeError("Unable to initialize backend 'cuda': no GPU\nmore")
    task = functools.partial(backend_of_cuda, monkeypatch) if plug_in else fails(missing)
    assert exit_code(task) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: JAX_PLATFORMS=cuda names a device that is not here; unset it")
    kind = AssertionError if plug_in else RuntimeError
    with pytest.raises(kind, match="another"):
        exit_code(fails(kind("another")))


def test_nohup_is_heeded():
    with handled(signal.SIGHUP, signal.SIG_IGN), StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signum is None


@pytest.mark.slow
def test_a_run_whose_terminal_closes_writes_a_checkpoint(water, tmp_path):
    """What it prints then goes nowhere, which is no reason to fail."""
    run = tmp_path / "run"
    settings = [f"data={water}", *TINY, f"run={run}", "epochs=1000000"]
    settings += ["training.checkpoint_seconds=1e6"]  # none but the first and the last
    ours, theirs = pty.openpty()
    process = start_python(
        *("-c", IN_ITS_TERMINAL, ROOT / "train.py", *settings),
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        start_new_session=True,
    )
    os.close(theirs)
    with ends_here(process):
        text, metrics = b"", run / "metrics.csv"
        while process.poll() is None and not (b"ms/step" in text and metrics.exists()):
            text += os.read(ours, 10_000)
        assert process.poll() is None, text.decode()
        assert read_metadata(run, which="last")["step"] == 0
        time.sleep(0.2)
        os.close(ours)
        assert process.wait(timeout=60) == 128 + signal.SIGHUP
    assert read_metadata(run, which="last")["step"] > 0
