"""Compiled programs are found by later runs, and nothing that is wrong with them stops one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child import ROOT

pytestmark = pytest.mark.slow

# Prints the folder, how many programs JAX found there, and what two programs of one shape give,
# whose entries another user could exchange.
PROGRAM = """
import os
os.umask(0o022)
import jax, jax.monitoring, jax.numpy as jnp
from eqfuse.runs.process import keep_programs

found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name.rpartition("/")[2]))
folder = keep_programs()

@jax.jit
def honest(x):
    return 1 * jnp.cos(x) + 1

@jax.jit
def forged(x):
    return 0 * jnp.sin(x) + 666

x = jnp.zeros(3)
values = float(honest(x)[0]), float(forged(x)[0])
print(folder, found.count("cache_hits"), *values, sep="\\n")
"""


def run(folder: Path, **variables) -> tuple[str, int, list[float], str]:
    """Run a process that keeps what it compiles in `folder`; return what it printed, and errors."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment |= {"EQFUSE_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command, pipes = [sys.executable, "-c", PROGRAM], {"capture_output": True, "text": True}
    done = subprocess.run(command, env=environment | variables, **pipes)
    assert done.returncode == 0, done.stderr
    place, hits, *values = done.stdout.splitlines()
    return place, int(hits), [float(value) for value in values], done.stderr


def test_later_runs_find_them_unless_they_are_damaged_or_old(tmp_path):
    folder, hits, values, said = run(tmp_path)
    assert (hits, values, said) == (0, [2, 666], "")
    assert Path(folder).parent == tmp_path / "programs"
    [entry] = Path(folder).glob("jit_honest-*-cache")
    again, all_hits, *others = run(tmp_path)
    assert all_hits > 0
    assert (again, *others) == (folder, values, "")
    entry.write_bytes(entry.read_bytes()[:100])  # as a full disk leaves it
    assert run(tmp_path)[2] == values  # compiled, with a warning
    long_ago = entry.stat().st_mtime - 31 * 24 * 3600
    os.utime(entry, (long_ago, long_ago))
    assert run(tmp_path, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1000")[1] == all_hits - 1
    assert not entry.exists()


def test_programs_keep_the_settings_of_jax(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    assert run(tmp_path / "cache", JAX_COMPILATION_CACHE_DIR=str(elsewhere))[0] == "None"
    assert list(elsewhere.glob("jit_honest-*"))
    assert run(tmp_path / "cache", JAX_ENABLE_COMPILATION_CACHE="false")[0] == "None"
    assert not (tmp_path / "cache" / "programs").exists()


@pytest.mark.parametrize("fault", ["group", "others", "owner"])
def test_a_planted_program_is_not_run(tmp_path, fault):
    if fault == "owner" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    folder = Path(run(tmp_path)[0])
    [entry], [forged] = (folder.glob(f"jit_{name}-*-cache") for name in ("honest", "forged"))
    entry.write_bytes(forged.read_bytes())
    assert run(tmp_path)[2] == [666, 666]  # it is a forgery that would be taken
    if fault == "owner":
        os.chown(entry, 12345, -1)
    else:
        entry.chmod(0o664 if fault == "group" else 0o646)
    folder.chmod(0o755)  # as long as others can enter it
    *_, values, said = run(tmp_path)
    assert values == [2, 666]
    assert f"UserWarning: {entry} is ignored, since it" in said
    assert run(tmp_path)[2:] == ([2, 666], "")  # it is kept anew
