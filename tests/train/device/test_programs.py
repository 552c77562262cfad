"""Compiled programs are found by later runs, and nothing that is wrong with them stops one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Prints the folder, how many programs JAX found there, and the bits of a result.
PROGRAM = """
import jax, jax.monitoring
import e3nn_jax as e3nn
from eqfuse import ops
from eqfuse.train.device.process import keep_programs

found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name.rpartition("/")[2]))
folder = keep_programs()

@jax.jit
def product_of_a_test(x, y):
    return ops.tensor_product(x, y, backend="llvm").array.sum(0)

x = e3nn.normal("4x0e+4x1o", jax.random.key(0), (50,))
bits = product_of_a_test(x, e3nn.normal("1o", jax.random.key(1), (50,))).tobytes().hex()
print(folder, found.count("cache_hits"), bits, sep="\\n")
"""


def completed(code: str, folder: Path, **variables) -> subprocess.CompletedProcess:
    """Run a program in a process that keeps what it compiles in `folder`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment |= {
        "EQFUSE_CACHE_DIR": str(folder),
        "JAX_PLATFORMS": "cpu",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def run(folder: Path, **variables) -> tuple[str, int, str]:
    done = completed(PROGRAM, folder, **variables)
    assert "Error" not in done.stderr
    assert "Warning" not in done.stderr
    programs, hits, bits = done.stdout.splitlines()
    return programs, int(hits), bits


@pytest.mark.slow
def test_later_runs_find_them_unless_they_are_damaged_or_old(tmp_path):
    folder, hits, bits = run(tmp_path)
    assert hits == 0
    assert Path(folder).parent == tmp_path / "programs"
    [entry] = Path(folder).glob("jit_product_of_a_test-*-cache")
    again, all_hits, bits_again = run(tmp_path)
    assert all_hits > 0
    assert (again, bits_again) == (folder, bits)
    entry.write_bytes(entry.read_bytes()[:100])  # as a full disk leaves it
    assert completed(PROGRAM, tmp_path).stdout.splitlines()[-1] == bits  # compiled, with a warning
    long_ago = entry.stat().st_mtime - 31 * 24 * 3600
    os.utime(entry, (long_ago, long_ago))
    assert run(tmp_path, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1000")[1] == all_hits - 1
    assert not entry.exists()


@pytest.mark.slow
def test_what_jax_was_told_stays(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    assert run(tmp_path / "cache", JAX_COMPILATION_CACHE_DIR=str(elsewhere))[0] == "None"
    assert list(elsewhere.glob("jit_product_of_a_test-*"))
    assert run(tmp_path / "cache", JAX_ENABLE_COMPILATION_CACHE="false")[0] == "None"
    assert not (tmp_path / "cache" / "programs").exists()


# Prints what two programs of one shape give, whose entries another user could exchange.
TWO = """
import os
os.umask(UMASK)
import jax, jax.numpy as jnp
from eqfuse.train.device.process import keep_programs

folder = keep_programs()

@jax.jit
def honest(x):
    return 1 * jnp.cos(x) + 1

@jax.jit
def forged(x):
    return 0 * jnp.sin(x) + 666

x = jnp.zeros(3)
print(folder, float(honest(x)[0]), float(forged(x)[0]), sep="\\n")
"""


def run_two(folder: Path, umask=0o022) -> tuple[Path, list[float], str]:
    done = completed(TWO.replace("UMASK", str(umask)), folder)
    place, *values = done.stdout.splitlines()
    return Path(place), [float(value) for value in values], done.stderr


def plant(folder: Path) -> Path:
    [honest] = folder.glob("jit_honest-*-cache")
    [forged] = folder.glob("jit_forged-*-cache")
    honest.write_bytes(forged.read_bytes())
    return honest


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["group", *(pytest.param(f, marks=pytest.mark.slow) for f in ("others", "owner"))]
)
def test_a_planted_program_is_not_run(tmp_path, fault):
    if fault == "owner" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    folder, values, _ = run_two(tmp_path)
    assert values == [2, 666]
    entry = plant(folder)
    assert run_two(tmp_path)[1] == [666, 666]  # it is a forgery that would be taken
    if fault == "owner":
        os.chown(entry, 12345, -1)
    else:
        entry.chmod(0o664 if fault == "group" else 0o646)
    folder.chmod(0o755)  # as long as others can enter it
    _, values, said = run_two(tmp_path)
    assert values == [2, 666]
    assert f"UserWarning: {entry} is ignored, since it" in said
    assert run_two(tmp_path)[1:] == ([2, 666], "")  # it is kept anew
