"""Run e3nn-jax's own tests of tensor products, Linears and gates against the ops of eqfuse.

    python scripts/e3nn_tests.py llvm

downloads the source distribution of the installed e3nn-jax into a temporary folder, puts the ops in
the place of its functions, and runs its tests with the backend that was named. The tests need the
packages dm-haiku and equinox; arguments after the backend are those of pytest.
"""

import functools
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import e3nn_jax as e3nn
import pytest

from eqfuse import ops

FILES = ["tensor_products", "linear_flax", "linear_haiku", "linear_equinox", "gate", "grad"]


class Swapped:
    """A plugin of pytest with the ops in the place of e3nn-jax's functions."""

    def __init__(self, backend: str):
        self.called = dict.fromkeys(ops.BACKENDS, 0)
        for name in ("tensor_product", "elementwise_tensor_product"):
            setattr(e3nn, name, functools.partial(getattr(ops, name), backend=backend))
        e3nn.flax.Linear = functools.partial(ops.Linear, backend=backend)
        e3nn.haiku.Linear, e3nn.equinox.Linear = ops.haiku.Linear, ops.equinox.Linear
        os.environ["EQFUSE_BACKEND"] = backend  # which they have no argument for

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        with ops.recorded() as calls:
            result = yield
        for call in calls:
            self.called[call.backend] += 1
        return result


def main() -> int:
    backend, *arguments = sys.argv[1:]
    version = importlib.metadata.version("e3nn-jax")
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        download += ["--no-binary", "e3nn-jax", "--dest", folder, f"e3nn-jax=={version}"]
        subprocess.run(download, check=True)
        [archive] = pathlib.Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        [tests] = pathlib.Path(folder).glob("*/tests")
        files = [str(tests / "_src" / f"{name}_test.py") for name in FILES]
        plugin = Swapped(backend)
        options = ["-q", "-p", "no:cacheprovider", f"--rootdir={tests}", "-c", "/dev/null"]
        status = pytest.main([*options, *files, *arguments], plugins=[plugin])
    print("ops that ran, by backend:", {name: n for name, n in plugin.called.items() if n})
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
