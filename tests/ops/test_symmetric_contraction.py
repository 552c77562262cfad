"""`symmetric_contraction` against a direct evaluation with e3nn-jax's reduced products."""

import dataclasses
import functools
import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import random_arrays
from tests.ops.parity import BACKENDS, assert_one_rounding, assert_parity, error, largest, only


@dataclasses.dataclass(frozen=True)
class Case:
    """A contraction; with `num_indices`, the weights are chosen by an index of each row."""

    irreps: str
    irreps_out: str
    correlation: int
    shape: tuple[int, ...] = (4,)
    num_indices: int | None = 3

    names = ("x", "w")

    @property
    def factors(self):
        """Return of how many values a term is the product: x as often as it occurs, and w."""
        return self.correlation + 1

    @property
    def sums(self):
        """Return over how many rows the gradient of each operand is a sum."""
        return {"w": math.prod(self.shape)} if self.num_indices == 1 else {}

    @functools.cached_property
    def paths(self):
        return ops.symmetric_contraction_paths(self.irreps, self.irreps_out, self.correlation)

    @property
    def index(self):
        if self.num_indices is None:
            return None
        return np.random.default_rng(7).integers(self.num_indices, size=self.shape)

    def shapes(self):
        x, out = e3nn.Irreps(self.irreps), e3nn.Irreps(self.irreps_out)
        lead = self.shape if self.num_indices is None else (self.num_indices,)
        weights = (*lead, sum(count for *_, count in self.paths), x[0].mul)
        return (*self.shape, x.dim), weights, (*self.shape, out.dim)

    def operands(self, seed: int = 0, held_by=np.float32):
        return random_arrays(self.shapes()[:-1], seed, held_by)

    def function(self, backend: str):
        return lambda x, w: (
            ops.symmetric_contraction(
                e3nn.IrrepsArray(self.irreps, x),
                w,
                self.index,
                irreps_out=self.irreps_out,
                correlation=self.correlation,
                backend=backend,
            ).array
        )

    def reference(self, x, w):
        """Return every monomial of x, then the basis of all irreps at once, then the weights."""
        irreps, wanted = e3nn.Irreps(self.irreps), e3nn.Irreps(self.irreps_out)
        if self.index is not None:
            w = w[self.index]
        mul = irreps[0].mul
        single = e3nn.Irreps([(1, ir) for _, ir in irreps])
        blocks = [
            x[..., s].reshape(*self.shape, mul, ir.dim)
            for s, (_, ir) in zip(irreps.slices(), irreps, strict=True)
        ]
        x = jnp.concatenate(blocks, axis=-1)  # [..., u, d]
        products, found = x, {}
        for degree in range(1, self.correlation + 1):
            if degree > 1:
                products = products[..., :, None] * x[..., None, :]
                products = products.reshape(*x.shape[:-1], x.shape[-1] ** degree)
            # one irrep that is there for certain, beside those that are wanted
            top = max((ir for _, ir in irreps), key=lambda ir: ir.l)
            keep = {e3nn.Irrep(degree * top.l, top.p**degree), *(ir for _, ir in wanted)}
            basis = e3nn.reduced_symmetric_tensor_product_basis(single, degree, keep_ir=list(keep))
            flat = jnp.asarray(basis.array, x.dtype).reshape(-1, basis.irreps.dim)
            maps = jnp.einsum("...i,ij->...j", products, flat, precision="highest")
            for s, (count, ir) in zip(basis.irreps.slices(), basis.irreps, strict=True):
                found[ir, degree] = maps[..., s].reshape(*x.shape[:-1], count, ir.dim)
        outputs, start = [], 0
        for _, ir in wanted:
            total = jnp.zeros((*x.shape[:-1], ir.dim), x.dtype)
            for degree in range(1, self.correlation + 1):
                if (ir, degree) in found:
                    stop = start + found[ir, degree].shape[-2]
                    weights = jnp.moveaxis(w[..., start:stop, :], -1, -2)[..., None]
                    total += (weights * found[ir, degree]).sum(-2)
                    start = stop
            outputs.append(total.reshape(*self.shape, mul * ir.dim))
        return jnp.concatenate(outputs, axis=-1)


CASES = {
    "one-factor": Case("4x0e+4x1o", "4x1o+4x0e", 1),
    "two-factors-both-parities": Case("3x0e+3x0o+3x1o+3x1e", "3x0e+3x0o+3x1e", 2),
    "three-factors": Case("2x0e+2x1o+2x2e", "2x0e+2x1o", 3),
    "three-factors-pseudoscalar": Case("2x1o+2x1e", "2x0o+2x0e", 3),
    "channels-33": Case("33x0e+33x1o", "33x0e+33x1o", 2),
    "one-channel": Case("1x0e+1x1o", "1x1o", 3, shape=(33,)),
    "repeated": Case("2x1o+2x0e+2x1o", "2x1o+2x0e+2x0e", 2),
    "own-weights": Case("3x0e+3x1o", "3x0e", 3, num_indices=None),
    "one-index": Case("3x0e+3x1o", "3x0e+3x1o", 3, num_indices=1),
    "one-index-axes": Case("3x0e+3x1o", "3x1o", 2, shape=(2, 3), num_indices=1),
    "axes": Case("3x0e+3x1o", "3x0e", 2, shape=(2, 3)),
    "no-axes": Case("3x0e+3x1o", "3x1o", 2, shape=()),
    "no-rows": Case("3x0e+3x1o", "3x0e", 3, shape=(0,)),
}
LARGE = Case("2x0e+2x1o+2x2e+2x3o", "2x0e+2x1o+2x2e", 3)


