"""Compile all that is measured, for this device or for an H100 that is not here, into a folder.

Each side of a case becomes an executable of XLA with our kernels in it. `measure` loads them, and
neither traces nor compiles, nor needs eqfuse, e3nn-jax or Triton. What the folder has is kept, so
that an interrupted call goes on where it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import math
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable

from benchmarks.gpu import sides
from benchmarks.launches import device
from eqfuse import ops
from eqfuse.ops.backends.triton.runtime import common_target

MOST_BYTES = 1 << 26
"""Of an array that is stored: edges and such."""


def run(folder: pathlib.Path, only: str = "", tiny: bool = False) -> None:
    """Compile the cases whose group and name hold a text; print seconds or errors of each side."""
    here = jax.devices()[0]
    builder = Builder(folder, here if tiny or here.platform == "gpu" else device(), tiny)
    listed = []
    # what XLA reads from JAX's cache, it writes without its functions
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    for group, cases in sides.groups(tiny).items():
        for case in cases:
            path = folder / "entries" / f"{digest(f'{group} {case.name}'.encode())}.json"
            listed.append(path.stem)
            if only not in f"{group} {case.name}" or path.exists():
                continue
            print(f"{group}: {case.name}", flush=True)
            entry = {"group": group, **builder.entry(case)}
            path.write_text(json.dumps(entry))
            jax.clear_caches()
    (folder / "order.json").write_text(json.dumps(listed))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


class Builder:
    """Writes executables and arrays into a folder."""

    def __init__(self, folder: pathlib.Path, target, tiny: bool):
        self._folder, self._is_gpu = folder, not tiny
        self._target = common_target([target])
        self._sharding = jax.sharding.SingleDeviceSharding(target)
        for name in ("executables", "arrays", "entries"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def entry(self, case: sides.Case) -> dict:
        """Return a case as `measure` reads it."""
        entry = {"case": case.name, "tolerance": case.tolerance, "products": case.products}
        entry["sides"] = []
        for side in case.sides:
            start = time.perf_counter()
            try:
                with jax.enable_x64(side.x64), jax.default_matmul_precision(side.matmuls):
                    function, args = side.build()
                    leaves, tree = jax.tree.flatten(args)
                    if "leaves" not in entry:
                        entry["leaves"] = [self._leaf(leaf) for leaf in leaves]
                    found = self._executable(_flat(function, tree, side.x64), leaves)
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
            found["compile_s"] = round(time.perf_counter() - start, 1)
            print(f"  {side.name}: {found.get('error', found['compile_s'])}", flush=True)
            entry["sides"].append({"side": side.name, **found})
        return entry

    def _leaf(self, leaf) -> dict:
        """Return how an argument is made: numbers of a file, zeros, or normal ones."""
        made = {"shape": list(np.shape(leaf)), "dtype": jnp.dtype(leaf.dtype).name}
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return made
        array = np.ascontiguousarray(leaf)
        if not np.any(array):
            return made | {"zeros": True}
        if array.nbytes > MOST_BYTES:
            raise ValueError(f"{array.nbytes} bytes are too many to carry")
        buffer = io.BytesIO()
        np.save(buffer, array)
        name = digest(buffer.getvalue())
        (self._folder / "arrays" / name).write_bytes(lzma.compress(buffer.getvalue()))
        return made | {"stored": name}

    def _executable(self, function, leaves) -> dict:
        structs = [jax.ShapeDtypeStruct(np.shape(a), a.dtype) for a in leaves]
        if self._is_gpu:
            with contextlib.suppress(RuntimeError):  # what does not compile says so below
                ops.compile_ahead(function, *structs, target=self._target)
        structs = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=self._sharding) for s in structs]
        platforms = ("cuda",) if self._is_gpu else ("cpu",)
        lowered = jax.jit(function).trace(*structs).lower(lowering_platforms=platforms)
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            # XLA's Triton finds no tiles for some matmuls of e3nn-jax, if the GPU is not here
            if "tile sizes" not in str(error):
                raise
            print("  without Triton's matmuls of XLA:", flush=True)
            compiled = lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})
        content = lzma.compress(serialize_executable.serialize(compiled)[0])
        name, memory = digest(content), compiled.memory_analysis()
        (self._folder / "executables" / name).write_bytes(content)
        outputs = len(jax.tree.leaves(compiled.out_info))
        return {"executable": name, "outputs": outputs, "scratch": memory.temp_size_in_bytes}


def _flat(function, tree, x64: bool):
    """Return a function of leaves that returns leaves, in float64 if that is asked for."""

    def widened(leaf):
        is_float = x64 and jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype("float64") if is_float else leaf

    def prebuilt(*leaves):
        args = jax.tree.unflatten(tree, [*map(widened, leaves)])
        return tuple(jax.tree.leaves(function(*args)))

    return prebuilt
