"""`graph_tensor_product` against gather, e3nn-jax's tensor product, weights and scatter."""

import numpy as np
import pytest

from tests.ops.cases import GRAPH
from tests.ops.parity import BACKENDS, assert_parity


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", GRAPH)
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(GRAPH[name], dtype, backend)
