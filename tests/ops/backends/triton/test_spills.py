"""Kernels that would spill registers have more warps, or are named in a warning."""

import dataclasses
import importlib.metadata

import pytest

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

from eqfuse.ops._linear import _linear_form
from eqfuse.ops.backends.triton import compile, linear
from eqfuse.ops.backends.triton import compile as compiler
from eqfuse.ops.ir.form import derivatives

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.mark.slow
def test_gradients_of_radial_layers_have_warps_that_do_not_spill():
    """In tf32x3, of the last layers of NequIP's three; two warps spill, but with Triton 3.6."""
    form = derivatives(_linear_form(3, 64, (960, 1920, 128), False, 1.0, "tf32x3"))["backward"]
    spec = linear.generate(form, "float32", partial=True)
    found = compiler.compile_kernel(spec, "sm_90")
    warps = 4 if compiler._compile_once(spec, "sm_90").spilled_bytes else 2
    assert warps == 4 or importlib.metadata.version("triton").startswith("3.6")
    assert (spec.num_warps, found.num_warps, found.spilled_bytes) == (2, warps, 0)
    assert f".reqntid {32 * warps}" in found.assembly
    compiler._KERNELS.clear()
    assert compiler.compile_kernel(spec, "sm_90").num_warps == warps  # from disk


@pytest.mark.parametrize("dense", [False, True])
def test_a_kernel_that_spills_is_named(dense, monkeypatch):
    """The fewest bytes are kept; only kernels of tiles are compiled with more warps."""
    form = _linear_form(1, 16, (16,), False, 1.0, "ieee")
    spec = linear.generate(form, "float32", partial=False)
    spec = dataclasses.replace(spec, coalesce=dense)
    spilled, resources = iter((80, 40, 60)), compile.resources
    monkeypatch.setattr(compile, "resources", lambda s: (resources(s)[0], next(spilled)))
    expected, warps = (40, 4) if dense else (80, 2)
    message = f"kernel {spec.name} for sm_90 spills {expected} bytes"
    with pytest.warns(RuntimeWarning, match=message):
        found = compiler.compile_kernel(spec, "sm_90")
    assert (found.spilled_bytes, found.num_warps) == (expected, warps)
    compiler._KERNELS.clear()
    with pytest.warns(RuntimeWarning, match=message):  # also of a kernel that is on disk
        compiler.find(spec, "sm_90")
    assert compiler.find(spec, "sm_90") == dataclasses.replace(found, from_disk=True)
