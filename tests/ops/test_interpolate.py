"""`interpolate` against its definition in jax.numpy, with derivatives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import random_arrays
from tests.ops.parity import BACKENDS, assert_one_rounding, assert_parity

all_backends = pytest.mark.parametrize("backend", BACKENDS)


@dataclasses.dataclass(frozen=True)
class Interpolation:
    """Tables of `widths`, read by rows of these intervals; results side by side.

    Interval 1 has most rows, interval 2 none.
    """

    widths: tuple[int, ...]
    order: int = 6
    intervals: tuple[int, ...] = (1, 0, 1, 3, 1, 1)
    num_intervals: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        return ("weights", *(f"table {k}" for k in range(len(self.widths))))

    def shapes(self):
        rows = len(self.intervals)
        tables = [(self.num_intervals, self.order, width) for width in self.widths]
        return (rows, self.order), *tables, (rows, sum(self.widths))

    def operands(self, seed: int = 0, held_by=np.float32):
        return random_arrays(self.shapes()[:-1], seed, held_by)

    def function(self, backend: str):
        def function(weights, *tables):
            index = jnp.asarray(self.intervals, jnp.int32)
            intervals = ops.group_by_interval(index, self.num_intervals)
            return jnp.concatenate(
                ops.interpolate(tables, intervals, weights, backend=backend), axis=1
            )

        return function

    def reference(self, weights, *tables):
        rows = jax.nn.one_hot(
            np.array(self.intervals, int), self.num_intervals, dtype=weights.dtype
        )
        return jnp.concatenate(
            [jnp.einsum("ek,en,knu->eu", rows, weights, table) for table in tables], axis=1
        )


CASES = {
    "one table": Interpolation((33,)),
    "two tables": Interpolation((5, 2)),
    "linear": Interpolation((3,), order=2),
    "no rows": Interpolation((3,), intervals=()),
}
CORE = {"two tables"}


@tiers.value_and_derivatives(CASES, CORE)
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(CASES[name], dtype, backend)


@pytest.mark.parametrize("name", CASES)
def test_the_backend_e3nn_is_the_same(name):
    case = CASES[name]
    arrays = [a.astype(np.float32) for a in case.operands()]
    found = case.function("e3nn")(*arrays)
    np.testing.assert_allclose(found, case.reference(*arrays), rtol=0, atol=2e-6)


@all_backends
def test_bfloat16_is_rounded_once(backend):
    assert_one_rounding(CASES["two tables"], jnp.bfloat16, backend)


@all_backends
def test_vmap(backend):
    case = CASES["two tables"]
    arrays = [a.astype(np.float32) for a in case.operands()]
    batch = [np.stack([a, 2 * a]) for a in arrays]
    found = jax.jit(jax.vmap(case.function(backend)))(*batch)
    expected = case.reference(*arrays)
    np.testing.assert_allclose(found, np.stack([expected, 4 * expected]), rtol=0, atol=1e-5)


def test_rows_are_grouped_by_interval_in_their_order():
    index = np.array([3, 1, 3, 0, 1, 3])
    for make in (ops.group_by_interval, jax.jit(ops.group_by_interval, static_argnums=1)):
        found = make(jnp.asarray(index, jnp.int32), 5)
        np.testing.assert_array_equal(found.sender_order, [3, 1, 4, 0, 2, 5])
        np.testing.assert_array_equal(found.sender_ptr, [0, 1, 3, 3, 6, 6])
        np.testing.assert_array_equal(found.senders, index)
        assert found.num_nodes == 5


@pytest.mark.parametrize(
    ("tables", "weights", "message"),
    [
        ([], (6, 6), r"tables must be \[4 intervals, order, width\] of order 6, got shapes \[\]"),
        ([(3, 6, 2)], (6, 6), r"got shapes \[\(3, 6, 2\)\]"),
        ([(4, 5, 2)], (6, 6), r"of order 6, got shapes \[\(4, 5, 2\)\]"),
        ([(4, 6, 2)], (5, 6), r"weights must be \[6 rows, order\], got shape \(5, 6\)"),
    ],
)
def test_errors_name_what_is_wrong(tables, weights, message):
    intervals = ops.group_by_interval(jnp.zeros(6, jnp.int32), 4)
    with pytest.raises(ValueError, match=message):
        ops.interpolate([jnp.ones(t) for t in tables], intervals, jnp.ones(weights), backend="xla")
