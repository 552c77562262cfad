"""e3nn-jax's layers of Haiku by our kernels; it needs the package dm-haiku."""

import e3nn_jax as e3nn
import haiku as hk
import jax
import jax.numpy as jnp

from eqfuse.ops._backend import resolve
from eqfuse.ops._layer import linear_of
from eqfuse.ops._linear import computed_by_e3nn, split_operands
from eqfuse.ops._symmetric_contraction import symmetric_contraction, symmetric_contraction_paths
from eqfuse.ops.ir.products import basis


class Linear(e3nn.haiku.Linear):
    """`e3nn.haiku.Linear`, with its parameters and initial values, as a fused op.

    Args:
      irreps_out, ..., name: as in `e3nn.haiku.Linear`.
    References: e3nn-jax 0.21.

    Example:
      >>> import haiku as hk
      >>> x = e3nn.IrrepsArray("4x0e+1o", jnp.ones((5, 7)))
      >>> network = hk.without_apply_rng(hk.transform(lambda x: ops.haiku.Linear("2x0e+1o")(x)))
      >>> parameters = network.init(jax.random.key(0), x)
      >>> jax.tree.map(jnp.shape, parameters)
      {'linear': {'w[0,0] 4x0e,2x0e': (4, 2), 'w[1,1] 1x1o,1x1o': (1, 1)}}
      >>> network.apply(parameters, x).shape
      (5, 5)
    """

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
            resolve(None, "linear", x, of_e3nn=own)
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


class SymmetricTensorProduct(e3nn.haiku.SymmetricTensorProduct):
    """`e3nn.haiku.SymmetricTensorProduct`, with its arguments and parameters, in one kernel.

    References: e3nn-jax 0.21; Batatia et al. 2022.

    Example:
      >>> import haiku as hk
      >>> x = e3nn.IrrepsArray("0e+1o", jnp.ones((5, 8, 4)))  # [nodes, channels, irreps]
      >>> product = hk.transform(lambda: ops.haiku.SymmetricTensorProduct((1, 2))(x))
      >>> product.apply(product.init(jax.random.key(0)), None).irreps
      1x0e+1x1o+1x2e
    """

    def __call__(self, x: e3nn.IrrepsArray) -> e3nn.IrrepsArray:
        """Return the product of the channels of x.

        Args:
          x: IrrepsArray [..., channels, irreps].
        Returns:
          IrrepsArray [..., channels, irreps_out], accumulated in float32 or better.
        Raises:
          ValueError: those of `eqfuse.ops.symmetric_contraction`.
        """
        if x.ndim < 2 or 0 in x.shape or any(x.zero_flags):
            return super().__call__(x)
        irs = tuple(ir for mul, ir in x.irreps for _ in range(mul))
        channels, counts, weights = x.shape[-2], self._counts(irs), {}
        for order, ir in sorted(counts, key=lambda key: (-key[0], key[1])):  # as e3nn's
            shape = counts[order, ir], channels
            weights[order, ir] = self.get_parameter(f"w{order}_{ir}", shape, x.dtype) / shape[0]
        outs = sorted({ir for _, ir in weights})
        irreps, irreps_out = (e3nn.Irreps([(channels, ir) for ir in of]) for of in (irs, outs))
        rows = x.array.reshape(*x.shape[:-2], channels, -1)
        rows = e3nn.IrrepsArray([(1, ir) for ir in irs], rows).axis_to_mul()
        paths = symmetric_contraction_paths(irreps, irreps_out, max(self.orders))
        zeros = {(n, ir): jnp.zeros((count, channels), x.dtype) for ir, n, count in paths}
        of_paths = jnp.concatenate([(zeros | weights)[n, ir] for ir, n, _ in paths])
        out = symmetric_contraction(
            rows, of_paths, irreps_out=irreps_out, correlation=max(self.orders)
        )
        return out.mul_to_axis(channels)

    def _counts(self, irs: tuple[e3nn.Irrep, ...]) -> dict:
        """Return by order and irrep how many symmetric products of that order give it."""
        counts = {}
        for order in set(self.orders):
            reached = {e3nn.Irrep("0e")}
            for _ in range(order):
                reached = {ir for a in reached for b in irs for ir in a * b}
            kept = reached if self.keep_irrep_out is None else reached & self.keep_irrep_out
            counts |= {(order, ir): basis(irs, ir, order).shape[-2] for ir in kept}
        return {key: count for key, count in counts.items() if count}
