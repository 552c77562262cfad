"""A kernel's way from source text to interpreted results and compiled code."""

import concurrent.futures
import dataclasses
import importlib.metadata

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton")

from triton._C.libtriton import passes

from eqfuse.ops._linear import _linear_form
from eqfuse.ops.backends.triton import compile, linear
from eqfuse.ops.backends.triton.compile import compile_many
from eqfuse.ops.ir.form import derivatives
from tests.interpreter import interpret, interpret_count
from tests.ops.backends.triton.row_sum import ROW_START, SOURCE, expected, spec, values

pytestmark = pytest.mark.usefixtures("empty_cache")


def interpreted(dtype=np.float32):
    out = np.full((3, 20), np.nan, dtype)
    interpret(spec(dtype), (values(dtype), ROW_START), (out,), (20,), (3,))
    return out


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_interpreted_kernel_equals_numpy(dtype):
    before, results = interpret_count(), [interpreted(dtype) for _ in range(2)]
    assert interpret_count() == before + 2
    np.testing.assert_array_equal(results[0].view(np.uint8), results[1].view(np.uint8))
    # sums of at most 5 numbers, added in float32 and rounded once to the output's type
    scale = expected(np.abs(values(dtype).astype(np.float64)))
    bound = (5 * np.finfo(np.float32).eps + float(ml_dtypes.finfo(dtype).eps) / 2) * scale
    assert (np.abs(results[0].astype(np.float64) - expected(values(dtype))) <= bound).all()


def test_interpreter_refuses_what_does_not_fit():
    out = np.zeros((3, 20), np.float32)
    with pytest.raises(ValueError, match=r"wants inputs .*\*fp32.*got .*\*fp64"):
        interpret(spec(), (values(np.float64), ROW_START), (out,), (20,))
    with pytest.raises(ValueError, match="wants scalars"):
        interpret(spec(), (values(), ROW_START), (out,), ())
    with pytest.raises(ValueError, match="width = 2147483648 is not an int32"):
        interpret(spec(), (values(), ROW_START), (out,), (2**31,))
    with pytest.raises(ValueError, match="C-contiguous"):
        interpret(spec(), (values().T, ROW_START), (out,), (20,))


def test_kernels_are_compiled_once_and_found_on_disk(empty_cache, compiled, monkeypatch):
    first, *layers = [compile.compile_kernel(spec(), "sm_90") for _ in range(10)]
    assert all(layer is first for layer in layers)
    compile._KERNELS.clear()
    again = compile.compile_kernel(spec(), "sm_90")
    assert len(compiled) == 1
    assert again is not first
    assert again == first

    [entry] = (empty_cache / "compiled").iterdir()
    content = entry.read_bytes()
    entry.write_bytes(content.replace(b".target sm_90a", b".target sm_80a"))
    assert entry.read_bytes() != content
    compile._KERNELS.clear()
    assert compile.compile_kernel(spec(), "sm_90").assembly == first.assembly
    assert len(compiled) == 2
    monkeypatch.setattr(compile, "REVISION", "another")
    compile._KERNELS.clear()
    compile.compile_kernel(spec(), "sm_90")
    assert len(compiled) == 3


def test_many_kernels_compile_beside_each_other(compiled):
    specs = [spec(dtype) for dtype in (np.float32, ml_dtypes.bfloat16)]
    kernels = compile_many([*specs, *specs], "sm_90", threads=2)
    assert [k.entry for k in kernels] == [s.name for s in (*specs, *specs)]
    assert len(compiled) == 2
    compile_many(specs, "sm_90")
    assert len(compiled) == 2


def test_compile_many_reports_what_the_compiler_says():
    broken = spec(source=SOURCE.replace("edge += 1", "edge += unknown_name"))
    with pytest.raises(RuntimeError, match=rf"(?s){broken.name} did not compile.*unknown_name"):
        compile_many([broken, spec()], "sm_90", threads=2)


def test_a_kernel_that_does_not_compile_stops_no_other():
    others = [spec(dtype) for dtype in (np.float32, np.float64, ml_dtypes.bfloat16)]
    broken = spec(source=SOURCE.replace("edge += 1", "edge += unknown_name"))
    with pytest.raises(RuntimeError, match=f"{broken.name} did not compile"):
        compile_many([*others, broken], "sm_90", threads=1)
    assert [compile.find(other, "sm_90").entry for other in others] == [s.name for s in others]


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_leaving_out_coalesce_changes_nothing(monkeypatch, target):
    used = []
    add_coalesce = passes.ttgpuir.add_coalesce
    monkeypatch.setattr(
        passes.ttgpuir, "add_coalesce", lambda manager: (used.append(1), add_coalesce(manager))
    )
    without, _ = compile.compile_stages(spec(), target)
    assert not used
    monkeypatch.setattr(compile, "_without_coalesce", lambda make_ttgir: make_ttgir)
    with_it, _ = compile.compile_stages(spec(), target)
    assert used
    assembly = "ptx" if target.startswith("sm_") else "amdgcn"
    assert without[assembly] == with_it[assembly]


