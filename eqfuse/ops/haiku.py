"""The ops with parameters as modules of Haiku, which needs the package dm-haiku."""

import functools

import e3nn_jax as e3nn
import haiku as hk
import jax
import jax.numpy as jnp

from eqfuse.ops._backend import resolve
from eqfuse.ops._layer import TensorProductLinear as _TensorProductLinear
from eqfuse.ops._layer import TensorProductLinearGate as _TensorProductLinearGate
from eqfuse.ops._layer import linear_of
from eqfuse.ops._legacy import FunctionalFullyConnectedTensorProduct
from eqfuse.ops._linear import computed_by_e3nn, split_operands


class Linear(e3nn.haiku.Linear):
    """`e3nn.haiku.Linear`, with its parameters and initial values, as a fused op.

    Args:
      args, options: those of `e3nn.haiku.Linear`.
      input_precision, backend: as in `eqfuse.ops.Linear`.
    References: e3nn-jax 0.21.
    """

    def __init__(self, *args, input_precision=None, backend=None, **options):
        super().__init__(*args, **options)
        self.input_precision, self.backend = input_precision, backend

    def __call__(self, weights_or_input, input_or_none=None) -> e3nn.IrrepsArray:
        """Apply it, to the operands of `e3nn.haiku.Linear`.

        Args:
          weights_or_input: x, IrrepsArray [..., irreps], or what comes before it: [...] integers
            with `num_indexed_weights`, or [..., d] weights.
          input_or_none: x, if it is the second.
        Returns:
          IrrepsArray [..., irreps_out].
        Raises:
          ValueError, AssertionError: those of `e3nn.haiku.Linear` and of `eqfuse.ops.linear`.
        """
        operands = weights_or_input, input_or_none
        index, weights, x = split_operands(*operands, self.num_indexed_weights)
        if own := computed_by_e3nn(self, weights):
            resolve(self.backend, "linear", x, of_e3nn=own)
            return super().__call__(*operands)
        return linear_of(self, index, x, self._parameters(*operands))

    def _parameters(self, *operands) -> dict[str, jax.Array]:
        """Return the parameters of e3nn's Linear, which runs to make them, else is only traced."""
        asked, get_parameter = {}, self.get_parameter

        def record(name, shape, std, dtype):
            asked[name] = shape, dtype
            return jnp.zeros(shape, dtype)

        if hk.running_init():
            super().__call__(*operands)
        self.get_parameter = record
        try:
            jax.eval_shape(lambda: super(Linear, self).__call__(*operands))
        finally:
            self.get_parameter = get_parameter
        return {name: get_parameter(name, shape, 1.0, of) for name, (shape, of) in asked.items()}


class FullyConnectedTensorProduct(e3nn.haiku.FullyConnectedTensorProduct):
    """`e3nn.haiku.FullyConnectedTensorProduct`, with its arguments and parameters, by kernels.

    References: e3nn-jax 0.21.
    """

    def __call__(self, x1: e3nn.IrrepsArray, x2: e3nn.IrrepsArray, **options) -> e3nn.IrrepsArray:
        """Return the product [..., irreps_out]; operands and errors are those of e3nn's."""
        x, y = map(e3nn.as_irreps_array, (x1, x2))
        shape = jnp.broadcast_shapes(x.shape[:-1], y.shape[:-1])
        irreps = self.irreps_in1, self.irreps_in2
        rows = [
            (a if i is None else a.rechunk(i)).broadcast_to((*shape, -1))
            for a, i in zip((x, y), irreps, strict=True)
        ]
        x, y = (a.remove_zero_chunks().simplify() for a in rows)
        tp = FunctionalFullyConnectedTensorProduct(x.irreps, y.irreps, self.irreps_out.simplify())
        weights = [
            hk.get_parameter(
                f"w[{i.i_in1},{i.i_in2},{i.i_out}] {tp.irreps_in1[i.i_in1]},"
                f"{tp.irreps_in2[i.i_in2]},{tp.irreps_out[i.i_out]}",
                shape=i.path_shape,
                init=hk.initializers.RandomNormal(stddev=i.weight_std),
            )
            for i in tp.instructions
        ]
        product = functools.partial(tp.left_right, weights, **options)
        for _ in shape:
            product = e3nn.utils.vmap(product)
        return product(x, y).rechunk(self.irreps_out)


class TensorProductLinear(hk.Module):
    """`eqfuse.ops.TensorProductLinear`, whose parameters Haiku keeps, by e3nn's names.

    Args:
      irreps_out, options: those of `eqfuse.ops.TensorProductLinear`.
      name: of the module in Haiku.
    References: those of `eqfuse.ops.TensorProductLinear`.
    """

    op = _TensorProductLinear

    def __init__(self, irreps_out, *, name: str | None = None, **options):
        super().__init__(name)
        self.module = self.op(irreps_out, **options)

    def __call__(self, *operands, **by_name) -> e3nn.IrrepsArray:
        """Apply it; operands, result and errors are those of `eqfuse.ops.TensorProductLinear`."""

        def initial(key):
            return self.module.init(key, *operands, **by_name).get("params", {})

        made = functools.cache(lambda: initial(hk.next_rng_key()))
        shapes = jax.eval_shape(initial, jax.random.key(0))
        parameters = {
            name: hk.get_parameter(name, s.shape, s.dtype, lambda *_, name=name: made()[name])
            for name, s in shapes.items()
        }
        return self.module.apply({"params": parameters}, *operands, **by_name)


class TensorProductLinearGate(TensorProductLinear):
    """`eqfuse.ops.TensorProductLinearGate`, with arguments as `TensorProductLinear` has here."""

    op = _TensorProductLinearGate
