"""Python in a process of its own, under the warnings of the tests."""

import contextlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_python(*arguments, check: bool = True, **options) -> subprocess.CompletedProcess:
    """Run Python in a new process, whose warnings are errors but for those of pyproject.toml.

    Args:
      check: whether an exit code other than 0 fails the test, with what was printed.
      options: those of `subprocess.run`.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    filters = settings["tool"]["pytest"]["ini_options"]["filterwarnings"]
    command = [sys.executable, *(word for rule in filters for word in ("-W", rule)), *arguments]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert not check or done.returncode == 0, done.stderr
    return done


def start_python(*arguments, variables=(), **options) -> subprocess.Popen:
    """Start Python on the CPU, with this package.

    Args:
      variables: of its environment, beside those of this process.
      options: those of `subprocess.Popen`.
    """
    own = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **dict(variables)}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=os.environ | own, **options)


@contextlib.contextmanager
def ends_here(process: subprocess.Popen):
    """Yield a process, which is killed where it goes on beyond the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()
