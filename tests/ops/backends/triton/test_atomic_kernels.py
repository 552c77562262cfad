"""Plans of kernels: receivers add to rows of senders atomically, if allowed; programs are warps.

Results of each form: test_interpreted_kernels.py.
"""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu.cases import CASES
from eqfuse import ops
from eqfuse.ops.ir.form import Index, derivatives
from eqfuse.ops.primitives import forms, lowering, measured, measuring
from tests.ops import tiers
from tests.ops.cases import SMALL, product_form

pytest.importorskip("triton", reason="the interpreter is part of triton")
import tests.interpreter  # noqa: F401  (runs backend "triton" on this CPU)
from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.backends.triton.compile import compile_kernel

VARIABLE = "EQFUSE_DETERMINISTIC"
ODD = product_form("5x0e+3x1o")


def sources(form, chosen) -> list[str]:
    """Return the texts of the kernels of a plan."""
    sizes, indices = (len(SMALL.pairs), SMALL.num_nodes), forms.indices_of(SMALL.edges())
    shapes = [jax.ShapeDtypeStruct(form.shape(o, *sizes), "float32") for o in form.inputs]
    run = jax.make_jaxpr(lambda *arrays: forms.by_plan(form, *sizes, chosen, arrays, indices))
    return [spec.source for spec in lowering._specs(run(*shapes).jaxpr)]


def test_sums_of_bfloat16_are_in_float32():
    form = derivatives(ODD)["backward"]
    [kernel] = plan.kernels(form, "bfloat16", -1)
    assert dict(zip(kernel.outputs, kernel.spec.output_types, strict=True)) == {
        o: "*fp32" if operand.index is Index.SENDER else "*bf16"
        for o, operand in enumerate(form.outputs)
    }


def test_they_are_plans_only_where_the_user_allows_it(monkeypatch):
    form = derivatives(ODD)["backward"]
    problems = []
    for value in ("1", "0", ""):
        monkeypatch.setenv(VARIABLE, value)
        problems.append(measured.Problem.of(form, 6, 5, "triton", jnp.dtype("float32")))
    plans = [forms.plans(problem) for problem in problems]
    assert plans[0] == plans[2]
    assert (-1, 32, 1) in plans[0]  # which repeats, too
    assert (1, 32, 2) in plans[0]
    assert plans[1] == [*plans[0], (-1,)]
    assert not any("atomic" in text for chosen in plans[0] for text in sources(form, chosen))
    assert any("atomic" in text for text in sources(form, (-1,)))
    names = [problem.name for problem in problems]  # under which results are kept
    assert names[0] == names[2] != names[1]
    assert "sums in any order" in names[1]
    of_sums = measured.Problem.of(ODD, 6, 5, "triton", jnp.dtype("float32"))
    assert min(forms.plans(of_sums)) > (0,)  # of receivers alone
    monkeypatch.setenv(VARIABLE, "no")
    with pytest.raises(ValueError, match=f"{VARIABLE} must be 0 or 1, got 'no'"):
        measured.Problem.of(form, 6, 5, "triton", jnp.dtype("float32"))


def operands(irreps: str):
    x = e3nn.normal(irreps, jax.random.key(0), (SMALL.num_nodes,))
    return x, e3nn.normal("0e+1o", jax.random.key(1), (len(SMALL.pairs),))


def layer(x, y, w, edges, backend):
    """Return a product, a Linear of some parameters and a gate."""
    module = ops.TensorProductLinearGate("5x0e+2x1o", backend=backend)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x, y, w, edges=edges)
    params = jax.tree.map(lambda a: jnp.sin(jnp.arange(1.0, a.size + 1)).reshape(a.shape), shapes)
    return module.apply(params, x, y, w, edges=edges)


def tabulated(x, y, table, edges, backend):
    """Return the product with weights in bfloat16 that are read from a table [2, 4, width]."""
    rows = ops.group_by_interval(jnp.arange(edges.num_edges) % 2, 2)
    how = {"dtype": jnp.bfloat16, "backend": backend}
    [weights] = ops.interpolate([table], rows, y.array, **how)
    assert weights.dtype == jnp.bfloat16
    return ops.graph_tensor_product(x, y, weights, edges=edges, backend=backend)


def gradients(backend: str, op=ops.graph_tensor_product):
    """Return a function of gradients, and those of a function of them, as forces need them."""
    graph = SMALL.edges()

    def loss(*args):
        out = op(*args, edges=graph, backend=backend).array
        return jnp.sum(jnp.sin(out))

    def first(*args):
        return jax.grad(loss, tuple(range(len(args))))(*args)

    def second(*args):
        return sum(jnp.sum(jnp.cos(g.astype("float32"))) for g in jax.tree.leaves(first(*args)))

    def both(*args):
        return first(*args), jax.grad(second, tuple(range(len(args))))(*args)

    return jax.jit(both)


def assert_as_e3nn(x, y):
    results = gradients("triton")(x, y)
    for a, b in zip(*map(jax.tree.leaves, (results, gradients("e3nn")(x, y))), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=4e-6 * float(jnp.abs(b).max()))


@pytest.mark.parametrize(
    "chosen", [(1, 32), (2, 32), (-1, 32), (-1, 0, 1), (-2, 32, 1), (1, 32, 2), (1, 0, 0, 2)]
)
def test_plans_give_what_e3nn_gives(chosen, monkeypatch):
    monkeypatch.setattr(forms, "measured_plan", lambda *_: chosen)
    assert_as_e3nn(*operands("40x0e+33x1o"))


