"""What kernels choose by the caches of the machine, for two machines that are made up."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops import _processors
from eqfuse.ops.backends.llvm import form as codegen
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.layout import Machine, Plan
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Index

MIB = 1 << 20
LARGE, SMALL = Machine(64, 32, 2 * MIB, 480 * MIB), Machine(64, 32, MIB // 2, 8 * MIB)
X, Y = "32x0e+32x1o+32x2e", "0e+1o"


def form(x=X, y=Y):
    return products.tensor_product(e3nn.Irreps(x), e3nn.Irreps(y), None, "component").form


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({2: "2048K", 3: "491520K"}, (2 * MIB, 480 * MIB)),
        ({2: "1M", 3: "32M"}, (MIB, 32 * MIB)),
        ({2: "262144"}, (MIB // 4, _processors.DEFAULT_CACHES[1])),
        ({2: "unknown", 3: ""}, _processors.DEFAULT_CACHES),
        ({}, _processors.DEFAULT_CACHES),
    ],
)
def test_caches_that_linux_tells(tmp_path, sizes, expected):
    files = {"level": "1", "type": "Data", "size": "48K"}, {"level": "2", "type": "Instruction"}
    known = [{"level": str(n), "type": "Unified", "size": s} for n, s in sizes.items()]
    for k, content in enumerate([*files, *known]):
        (tmp_path / f"index{k}").mkdir()
        for name, text in content.items():
            (tmp_path / f"index{k}" / name).write_text(f"{text}\n")
    assert _processors.caches(str(tmp_path)) == expected
    assert machine.machine().level2 == _processors.caches()[0]


@pytest.mark.parametrize(("made_up", "num_bytes"), [(LARGE, 16 * MIB), (SMALL, 4 * MIB)])
def test_outputs_are_streamed_that_the_caches_do_not_hold(made_up, num_bytes):
    product = form()
    text = codegen.generate(product, "float32", made_up).text
    least = -(-num_bytes // (4 * product.outputs[0].size))
    assert f"icmp sge i64 %rows, {least}\n" in text


def test_blocks_have_as_many_rows_as_level_2_holds():
    product = form("256x0e+256x1o+256x2e", "0e+1o+2e")
    blocks = {
        made_up: Plan(product, Index.ROW, [0], {}, made_up, "float32").block
        for made_up in (LARGE, SMALL)
    }
    row_bytes = 4 * (product.inputs[0].size + product.outputs[0].size)
    assert blocks == {m: max(1, m.level2 // 8 // row_bytes) for m in (LARGE, SMALL)}
    assert blocks[LARGE] > blocks[SMALL]


def test_kernels_are_kept_apart_by_caches(tmp_path, monkeypatch):
    """By their text, where they differ, and by the processor where they do not."""
    texts = [codegen.generate(form(), "float32", m) for m in (LARGE, SMALL)]
    assert texts[0].name != texts[1].name
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    text = "define void @nothing() {\n  ret void\n}\n"
    for caches in ((LARGE.level2, LARGE.level3), (SMALL.level2, SMALL.level3)) * 2:
        monkeypatch.setattr(_processors, "caches", lambda caches=caches: caches)
        machine.compiled(text)
    assert len(list((tmp_path / "cpu").glob("*.o"))) == 2


def test_results_are_the_same_for_any_caches(monkeypatch):
    rng = np.random.default_rng(0)
    irreps = e3nn.Irreps("100x0e+100x1o"), e3nn.Irreps(Y)
    arrays = [jnp.asarray(rng.normal(size=(40, i.dim)), jnp.float32) for i in irreps]

    def gradients(*arrays):
        def product(*arrays):
            return ops.tensor_product(*map(e3nn.IrrepsArray, irreps, arrays), backend="llvm").array

        out, back = jax.vjp(product, *arrays)
        return out, back(jnp.cos(out))

    found = []
    for level2 in (2 * MIB, MIB // 64):
        here = dataclasses.replace(machine.machine(), level2=level2)
        with monkeypatch.context() as patch:
            patch.setattr(machine, "machine", lambda here=here: here)
            jax.clear_caches()
            found.append(jax.tree.map(np.asarray, jax.jit(gradients)(*arrays)))
    jax.clear_caches()
    assert jax.tree.all(jax.tree.map(np.array_equal, *found))
