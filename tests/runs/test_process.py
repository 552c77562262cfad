"""What a run does to its process: kept memory, and the precision of matrix products."""

import gc
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops
from eqfuse.runs import process
from eqfuse.train.parallel import matmul_precision
from tests.child import run_python

# Threads have arenas of their own unless there is only one. Only a part of the block is touched.
CODE = """
import ctypes, resource, sys, threading
from eqfuse.runs import process
for name in sys.argv[2:]:
    assert getattr(process, name)()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
size, touched = int(sys.argv[1]), 100 << 20

def use():
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
    ctypes.memset(block, 1, touched)
    libc.free(block)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(min(faults() for _ in range(3)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is of Linux")
@pytest.mark.parametrize(
    ("keep", "size"),
    [("keep_freed_memory", 5 << 29), ("keep_memory", 5 << 29), (None, 100 << 20)],
)
def test_freed_memory_is_used_again(keep, size):
    faults = int(run_python("-c", CODE, size, *([keep] if keep else [])).stdout)
    assert faults < 40 if keep else faults > 40  # of 25 600 pages, or 50 large ones


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is of Linux")
@pytest.mark.parametrize(
    ("total", "left", "given"),
    [(1 << 40, 1 << 39, False), (1 << 20, 1 << 20, True), (1 << 40, 1 << 37, True)],
    ids=["memory is left", "half is of this process", "others have most"],
)
def test_free_memory_is_given_back_where_it_is_short(total, left, given):
    code = f"""{CODE}
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

process.memory = lambda: ({total}, {left})
first, before = process.give_back(), resident()
process._SMALL = 1 << 20
print(first, process.give_back(), before - resident() > 90 << 20)
"""
    text = run_python("-c", code, 5 << 29, "keep_memory").stdout
    assert text.splitlines()[-1] == f"False {given} {given}"


def test_memory_is_the_least_of_the_machines_and_the_cgroups(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_CGROUP", tmp_path)
    monkeypatch.setattr(process, "_MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\n")
    (tmp_path / "memory.current").write_text("300000\n")
    for text, expected in (("max\n", (1_024_000, 614_400)), ("500000\n", (500_000, 200_000))):
        (tmp_path / "memory.max").write_text(text)
        assert process.memory() == expected


def test_other_c_libraries_and_thresholds_of_the_environment_are_left_alone(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
        assert not process.keep_memory()
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: object())
    assert not process.keep_freed_memory()
    monkeypatch.setattr(process.sys, "platform", "darwin")
    assert not process.keep_freed_memory()


@pytest.mark.parametrize(
    ("asked", "dtype", "platform", "capability", "expected"),
    [
        ("auto", "float32", "gpu", "9.0", ops.TF32X3),
        ("auto", "float32", "gpu", "12.0", ops.TF32X3),
        ("bfloat16", "float32", "gpu", "9.0", ops.TF32X3),
        ("highest", "float32", "gpu", "9.0", "highest"),
        ("auto", "float64", "gpu", "9.0", "highest"),
        ("auto", "float32", "gpu", "7.5", "highest"),
        ("auto", "float32", "gpu", "gfx942", "highest"),
        ("auto", "float32", "cpu", None, "highest"),
    ],
)
def test_matmul_precision_of_devices(asked, dtype, platform, capability, expected):
    fields = {} if capability is None else {"compute_capability": capability}
    device = types.SimpleNamespace(platform=platform, **fields)
    assert matmul_precision(asked, dtype, device) == expected


def test_garbage_is_collected_again_after_an_error():
    def fail():
        with process.without_collection():
            with process.without_collection():
                pass
            assert not gc.isenabled()  # the outer one ends it
            raise ValueError("inside")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"):
        fail()
    assert gc.isenabled()


def test_jax_knows_the_name():
    with jax.default_matmul_precision(ops.TF32X3):
        traced = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2)))
    assert str(traced.eqns[0].params["precision"]) == ops.TF32X3
