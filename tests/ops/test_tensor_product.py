"""`tensor_product` against e3nn-jax's."""

import numpy as np
import pytest

from tests.ops.cases import TENSOR_PRODUCT
from tests.ops.parity import BACKENDS, assert_parity


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", TENSOR_PRODUCT)
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(TENSOR_PRODUCT[name], dtype, backend)
