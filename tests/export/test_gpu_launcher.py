"""The launcher of exported GPU kernels, on a driver that records: without a GPU."""

import ctypes
import re
import shutil
import subprocess
import types
from pathlib import Path

import e3nn_jax as e3nn
import jax
import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import eqfuse
from eqfuse import ops
from eqfuse.export import export_folder
from eqfuse.ops.backends.triton import runtime
from tests.lammps.untrained import untrained_run

SOURCE = Path(eqfuse.__file__).parent / "export" / "eqfuse_gpu.cpp"
WORD = ctypes.c_uint64
EXECUTE, STRING, BUFFER, METADATA = 3, 4, 1, 1


def custom_calls(platform, function, *arguments):
    """Return attributes, and numbers of operands and results, of the calls of a GPU program."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,))
    calls = []

    def visit(operation):
        if operation.name == "stablehlo.custom_call":
            attributes = operation.attributes["mhlo.backend_config"]
            values = {a.name: ir.StringAttr(a.attr).value_bytes for a in attributes}
            calls.append((values, len(operation.operands), len(operation.results)))
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir().operation.walk(visit)
    return calls


def built(source, out, *flags):
    command = ["g++", "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, *flags, str(source), "-o", str(out), "-ldl"], check=True)
    return ctypes.CDLL(str(out))


def words(*values):
    return (WORD * len(values))(*values)


class Frame:
    """A call frame of XLA's FFI, with a stream, and errors that are kept as texts."""

    def __init__(self, attributes, num_operands, num_results):
        self.keep, self.error, self.version = [], None, None
        address = ctypes.addressof

        def kept(array):
            self.keep.append(array)
            return address(array)

        def fail(given):
            self.error = ctypes.string_at((WORD * 4).from_address(given)[2]).decode()
            return 1

        def get_stream(given):
            (WORD * 4).from_address(given)[3] = 5
            return 0

        functions = [ctypes.CFUNCTYPE(WORD, WORD)(f) for f in (fail, get_stream)]
        self.keep += functions
        api = [0] * 40
        for place, function in zip((6, 10), functions, strict=True):
            api[place] = ctypes.cast(function, ctypes.c_void_p).value
        buffers = [kept(words(48, 0, 11, k + 1, 0, 0)) for k in range(num_operands + num_results)]
        sides = []
        for side in (buffers[:num_operands], buffers[num_operands:]):
            kinds = (ctypes.c_int32 * max(len(side), 1))(*[BUFFER] * len(side))
            sides += [48, 0, len(side), kept(kinds), kept(words(*side, 0))]
        texts = {name: ctypes.create_string_buffer(text) for name, text in attributes.items()}
        names = [
            kept(words(kept(ctypes.create_string_buffer(n.encode())), len(n))) for n in attributes
        ]
        spans = [kept(words(kept(t), len(t) - 1)) for t in texts.values()]
        kinds = kept((ctypes.c_int32 * len(texts))(*[STRING] * len(texts)))
        of_texts = [56, 0, len(texts), kinds, kept(words(*names)), kept(words(*spans))]
        self.words = words(21 * 8, 0, kept(words(*api)), 0, EXECUTE, *sides, *of_texts)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize(("platform", "target"), [("cuda", "sm_90"), ("rocm", "gfx942")])
