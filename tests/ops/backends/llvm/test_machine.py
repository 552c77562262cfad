"""Native kernels and their machine: the threads they may use, the cache, processes, versions."""

import collections
import concurrent.futures
import functools
import hashlib
import multiprocessing
import os
import pathlib
import re
import sys
import types

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops import _host
from eqfuse.ops import shared_library as library
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.form import generate
from eqfuse.ops.ir.form import derivatives
from tests.child import run_python
from tests.ops.cases import product_form

PRODUCT = """
import e3nn_jax as e3nn, jax.numpy as jnp, numpy as np
from eqfuse import ops
x = e3nn.IrrepsArray("7x0e+3x1o", jnp.arange(160, dtype=jnp.float32).reshape(10, 16) / 100)
found = np.asarray(ops.tensor_product(x, x, backend="llvm").array)
expected = np.asarray(e3nn.tensor_product(x, x).array)
np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
"""


def product(x):
    x = e3nn.IrrepsArray("7x0e+3x1o", x)
    return ops.tensor_product(x, x, backend="llvm").array


def run(code: str, **variables) -> str:
    """Return what a fresh process prints."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # whose warnings would be errors
    return run_python("-c", code, env=environment).stdout.strip()


def test_runtime_ll_is_made_of_runtime_c():
    source = machine.RUNTIME.with_suffix(".c").read_bytes()
    made_of = machine.RUNTIME.read_text().split("\n")[0].split()[-1]
    assert made_of == hashlib.sha256(source).hexdigest(), "run scripts/runtime_ir.py"


@pytest.mark.parametrize(
    ("value", "count"), [("2", 2), ("3,1", 3), ("100", 8), ("0", 1), ("", 8), ("many", 8)]
)
def test_threads_that_are_asked_for(monkeypatch, value, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "_cgroup_quota", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert machine.threads() == count


@pytest.mark.slow
def test_kernels_obey_and_start_no_threads(monkeypatch):
    """The limit reaches them; their threads are XLA's, even where it runs several calls at once."""
    code = """
import ctypes, os
import e3nn_jax as e3nn, jax, jax.numpy as jnp
from eqfuse import ops
from eqfuse.ops.backends.llvm import machine

def count():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0

def products(x):
    arrays = [e3nn.IrrepsArray("16x0e+16x1o", x + k) for k in range(4)]
    return [ops.tensor_product(a, a[:, :1], backend="llvm").array for a in arrays]

x = jnp.ones((20_000, 64))
jax.block_until_ready(jax.jit(lambda x: [(x + k) @ x.T[:, :64] for k in range(4)])(x))
compiled = jax.jit(products).lower(x).compile()
before = count()
for _ in range(5):
    jax.block_until_ready(compiled(x))
limit = ctypes.c_int64.from_address(machine._runtime()["eqfuse_limit"]).value
active = ctypes.c_int64.from_address(machine._runtime()["eqfuse_active"]).value
print(limit, active, count() - before)
"""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run(code, OMP_NUM_THREADS="1") == "1 0 0"
    many = run(code).split()
    assert many == [str(machine.threads()), "0", "0"]


@pytest.mark.parametrize(
    ("content", "quota"), [("150000 100000", 2), ("max 100000", None), ("nonsense", None)]
)
def test_quota_of_the_cgroup(tmp_path, content, quota):
    file = tmp_path / "cpu.max"
    assert machine._cgroup_quota(str(file)) is None
    file.write_text(content)
    assert machine._cgroup_quota(str(file)) == quota


@pytest.mark.slow
def test_processes_share_the_cache(tmp_path):
    """Also those that fill it at once; later ones find their kernels."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: run(PRODUCT, EQFUSE_CACHE_DIR=str(tmp_path)), range(3)))
    written = {path: path.stat().st_ino for path in (tmp_path / "cpu").iterdir()}
    assert {path.suffix for path in written} == {".o"}
    assert len(written) >= 2  # the kernel, and what all kernels share
    run(PRODUCT, EQFUSE_CACHE_DIR=str(tmp_path))
    assert {path: path.stat().st_ino for path in (tmp_path / "cpu").iterdir()} == written


COMPILED = """
import ctypes, gc, os, pathlib
from eqfuse.ops.backends.llvm import machine

def compiled(number):
    of = {f"%t{number}_{k}": f"{{ [{2000 * number + k + 7} x i8], i32 }}" for k in range(2000)}
    kinds = [f"{name} = type {kind}" for name, kind in of.items()]
    uses = [f"@g{k} = external global {name}" for k, name in enumerate(of)]
    machine.compiled("\\n".join(kinds + uses))

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")

for number in range(3):
    compiled(number)
before = resident()
for number in range(3, 13):
    compiled(number)
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_compiled_modules_is_freed(tmp_path):
    """LLVM's contexts keep types for good: here 2,000 a module, which are 0.4 MB."""
    assert int(run(COMPILED, EQFUSE_CACHE_DIR=str(tmp_path))) < 2e6


def test_an_unknown_interface_of_xla_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "api_version", lambda: (0, 99))
    with pytest.raises(ValueError, match=r"interface is of version \(0, 99\), and this version of"):
        ops.resolve("llvm")


LARGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not LARGE_PAGES.exists(), reason="large pages are of Linux")
def test_large_results_ask_for_large_pages():
    x = e3nn.IrrepsArray("0e+1o", jnp.ones((3_000_000, 4), jnp.float32))  # 48 MB
    result = jax.block_until_ready(ops.tensor_product(x, x[:, :1], backend="llvm").array)
    middle = result.unsafe_buffer_pointer() + result.nbytes // 2
    flags, inside = "", False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= middle < int(match[2], 16)
        elif inside and line.startswith("VmFlags:"):
            flags = line
    assert " hg" in flags
    np.testing.assert_array_equal(result, x.array)


