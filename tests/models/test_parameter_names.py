"""Names of parameters that networks were saved with; another name would not find them."""

import jax
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models.mace import MACE
from eqfuse.models.nequip import NequIP

SETTINGS = {
    "num_species": 2,
    "layers": 2,
    "channels": 4,
    "lmax": 2,
    "parity": False,
    "cutoff": 5.0,
    "avg_num_neighbors": 2.0,
    "backend": "xla",
}
# the layers compute no product 1e, and count none
NAMES = {
    NequIP: ("linear_down", ["w[0,0] 12x0e,12x0e", "w[1,1] 16x1o,4x1o", "w[2,2] 16x2e,4x2e"]),
    MACE: ("linear_basis", ["w[0,0] 8x0e,4x0e", "w[1,1] 12x1o,4x1o", "w[2,2] 8x2e,4x2e"]),
}


@pytest.mark.parametrize("cls", NAMES)
def test_the_products_of_a_layer(cls):
    vectors = np.ones((2, 3), np.float32)
    edges = ops.Edges.from_arrays([0, 1], [1, 0], 2)
    module = cls(irreps_out="0e+1o+2e", **SETTINGS)
    key = jax.random.key(0)
    tree = jax.eval_shape(lambda: module.init(key, vectors, np.array([0, 1]), edges))
    name, expected = NAMES[cls]
    assert list(tree["params"]["layer_1"][name]) == expected
