"""In which precision a run multiplies matrices: that of float32, in TF32 where a GPU has it."""

import types

import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops
from eqfuse.train.device.parallel import matmul_precision
from eqfuse.train.settings.schema import ConfigError


def device(platform, capability=None):
    fields = {} if capability is None else {"compute_capability": capability}
    return types.SimpleNamespace(platform=platform, device_kind="a device", **fields)


CPU, H100 = device("cpu"), device("gpu", "9.0")
WITHOUT = (CPU, device("gpu", "7.5"), device("gpu", "gfx942"), device("tpu"))


def test_what_a_gpu_has_is_used():
    assert matmul_precision("auto", "float32", H100) == ops.TF32X3
    assert matmul_precision("tf32x3", "float32", device("gpu", "12.0")) == ops.TF32X3
    assert matmul_precision("highest", "float32", H100) == "highest"
    assert matmul_precision("auto", "float64", H100) == "highest"


@pytest.mark.parametrize("without", WITHOUT)
def test_other_devices_multiply_in_float32(without):
    assert matmul_precision("auto", "float32", without) == "highest"
    with pytest.raises(ConfigError, match=r"capability 8.0 or more, and this is .*precision=auto"):
        matmul_precision("tf32x3", "float32", without)


def test_jax_knows_the_name():
    with jax.default_matmul_precision(ops.TF32X3):
        traced = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2)))
    assert str(traced.eqns[0].params["precision"]) == ops.TF32X3
