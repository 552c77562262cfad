"""Run e3nn-jax's own tests of tensor products, Linears and gates against the ops of eqfuse.

    python scripts/e3nn_tests.py llvm

downloads the source distribution of the installed e3nn-jax into a temporary folder, puts the ops in
the place of its functions, and runs its tests with the backend that was named. The tests need the
packages dm-haiku and equinox; arguments after the backend are those of pytest.
"""

import functools
import importlib.metadata
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import e3nn_jax as e3nn
import haiku as hk
import pytest

from eqfuse import ops

FILES = ["tensor_products", "linear_flax", "linear_haiku", "linear_equinox", "gate", "grad"]


def haiku_linear(backend: str):
    """`e3nn.haiku.Linear`, whose parameters Haiku keeps."""

    def make(irreps_out, channel_out=None, *, parameter_initializer=None, name=None, **options):
        initializer = None
        if parameter_initializer is not None:  # Haiku's take the key from Haiku
            initializer = lambda: lambda key, *shape: parameter_initializer()(*shape)  # noqa: E731
        options |= {"channel_out": channel_out, "backend": backend}
        first = ops.Linear(irreps_out, parameter_initializer=initializer, **options)
        module = ops.Linear(irreps_out, **options)

        def apply(*arguments):
            key = hk.maybe_next_rng_key()
            variables = hk.lift(first.init, name=name or "linear")(key, *arguments)
            return module.apply(variables, *arguments)

        return apply

    return make


def equinox_linear(backend: str):
    """`e3nn.equinox.Linear`, which keeps the parameters and calls `ops.linear`."""

    class Linear(e3nn.equinox.Linear):
        def __call__(self, first, x=None):
            first, x = (None, first) if x is None else (first, x)
            result = ops.linear(
                x,
                self._weights,
                (self.channel_out or 1) * self.irreps_out,
                index=first if self.linear_type == "indexed" else None,
                weights=first if self.linear_type.startswith("mixed") else None,
                biases=self.biases,
                path_normalization=self.path_normalization,
                gradient_normalization=self.gradient_normalization,
                num_indexed_weights=self.num_indexed_weights,
                weights_per_channel=self.weights_per_channel,
                force_irreps_out=self.force_irreps_out,
                irreps_in=self.irreps_in,
                backend=backend,
            )
            return result if self.channel_out is None else result.mul_to_axis(self.channel_out)

    return Linear


class Swapped:
    """A plugin of pytest with the ops in the place of e3nn-jax's functions."""

    def __init__(self, backend: str):
        self.called = dict.fromkeys(ops.BACKENDS, 0)
        for name in ("tensor_product", "elementwise_tensor_product", "tensor_square"):
            setattr(e3nn, name, functools.partial(getattr(ops, name), backend=backend))
        e3nn.flax.Linear = functools.partial(ops.Linear, backend=backend)
        e3nn.haiku.Linear = haiku_linear(backend)
        e3nn.equinox.Linear = equinox_linear(backend)

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
