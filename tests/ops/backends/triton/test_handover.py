"""What jaxlib is given of a compiled kernel: a cubin beside a hash, PTX, or a file.

Last, the example of a kernel of ours that jax-triton launches, for an H100 that is absent.
"""

import pathlib
import runpy
import subprocess
import types
import zlib

import e3nn_jax as e3nn
import jax
import jaxlib
import numpy as np
import pytest

pytest.importorskip("triton")

from eqfuse.ops.backends.triton import linear as linear_kernel
from eqfuse.ops.backends.triton import runtime
from eqfuse.ops.backends.triton.compile import compile_kernel
from eqfuse.ops.ir import linear as linears
from tests.child import ROOT
from tests.interpreter import interpret
from tests.ops.backends.triton.row_sum import ROW_START, row_sum, spec, values

KERNEL = 1
"""The number of a field of TritonKernelCall, in jaxlib/gpu/triton.proto."""
LIBRARY = types.SimpleNamespace(TritonKernel=lambda *arguments: arguments)


pytestmark = pytest.mark.usefixtures("empty_cache")


def fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Return the fields of a message of protobuf, in order: numbers and bytes."""
    position, found = 0, []

    def number():
        nonlocal position
        value, shift, more = 0, 0, True
        while more:
            more = message[position] & 0x80
            value |= (message[position] & 0x7F) << shift
            position, shift = position + 1, shift + 7
        return value

    while position < len(message):
        field, kind = divmod(number(), 8)
        assert kind in (0, 2)
        value = number()
        if kind == 2:
            value, position = message[position : position + value], position + value
        found.append((field, value))
    return found


def linear():
    """Return a kernel of several warps, which exchange numbers in shared memory."""
    form = linears.linear(e3nn.Irreps("16x0e"), (False,), e3nn.Irreps("16x0e")).linear_form
    return linear_kernel.generate(form, "float32", partial=False)


def test_a_cubin_goes_beside_a_short_hash(monkeypatch):
    monkeypatch.setattr(runtime, "takes_cubins", lambda: True)
    texts = set()
    for kernel_spec, has_warps in ((spec(), 1), (spec(np.float64), 1), (linear(), 2)):
        compiled = compile_kernel(kernel_spec, "sm_90")
        assert (compiled.shared_bytes > 1000) == (has_warps > 1)
        kernel, image = runtime.gpu_kernel(LIBRARY, compiled)
        name, warps, clusters, shared, text, _, capability = kernel
        assert (name, warps, clusters, capability) == (kernel_spec.name, has_warps, 1, 90)
        assert shared == compiled.shared_bytes
        assert f".reqntid {32 * has_warps}" in compiled.assembly
        assert len(text) == 32
        texts.add(text)
        for field in (1, 1, 11):  # kernel_call.kernel.module_image
            [(number, image)] = fields(image)
            assert number == field
        assert fields(image) == [(1, compiled.binary), (2, name.encode()), (3, shared)]
    assert len(texts) == 3


def test_jaxlib_without_the_field_assembles_ptx(monkeypatch):
    monkeypatch.setattr(runtime, "takes_cubins", lambda: False)
    for kernel_spec, warps in ((spec(), 1), (linear(), 2)):
        compiled = compile_kernel(kernel_spec, "sm_90")
        kernel, image = runtime.gpu_kernel(LIBRARY, compiled)
        shared = compiled.shared_bytes
        assert kernel == (kernel_spec.name, warps, 1, shared, compiled.assembly, "", 90)
        assert image == b""


def test_the_field_is_used_where_the_plug_in_has_it(plugin):
    """A descriptor in the library has the name of each field, then its number, here 11."""
    name = plugin.TritonKernel.__module__
    library = pathlib.Path(__import__(name, fromlist=["_"]).__file__).read_bytes()
    assert (b"\x0cmodule_image\x18\x0b" in library) == runtime.takes_cubins()
    assert runtime.takes_cubins() == (jaxlib.version.__version_info__ >= (0, 11, 1))


def test_xla_loads_the_cubin_and_assembles_nothing(h100, monkeypatch):
    """Ahead of time for an H100; the hash in the place of PTX is nothing that ptxas could take."""
    if not runtime.takes_cubins():
        pytest.skip("jaxlib before 0.11.1 assembles PTX, when it launches")
    sharding = jax.sharding.SingleDeviceSharding(h100)
    args = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in (values(), ROW_START)
    ]

    def compiled_ahead():
        function = jax.jit(lambda *operands: row_sum(*operands))
        lowered = function.trace(*args).lower(lowering_platforms=("cuda",))
        return lowered.compile().as_text()

    image = runtime._image
    monkeypatch.setattr(runtime, "_image", lambda compiled: b"")
    with pytest.raises(Exception, match="ptxas"):
        compiled_ahead()
    monkeypatch.setattr(runtime, "_image", image)
    assert "triton_kernel_call_ffi" in compiled_ahead()


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_registers_are_those_of_the_machine_code(tmp_path, target):
    import triton

    compiled = compile_kernel(spec(), target)
    (tmp_path / "kernel.cubin").write_bytes(compiled.binary)
    tools = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    command = [tools / "cuobjdump", "-res-usage", tmp_path / "kernel.cubin"]
    usage = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f" REG:{compiled.registers} " in usage.stdout + usage.stderr


def test_each_launch_for_rocm_has_a_file_that_jaxlib_may_delete():
    compiled = compile_kernel(spec(), "gfx942")
    files = []
    for _ in range(2):
        kernel, image = runtime.gpu_kernel(LIBRARY, compiled)
        name, warps, clusters, shared, path, _, capability = kernel
        assert (name, warps, clusters, shared, capability) == (spec().name, 1, 1, 0, 0)
        assert image == b""
        files.append(pathlib.Path(path))
    assert files[0] != files[1]
    for file in files:
        assert file.read_bytes() == compiled.binary
        file.unlink()
    found = compile_kernel(spec(), "gfx942")  # the cache has its own
    path = runtime.gpu_kernel(LIBRARY, found)[0][4]
    assert pathlib.Path(path).read_bytes() == compiled.binary


example = runpy.run_path(str(ROOT / "examples" / "jax_triton_kernel.py"))


@pytest.fixture
def jax_triton(plugin):
    """Return jax-triton, made to work with JAX 0.12 as the example does it."""
    if jax.__version_info__ < (0, 11):
        pytest.skip("jax-triton 0.4, of which this is, needs JAX 0.11 and Python 3.12")
    module = pytest.importorskip("jax_triton", reason="jax-triton is not installed")
    example["let_jax_triton_work"]()
    return module


def lowered(function, args):
    """Return the target of the one custom call of a function, and its message for jaxlib."""
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).compiler_ir()
    [main] = (op for op in module.body if op.attributes["sym_name"].value == "main")
    calls = [op for op in main.body.blocks[0] if op.operation.name == "stablehlo.custom_call"]
    [attributes] = (call.attributes for call in calls)
    message = zlib.decompress(attributes["mhlo.backend_config"]["opaque"].value_bytes)
    [(_, call)] = (field for field in fields(message) if field[0] == 1)
    return attributes["call_target_name"].value, fields(call)


def test_the_example_lowers_through_jax_triton(jax_triton):
    *arrays, edges = example["example"]()
    target, call = lowered(lambda *a: example["product"](*a, 90), (*arrays, edges))
    assert target == "triton_kernel_call_ffi"
    assert b"silu_weights" in dict(call)[KERNEL]


def test_the_example_changes_what_is_computed(empty_cache, capsys):
    if jax.default_backend() == "cpu":
        example["main"]()
        assert "w_0_0 = w_0_0 * tl.sigmoid(w_0_0)" in capsys.readouterr().out
    *arrays, edges = example["example"]()
    kernel = example["generated"]()

    def error(spec):
        inputs = [np.asarray(a) for a in example["operands"](kernel, *arrays, edges)]
        out = np.full((len(arrays[0]), 64), np.nan, np.float32)
        nodes, grid = len(arrays[0]), kernel.grid(len(arrays[2]), len(arrays[0]))
        interpret(spec, inputs, [out], (nodes,), grid=grid)
        return np.abs(out - np.asarray(example["expected"](*arrays, edges))).max()

    # products of two numbers below 4 and a weight, of up to 12 edges
    bound = 12 * 4**3 * np.finfo(np.float32).eps
    assert error(example["changed"](kernel.spec)) <= bound
    assert error(kernel.spec) > 1e3 * bound
