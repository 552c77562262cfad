"""What every test runs under."""

import functools
import gc
import os
import sys
from pathlib import Path

from tests.programs import folder_of_programs, known_to_xla

# Where there is no GPU, JAX takes its CUDA plug-in, which compiles for one, only if told to use the
# CPU. Before JAX is imported, and in the environment, for the programs that tests run.
if not (any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


# LLVM's passes over XLA's programs are a third of the time of the default tier, and the emitters of
# fusions a third of the rest; its answers depend on neither. The slow tier compiles as users do.
# Processes of xdist inherit the choice.
if "--run-slow" not in sys.argv and "PYTEST_XDIST_WORKER" not in os.environ:
    flags = ["--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"]
    os.environ.setdefault("XLA_FLAGS", " ".join(filter(known_to_xla, flags)))

# Programs that tests, the commands that they run and later runs of the tests have in common are
# compiled once.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder_of_programs())
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import ase.build
import ase.io
import jax
import numpy as np
import pytest
from e3nn_jax._src import activation

from eqfuse import plots
from tests.small_runs import labelled, train_on_copper, write_displaced

# Python looks through all that JAX has ever traced, again and again: a seventh of the time.
gc.set_threshold(100_000, 50, 100)

MEMORY = 2 << 30
"""Bytes of a process above which it forgets, after each file, what was compiled."""

# Reduced precision of matrix products would hide, or look like, an error of ours.
jax.config.update("jax_default_matmul_precision", "highest")


# e3nn-jax evaluates a million points for each activation of each trace.
_normalize = activation.normalize_function
_normalized = functools.cache(lambda phi, x64: _normalize(phi))
activation.normalize_function = lambda phi: _normalized(phi, jax.config.jax_enable_x64)


def pytest_addoption(parser):
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")


def _runs_slow(config) -> bool:
    return config.getoption("--run-slow") or "slow" in config.getoption("-m")


def pytest_collection_modifyitems(config, items):
    """Leave out the slow tests, but not those that are named: `pytest FILE::test`."""
    if _runs_slow(config):
        return
    paths = (argument.partition("::") for argument in config.args)
    named = tuple((Path(file).resolve(), test) for file, _, test in paths if test)

    def is_named(item):
        _, _, name = item.nodeid.partition("::")
        return any(item.path == file and name.startswith(test) for file, test in named)

    slow = [i for i in items if i.get_closest_marker("slow") and not is_named(i)]
    config.hook.pytest_deselected(items=slow)
    left_out = set(slow)
    items[:] = [i for i in items if i not in left_out]


def pytest_terminal_summary(terminalreporter, config):
    """Print how to run what was left out."""
    if not _runs_slow(config):
        terminalreporter.write_line("Slow tests run with --run-slow, or by name: FILE::test")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each process consecutive files, whose tests share compiled programs.

    A process that is done takes half of what another one has left.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.option.dist == "load" else None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of published data sets beside the repository; skips where it is absent."""
    default = Path(__file__).parents[1] / ".." / "shared" / "data"
    path = Path(os.environ.get("EQFUSE_TEST_DATA", default)).resolve()
    if not path.is_dir():
        pytest.skip(f"published data sets are not at {path}; set EQFUSE_TEST_DATA to their folder")
    return path


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(0)


@pytest.fixture
def x64():
    """float64, which JAX turns into float32 by default."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def _forget_what_was_compiled():
    """Thousands of small programs of JAX take gigabytes."""
    yield
    resident = Path("/proc/self/statm")  # of Linux; elsewhere each file forgets
    if not resident.exists() or int(resident.read_text().split()[1]) * 4096 > MEMORY:
        jax.clear_caches()


PICTURES = {
    name: getattr(plots, name)
    for name in ("learning_curves", "parity", "spread", "dynamics", "walks", "curves")
}


@pytest.fixture(scope="module", autouse=True)
def _no_pictures(request):
    """Leave pictures to modules and tests that look at them: they take half of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in () if getattr(request.module, "PICTURES", False) else PICTURES:
            patch.setattr(plots, name, lambda *_, **__: None)
        yield


@pytest.fixture
def pictures(monkeypatch):
    """Draw pictures in a module without `PICTURES`."""
    for name, draw in PICTURES.items():
        monkeypatch.setattr(plots, name, draw)


@pytest.fixture
def command(capsys):
    """Return a function of the words of `eqfuse`, which runs it to a code and returns its output.

    What it returns has `out` and `err`, of this command alone.
    """
    from eqfuse import cli

    def run(*words, code: int = 0):
        capsys.readouterr()
        assert cli.main([*map(str, words)]) == code, words
        return capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """Return `untrained_run` in a folder of its own, made once for each set of arguments."""
    from tests.lammps.untrained import untrained_run

    def make(*words, **options):
        return untrained_run(tmp_path_factory.mktemp("untrained"), *words, **options)

    return functools.cache(make)


@pytest.fixture(scope="session")
def water(tmp_path_factory):
    """Path of 20 distorted water molecules."""
    path = tmp_path_factory.mktemp("data") / "water.xyz"
    return write_displaced(path, ase.build.molecule("H2O"), 20, seed=0)


@pytest.fixture(scope="session")
def copper(tmp_path_factory):
    """Path of 12 distorted periodic cells of copper with 4 atoms and stress."""
    rng = np.random.default_rng(1)
    frames = []
    for _ in range(12):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell.array * (1 + rng.normal(scale=0.02)), scale_atoms=True)
        atoms.positions += rng.normal(scale=0.05, size=(4, 3))
        frames.append(labelled(atoms, ("energy", "forces", "stress")))
    path = tmp_path_factory.mktemp("data") / "copper.xyz"
    ase.io.write(path, frames, format="extxyz")
    return path


@pytest.fixture(scope="session")
def trained(copper, tmp_path_factory):
    """Return the folder of a run on copper, in float64, that resists compression."""
    # in so few steps Adam comes further
    more = ["dtype=float64", "epochs=60", "training.optimizer=adam"]
    return train_on_copper(copper, tmp_path_factory, *more)