@pytest.mark.parametrize(
    ("op", "roundings"), [(ops.graph_tensor_product, 2), (layer, 4), (tabulated, 4)]
)
@pytest.mark.parametrize("chosen", [None, (-1, 32, 1), (1, 32, 2)])
def test_weights_in_bfloat16_are_summed_in_float32(chosen, op, roundings, monkeypatch):
    """As e3nn has them, widened before; their gradients are rounded.

    Those of second order are sums of two terms: with e3nn's, four roundings at most.
    """
    monkeypatch.setattr(forms, "measured_plan", lambda form, *_: chosen if form.on_graph else None)
    x, y = operands("3x0e+2x1o")
    keep = ["0e", "1o"] if op is layer else None
    product = ops.tensor_product(x.irreps, y.irreps, filter_ir_out=keep)
    shape = (2, 4) if op is tabulated else (len(SMALL.pairs),)
    w = jax.random.normal(jax.random.key(2), (*shape, product.num_irreps))
    w = w if op is tabulated else w.astype(jnp.bfloat16)
    specs = [*lowering._specs(lowering._used(gradients("triton", op), (x, y, w)))]
    assert max(spec.input_types.count("*bf16") for spec in specs) >= 2  # with their tangents
    read = [spec for spec in specs if spec.name.startswith(("out_0_row", "dtable"))]
    assert bool(read) == (op is tabulated)
    assert all("*bf16" in spec.input_types + spec.output_types for spec in read)
    results, expected = (jax.tree.leaves(gradients(b, op)(x, y, w)) for b in ("triton", "e3nn"))
    assert [a.dtype.name for a in results] == 2 * ["float32", "float32", w.dtype.name]
    for n, (a, b) in enumerate(zip(results, expected, strict=True)):
        is_exact = a.dtype == jnp.float32 and (op is not tabulated or n < 3)
        error = 4e-6 if is_exact else roundings * 2.0**-9
        a, b = (np.asarray(side, np.float32) for side in (a, b))
        np.testing.assert_allclose(a, b, rtol=0, atol=error * abs(b).max())


def test_weights_in_bfloat16_are_widened_where_the_rest_is_float64():
    with jax.enable_x64(True):
        x, y = operands("3x0e+2x1o")
        x, y = x.astype("float32"), y.astype("float32")
        skip = e3nn.normal("5x0e+2x1o", jax.random.key(3), (SMALL.num_nodes,)).astype("float64")
        product = ops.tensor_product(x.irreps, y.irreps, filter_ir_out=["0e", "1o"])
        w = jnp.ones((len(SMALL.pairs), product.num_irreps), jnp.bfloat16)
        found = []
        for backend in ("triton", "e3nn"):
            module = ops.TensorProductLinear("5x0e+2x1o", backend=backend)
            given = {"edges": SMALL.edges(), "skip": skip}
            found.append(module.init_with_output(jax.random.key(0), x, y, w, **given)[0].array)
        assert found[0].dtype == found[1].dtype == jnp.float64
        np.testing.assert_allclose(*found, rtol=0, atol=4e-6)


def test_gradients_and_their_gradients_where_it_was_faster(monkeypatch, tmp_path):
    """Chosen by a clock; without the variable, what was measured with it does not count."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "_results", {})
    monkeypatch.setattr(measuring, "MOST_SETS", 1)
    x, y = operands("3x0e+2x1o")

    def atomic() -> int:
        used = lowering._used(gradients("triton"), (x, y))
        return sum("tl.atomic_add" in spec.source for spec in lowering._specs(used))

    def timer(calls):
        return {name: 0.5 if name == "-1" else 1.0 for name in calls}

    monkeypatch.setenv(VARIABLE, "0")
    with ops.recorded() as calls:
        found = ops.measure(gradients("triton"), x, y, timer=timer)
    assert all(m.result.left_out == {} for m in found)
    assert f"may not repeat: {VARIABLE} is 0" in calls[0].why
    assert atomic() >= 2
    assert_as_e3nn(x, y)
    monkeypatch.delenv(VARIABLE)
    assert atomic() == 0
    with ops.recorded() as calls:
        jax.eval_shape(gradients("triton"), x, y)
    assert VARIABLE not in calls[0].why


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize(
    "name", ["nequip-64-l2", pytest.param("mace-large", marks=pytest.mark.slow)]
)
def test_one_kernel_of_a_backward_pass_does_not_spill(name, target):
    """NequIP of 64 channels, and MACE of 128 with l = 3."""
    [kernel] = plan.kernels(CASES[name].forms()["backward"], "float32", -1)
    compiled = compile_kernel(kernel.spec, target)
    assert compiled.spilled_bytes == 0
    instruction = "global_atomic_add_f32" if target == "gfx942" else "red.global"
    assert instruction in compiled.assembly.replace("red.relaxed.gpu.global", "red.global")


@pytest.mark.parametrize("name", tiers.slow_unless(["nequip-64-l2"], "nequip-64-l2", "mace-large"))
def test_programs_of_a_warp_have_no_barriers(name):
    """The kernel of the rule has 10 and 17 of them for each edge."""
    [kernel] = plan.kernels(CASES[name].forms()["backward"], "float32", 1, 32)
    compiled = compile_kernel(kernel.spec, "sm_90")
    assert (compiled.num_warps, compiled.spilled_bytes) == (1, 0)
    assert "bar.sync" not in compiled.assembly
