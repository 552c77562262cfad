"""Each distinct kernel of a network is compiled once, and by the next process not at all."""

import subprocess
import sys

import pytest

LAYERS = 10

# trains on forces through identical layers and asks for their kernels as the lowering does, one
# equation after the other; prints how many there are, how many are distinct, and the counts
PROGRAM = f"""
import e3nn_jax as e3nn, jax, jax.numpy as jnp, numpy as np
from eqfuse import ops
from eqfuse.ops.primitives.lowering import _specs
from eqfuse.ops.backends.triton.compile import compile_counts, compile_kernel

irreps, sh = "4x0e+4x1o", "0e+1o"
edges = ops.Edges.from_arrays(np.array([0, 1, 2]), np.array([1, 2, 0]), 3)
num_weights = ops.graph_tensor_product(irreps, sh, filter_ir_out="0e+1o").num_irreps

def energy(y, w):
    x = e3nn.IrrepsArray(irreps, jnp.ones((3, 16), y.dtype))
    for layer in range({LAYERS}):
        m = ops.graph_tensor_product(
            x, e3nn.IrrepsArray(sh, y), w[layer], edges, filter_ir_out="0e+1o", backend="triton"
        )
        x = e3nn.IrrepsArray(irreps, m.array[:, :16])
    return jnp.sum(x.array**2)

def loss(w, y):
    return jnp.sum(jax.grad(energy)(y, w) ** 2)

shapes = [({LAYERS}, 3, num_weights), (3, 4)]
args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
specs = list(_specs(jax.jit(jax.grad(loss)).trace(*args).jaxpr.jaxpr))
for spec in specs:
    compile_kernel(spec, "sm_90")
counts = compile_counts()
print(len(specs), len(set(specs)), counts.compiled, counts.in_memory, counts.on_disk)
"""


def counts(folder, monkeypatch):
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(folder))
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    return tuple(map(int, run.stdout.split()))


@pytest.mark.slow
def test_ten_layers_compile_each_kernel_once_and_a_second_process_none(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")
    asked, distinct, compiled, in_memory, on_disk = counts(tmp_path, monkeypatch)
    assert asked >= 3 * LAYERS  # forward, backward and backward of backward of every layer
    # the first layer, whose x is constant, and the last have their own backward passes
    assert distinct <= 12
    assert (compiled, in_memory, on_disk) == (distinct, asked - distinct, 0)
    entries = sorted((tmp_path / "compiled").iterdir())
    assert len(entries) == distinct

    assert counts(tmp_path, monkeypatch) == (asked, distinct, 0, asked - distinct, distinct)

    entries[0].write_text(entries[0].read_text()[:-100])
    assert counts(tmp_path, monkeypatch) == (asked, distinct, 1, asked - distinct, distinct - 1)
