"""What works on Windows, of which Linux here is made to look: nothing ran there."""

import ase.io
import numpy as np
import pytest

import eqfuse
from tests.child import ROOT, run_python
from tests.lammps.untrained import untrained_run
from tests.small_runs import copper_cell

LIKE_WINDOWS = """
import importlib, multiprocessing, os, pathlib, signal, sys
import ase.build, ase.io, flax, h5py, jax, llvmlite.binding, matplotlib.pyplot, optax, scipy, vesin
import concurrent.futures.process, multiprocessing.connection, rich.console  # which see the system

for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty"):
    sys.modules[name] = None
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGPIPE", "SIGALRM"):
    delattr(signal, name)
for name in ("geteuid", "getuid", "fork", "sched_getaffinity", "sysconf", "O_DIRECTORY"):
    delattr(os, name)
sys.platform = "win32"
"""
MODULES = """
count = 0
for file in sorted(pathlib.Path("eqfuse").rglob("*.py")):
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    if file.name not in ("__main__.py", "lammps_pair.py"):
        try:
            importlib.import_module(name)
            count += 1
        except ModuleNotFoundError as error:
            if error.name not in ("equinox", "haiku", "jax_md", "torch", "torch_sim"):
                raise
print(count)
"""
FORCES = """
import warnings
import eqfuse

atoms = ase.io.read(sys.argv[2])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.filterwarnings("ignore", "Setting the shape on a NumPy array")  # of ASE 3.29
    atoms.calc = eqfuse.Calculator(sys.argv[1])
    forces = atoms.get_forces()
print(atoms.calc.backend, *[str(w.message) for w in caught], sep="\\n")
ase.io.write(sys.argv[2] + ".forces.extxyz", atoms)
"""
COMMAND = "from eqfuse.cli import main\nsys.exit(main(sys.argv[1:]))\n"


@pytest.fixture
def windows(tmp_path, monkeypatch):
    """Return a function that runs statements on what looks like Windows."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("EQFUSE_BACKEND", raising=False)
    return lambda code, *words, **how: run_python("-c", LIKE_WINDOWS + code, *words, **how)


def test_forces_on_windows(tmp_path, windows):
    """Ops run by XLA, which is said once."""
    run, file = untrained_run(tmp_path), tmp_path / "copper.extxyz"
    ase.io.write(file, copper_cell())
    backend, *warned = windows(FORCES, run, file).stdout.splitlines()
    assert backend == "xla"
    assert warned == [
        "ops run on backend 'xla', not 'llvm': it runs on Linux and macOS, not on win32"
    ]
    atoms = ase.io.read(file)
    atoms.calc = eqfuse.Calculator(run, backend="e3nn")
    found = ase.io.read(f"{file}.forces.extxyz").get_forces()
    np.testing.assert_allclose(found, atoms.get_forces(), rtol=0, atol=1e-6)


def test_modules_import_on_windows_and_training_is_refused(tmp_path, windows):
    """Before anything is read or written."""
    words = "train", "data=extxyz", f"data.path={tmp_path / 'none.xyz'}", f"run={tmp_path / 'run'}"
    done = windows(MODULES + COMMAND, *words, check=False, cwd=ROOT)
    assert done.returncode == 2, done.stderr
    assert int(done.stdout) > 150
    assert done.stderr == (
        "error: networks are trained and converted on Linux and macOS; on Windows do so in WSL, "
        "and compute with the network here\n"
    )
    assert not (tmp_path / "run").exists()