def test_a_kernel_that_spills_gets_the_fewest_registers_without(monkeypatch):
    tried = []

    def assemble(ptx):
        limit = int(ptx.split(".maxnreg ")[1].split()[0]) if ".maxnreg" in ptx else 90
        tried.append(limit)
        return compile.Assembled(limit - 2, 0 if limit >= 128 else 16, b"of %d" % limit)

    monkeypatch.setattr(compile, "assemble", assemble)
    stages = {"ptx": ".visible .entry k(\n)\n.reqntid 64\n{\n}\n"}
    assert compile.resources(stages) == (126, 0)
    assert tried == [90, 96, 128]
    assert stages["ptx"] == ".visible .entry k(\n)\n.reqntid 64\n.maxnreg 128\n{\n}\n"
    assert stages["cubin"] == b"of 128"


def test_no_program_gets_more_registers_than_a_processor_has(monkeypatch):
    """512 threads of 144 registers would compile, and fail to launch."""

    def assemble(ptx):
        return compile.Assembled(128, 0 if ".maxnreg" in ptx else 16, b"")

    monkeypatch.setattr(compile, "assemble", assemble)
    for threads, spilled in (("512", 16), ("512, 1, 1", 16), ("256, 2, 1", 16), ("256", 0)):
        stages = {"ptx": f".visible .entry k(\n)\n.maxntid {threads}\n{{\n}}\n"}
        assert compile.resources(stages) == (128, spilled), threads
        assert (".maxnreg" in stages["ptx"]) == (spilled == 0), threads


def test_ptx_has_no_line_numbers(empty_cache):
    stages, _ = compile.compile_stages(spec(), "sm_90")
    assert "!DILocation" in stages["llir"]  # there were some
    for what in (".loc", ".file", ".section", "//", str(empty_cache)):
        assert what not in stages["ptx"]
    assert compile.assemble(stages["ptx"]).registers > 0


def test_register_limits_are_valid_ptx():
    stages, _ = compile.compile_stages(spec(), "sm_90")
    limited = compile._with_register_limit(stages["ptx"], 128)
    assert limited.count("\n.maxnreg 128\n") == 1
    with_limit, without = (compile.assemble(text) for text in (limited, stages["ptx"]))
    assert with_limit.registers == without.registers


def test_one_thread_compiles_while_another_interprets():
    def error():
        return np.abs(interpreted() - expected(values())).max()

    alone = compile.compile_stages(spec(), "sm_90")[0]["ptx"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        errors = [pool.submit(error) for _ in range(20)]
        texts = {compile.compile_stages(spec(), "sm_90")[0]["ptx"] for _ in range(5)}
    assert texts == {alone}
    assert max(found.result() for found in errors) < 1e-5


@pytest.mark.slow
def test_gradients_of_radial_layers_have_warps_that_do_not_spill():
    """In tf32x3, of the last layers of NequIP's three; two warps spill, but with Triton 3.6."""
    form = derivatives(_linear_form(3, 64, (960, 1920, 128), False, 1.0, "tf32x3"))["backward"]
    spec = linear.generate(form, "float32", partial=True)
    found = compile.compile_kernel(spec, "sm_90")
    warps = 4 if compile._compile_once(spec, "sm_90").spilled_bytes else 2
    assert warps == 4 or importlib.metadata.version("triton").startswith("3.6")
    assert (spec.num_warps, found.num_warps, found.spilled_bytes) == (2, warps, 0)
    assert f".reqntid {32 * warps}" in found.assembly
    compile._KERNELS.clear()
    assert compile.compile_kernel(spec, "sm_90").num_warps == warps  # from disk


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
        found = compile.compile_kernel(spec, "sm_90")
    assert (found.spilled_bytes, found.num_warps) == (expected, warps)
    compile._KERNELS.clear()
    with pytest.warns(RuntimeWarning, match=message):  # also of a kernel that is on disk
        compile.find(spec, "sm_90")
    assert compile.find(spec, "sm_90") == found