def test_the_launcher_launches_what_jaxlib_would(tmp_path, monkeypatch, platform, target):
    triton = pytest.importorskip("triton")
    x = e3nn.normal("4x0e+4x1o", jax.random.key(0), (20,))
    y = e3nn.normal("0e+1o", jax.random.key(1), (20,))

    def function(x, y):
        return jax.value_and_grad(lambda x: ops.tensor_product(x, y, backend="triton").array.sum())(
            x
        )

    with runtime.exporting(target):
        calls = custom_calls(platform, function, x, y)

    # what is handed to jaxlib's launcher, in the place of its bindings, which need its plug-in
    expected = []
    library = types.SimpleNamespace(
        TritonKernel=lambda *values: values,
        create_array_parameter=lambda zero, alignment: "p",
        create_scalar_parameter=lambda value, kind: f"i{value}",
        TritonKernelCall=lambda *values: (
            expected.append(values) or types.SimpleNamespace(to_proto=lambda *_: b"")
        ),
    )
    monkeypatch.setattr(runtime, "gpu_library", lambda: library)
    monkeypatch.setattr(runtime, "target_of", lambda ctx: target)
    assert len(custom_calls(platform, function, x, y)) == len(calls) == len(expected) >= 2

    flags, width = [], 32
    if platform == "rocm":
        headers = Path(triton.__file__).parent / "backends" / "amd" / "include"
        flags, width = ["-DEQFUSE_HIP", "-D__HIP_PLATFORM_AMD__", f"-isystem{headers}"], 64
    include = f"-I{jax.ffi.include_dir()}"
    handler = built(SOURCE, tmp_path / "handler.so", include, *flags).eqfuse_gpu_launch
    handler.argtypes, handler.restype = [ctypes.c_void_p], WORD
    source = Path(__file__).with_name("recording_driver.cpp")
    driver = built(source, tmp_path / "driver.so", *flags)
    monkeypatch.setenv("EQFUSE_GPU_DRIVER", str(tmp_path / "driver.so"))
    record = (ctypes.c_char * 65536).in_dll(driver, "record")
    for (attributes, *counts), (kernel, *grid, parameters) in zip(calls, expected, strict=True):
        entry, warps, _, shared, *_ = kernel
        pointers = iter(range(1, 100))
        values = [p if p != "p" else f"p{next(pointers)}" for p in parameters]
        extra = int(attributes["launch"].split()[-1])
        assert extra == 2  # memory that all programs share, and that of a profiler
        values += ["p0"] * extra
        (ctypes.c_char * 256).in_dll(driver, "kinds").value = "".join(v[0] for v in values).encode()
        frame = Frame(attributes, *counts)
        for _ in range(2):  # it is loaded once
            record.value = b""
            assert not handler(frame.words), frame.error
            line = " ".join(map(str, (entry, *grid, width * warps, shared, *values)))
            assert record.value.decode() == line + "\n"
    images = {attributes["image"] for attributes, *_ in calls}
    assert ctypes.c_int.in_dll(driver, "loads").value == len(images)

    frame = Frame(attributes | {"image": b"damaged"}, *counts)
    assert handler(frame.words)
    assert "cannot be loaded; is it compiled for this GPU?: device kernel image" in frame.error
    frame = Frame({k: v for k, v in attributes.items() if k != "launch"}, *counts)
    assert handler(frame.words)
    assert "the call has no text launch" in frame.error

    metadata = words(56, 40, 0, 0, 0, 0, 0)
    extension = words(32, METADATA, 0, ctypes.addressof(metadata))
    frame = words(21 * 8, ctypes.addressof(extension), *[0] * 19)
    assert not handler(frame)
    assert np.frombuffer(metadata, np.int32)[6:8].tolist() == [0, 3]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize(("platform", "target"), [("cuda", "sm_80"), ("rocm", "gfx942")])
def test_a_folder_for_a_gpu_needs_its_launcher_only(tmp_path, platform, target):
    pytest.importorskip("triton")
    run = untrained_run(tmp_path, "nequip")
    options = {"engine": "pjrt", "sizes": [(8, 600)], "dtype": "float32"}
    folder = export_folder(run, tmp_path / "a", target=target, **options)
    manifest = (folder / "manifest.txt").read_text()
    assert f"platform {platform}\ntarget {target}\n" in manifest
    table = (ctypes.c_char_p * 4).in_dll(
        ctypes.CDLL(str(folder / "eqfuse_kernels.so")), "eqfuse_kernels"
    )
    assert [table[0], table[2]] == [b"eqfuse_gpu_launch", None]
    with ir.Context() as context:
        program = (folder / "program_8_600").read_bytes()
        text = str(stablehlo.deserialize_portable_artifact(context, program))
    assert set(re.findall(r"custom_call @(\S+?)\(", text)) == {"eqfuse_gpu_launch"}