FAR = """
import ctypes
from eqfuse.ops.backends.llvm import machine

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def take(size):
    return libc.mmap(None, size, 3, 0x4022, -1, 0)  # private, anonymous, no memory reserved

machine._target()
arrays, holes = take(6 << 30), take(64 * 4096)
for page in range(1, 64, 4):
    libc.munmap(holes + page * 4096, 4096)
for _ in range(100_000):  # until nothing but single pages is free above the arrays
    if take(8192) < arrays:
        break
names = "code", "table", "state"
text = '''
@table = constant [2048 x i64] zeroinitializer
@state = global i64 7
define i64 @code(i64 %k) {
  %place = getelementptr [2048 x i64], ptr @table, i64 0, i64 %k
  %constant = load i64, ptr %place
  %variable = load i64, ptr @state
  %sum = add i64 %constant, %variable
  ret i64 %sum
}
'''
places = machine._link("far", text, names, {})
code = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(places["code"])
print(code(3), max(places.values()) - min(places.values()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="numbers of Linux's mmap")
def test_sections_of_a_kernel_lie_side_by_side():
    """Code of ARM reaches 4 GB, and here a process has arrays of 6 GB between small holes."""
    result, apart = map(int, run(FAR).split())
    assert result == 7
    assert apart < 1 << 20


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin23.0.0"])
def test_vectors_of_arm(monkeypatch, triple):
    """NEON's, whatever LLVM reports: nothing on macOS, and SVE where a processor has it."""
    for features in ({}, {"neon": True, "sve": True}):
        target = types.SimpleNamespace(triple=triple), features
        monkeypatch.setattr(machine, "_target", lambda target=target: target)
        found = machine.machine.__wrapped__()
        assert (found.vector_bytes, found.registers) == (16, 32)
    for vectors in library.LEVELS["aarch64"].values():
        assert (vectors.vector_bytes, vectors.registers) == (16, 32)


ADVICE = """
import ctypes, sys
from eqfuse.ops.backends.llvm import machine
machine._target()
sys.platform = sys.argv[1]
print(ctypes.c_int32.from_address(machine._runtime()["eqfuse_advice"]).value)
"""


@pytest.mark.parametrize(("platform", "advice"), [("linux", 14), ("darwin", 0)])
def test_large_pages_are_asked_of_linux_alone(platform, advice):
    """Other systems give its number to other advice, or may some day."""
    assert int(run(ADVICE.replace("sys.argv[1]", repr(platform)))) == advice


def _batch(seed):
    return np.random.default_rng(seed).normal(size=(10, 16)).astype(np.float32)


def _load(queue, seed):
    """Return a worker of a data loader: numpy only."""
    queue.put(_batch(seed))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork"
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_under_a_data_loader_that_forks():
    """Workers are forked while kernels run; the parent goes on computing what it did before."""
    context = multiprocessing.get_context("fork")
    jitted = jax.jit(product)
    queue = context.Queue()
    rows = jnp.asarray(np.random.default_rng(9).normal(size=(20_000, 16)), jnp.float32)
    expected = np.asarray(jitted(rows))
    for seed in range(4):
        running = [jitted(rows) for _ in range(4)]
        worker = context.Process(target=_load, args=(queue, seed))
        worker.start()
        batch = queue.get(timeout=60)
        worker.join(timeout=60)
        assert worker.exitcode == 0
        np.testing.assert_array_equal(
            batch, np.random.default_rng(seed).normal(size=(10, 16)).astype("f")
        )
        for found in running:
            np.testing.assert_array_equal(np.asarray(found), expected)


def test_a_kernel_that_does_not_compile_is_an_error():
    with pytest.raises(RuntimeError, match="expected instruction opcode"):
        machine.register("eqfuse_broken", "define void @step() { nonsense }\n")
    assert "eqfuse_broken" not in machine._registered


@pytest.mark.parametrize(("mul", "wide_lanes"), [(32, 16), (24, 8)])
def test_kernels_recorded_for_two_machines(mul, wide_lanes):
    """The second has wider vectors, but where its copies of rows would have another size."""
    form = derivatives(product_form(f"{mul}x0e+{mul}x1o"))["double"]
    written = functools.partial(generate, form, "float32")
    machines = machine.Machine(32, 16), machine.Machine(64, 32)
    with machine.recording(machines, "_here") as texts:
        module = machine.write(written)
        name = machine.register(module.name, module.text, module.others)
    assert (module.results == written(machines[1]).results) == (mul == 32)
    assert texts == {name: (written(machines[0]).text, *module.others)}
    lanes = [
        collections.Counter(re.findall(r"load <(\d+) x float>", text)).most_common(1)[0][0]
        for text in texts[name]
    ]
    assert lanes == ["8", str(wide_lanes)]
    assert name.endswith("_here")
    assert machine.write(written).others == ()


def test_cache_of_other_processors_and_of_other_caches_is_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    text = "define i64 @f() {\n  ret i64 1\n}\n"
    machine.compiled(text)
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "another")
    machine.compiled(text)
    monkeypatch.setattr(_host, "caches", lambda: (1 << 20, 1 << 24))
    for _ in range(2):
        machine.compiled(text)
    assert len([*(tmp_path / "cpu").glob("*.o")]) == 3