CORE = {
    "two-factors-both-parities",
    "three-factors",
    "channels-33",
    "own-weights",
    "one-index",
    "no-rows",
}


@tiers.value_and_derivatives(CASES, CORE, slow={"one-factor", "axes", "no-axes", "one-index-axes"})
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(CASES[name], dtype, backend)


@pytest.mark.parametrize("backend", tiers.KERNELS)
def test_bfloat16_is_rounded_once(backend):
    assert_one_rounding(CASES["own-weights"], jnp.bfloat16, backend)


@pytest.mark.parametrize("name", tiers.slow_unless(CORE, *CASES))
def test_the_backend_e3nn_is_the_definition(name):
    case = CASES[name]
    with jax.enable_x64(True):
        found = np.asarray(case.function("e3nn")(*case.operands()))
        expected = np.asarray(case.reference(*case.operands()))
    assert error(found, expected) <= 1e-13 * largest(expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_three_factors_up_to_l_3(backend):
    """The contraction of the largest published MACE, and its gradients."""
    x, w = LARGE.operands()
    [cotangent] = random_arrays(LARGE.shapes()[-1:], 2)

    def both(function):
        value, vjp = jax.vjp(function, x, w)
        return value, *vjp(cotangent)

    with jax.enable_x64(True):
        expected = jax.device_get(jax.jit(lambda: both(LARGE.reference))())
        with only(backend):
            found = jax.device_get(jax.jit(lambda: both(LARGE.function(backend)))())
    for a, b in zip(found, expected, strict=True):
        assert error(a, b) <= 1e-12 * largest(b)


@pytest.mark.parametrize("backend", tiers.KERNELS)
@pytest.mark.parametrize("case", [CASES["three-factors-pseudoscalar"], LARGE], ids=["o3", "l3"])
def test_equivariance(case, backend):
    matrix, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))
    x, w = case.operands()
    irreps, irreps_out = e3nn.Irreps(case.irreps), e3nn.Irreps(case.irreps_out)
    with jax.enable_x64(True), only(backend):
        function = jax.jit(case.function(backend))
        out = np.asarray(function(x, w))
        for rotation in (matrix, -matrix):
            d_x, d_out = (np.asarray(i.D_from_matrix(rotation)) for i in (irreps, irreps_out))
            found = np.asarray(function(x @ d_x.T, w))
            assert error(found, out @ d_out.T) <= 1e-12 * largest(out)


def test_the_square_of_a_vector_by_hand():
    x = e3nn.IrrepsArray("2x1o", jnp.array([[1.0, 2.0, 2.0, 0.0, 3.0, 4.0]]))
    weights = jnp.array([[[2.0, -1.0]]])
    out = ops.symmetric_contraction(
        x, weights, jnp.array([0]), irreps_out="2x0e", correlation=2, backend="xla"
    )
    # (x . x) / sqrt(3), the map of norm one
    np.testing.assert_allclose(out.array, [[2 * 9 / 3**0.5, -25 / 3**0.5]], rtol=1e-6)


def test_vmap_is_a_batch():
    case = CASES["axes"]
    x, w = (a.astype(np.float32) for a in case.operands())
    whole = case.function("xla")(x, w)
    one = dataclasses.replace(case, shape=(3,), num_indices=None)
    by_row = jax.vmap(one.function("xla"))(x, w[case.index])
    np.testing.assert_array_equal(by_row, whole)


X = e3nn.IrrepsArray("2x0e+2x1o", np.ones((4, 8), np.float32))
W = np.ones((3, 5, 2), np.float32)  # 1 + 2 + 2 paths to 0e
I = np.zeros(4, int)


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((X, W[:, :4], I), {}, r"\[num_indices, 5 paths, 2 channels\], got shape \(3, 4, 2\)"),
        ((X, W[0, 1:]), {}, r"\[..., 5 paths, 2 channels\], got shape \(4, 2\)"),
        ((X, W, I.astype(float)), {}, "index must hold integers, got float"),
        ((X, W, I), {"irreps_out": "3x0e"}, r"one multiplicity.*2x0e\+2x1o and 3x0e"),
        ((X[:, :5], W, I), {}, r"one multiplicity.*2x0e\+1x1o and 2x0e"),
        ((X, W, I), {"irreps_out": "2x0o"}, "holds 0o, which no symmetric product of up to 3"),
        ((X, W, I), {"correlation": 0}, "correlation must be at least 1, got 0"),
        ((X, W, I), {"backend": "cuda"}, "backend 'cuda' is unknown"),
    ],
)
def test_errors_name_what_is_wrong(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        ops.symmetric_contraction(
            *arguments, **{"irreps_out": "2x0e", "backend": "xla", **keywords}
        )
