"""The work of a step is what its forms, linear forms and matmuls do, inside of fused ops too."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from benchmarks.work import step_work
from eqfuse import ops


def test_work_of_a_step():
    rows, mul = 6, 4
    irreps = f"{mul}x0e+{mul}x1o"
    module = ops.TensorProductLinear(irreps, backend="llvm", fused="always")
    x = e3nn.IrrepsArray(irreps, jnp.ones((rows, 4 * mul)))
    y = e3nn.IrrepsArray("0e", jnp.ones((rows, 1)))
    params = module.init(jax.random.key(0), x, y)

    def step(params, x):
        return module.apply(params, e3nn.IrrepsArray(irreps, x), y).array @ jnp.ones((16, 8))

    product = rows * 4 * mul * 3  # two factors, a coefficient, a sum
    linear = 2 * rows * mul * mul * 4  # a matrix for scalars, and for three components
    matrix = 2 * rows * 16 * 8
    moved = rows * 16 + rows + 2 * mul * mul  # the operands of the fused op, and its result
    moved += rows * 16 + rows * 16 + 16 * 8 + rows * 8
    assert step_work(step, (params, x.array)) == (4 * moved, product + linear + matrix)

    def gradient(params, x):
        return jax.grad(lambda p: jnp.sum(step(p, x)))(params)

    again = step_work(gradient, (params, x.array))[1]
    assert again > product + linear + matrix  # the product once more, and gradients of weights
