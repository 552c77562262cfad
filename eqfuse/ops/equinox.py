"""e3nn-jax's Linear of Equinox by our kernels; it needs the package equinox."""

import e3nn_jax as e3nn
import equinox  # noqa: F401  (without it, the error names what to install)
import jax

from eqfuse.ops._backend import resolve
from eqfuse.ops._layer import linear_of
from eqfuse.ops._linear import computed_by_e3nn, split_operands


class Linear(e3nn.equinox.Linear):
    """`e3nn.equinox.Linear`, with its parameters and initial values, as a fused op.

    Args:
      irreps_out, ..., key: as in `e3nn.equinox.Linear`, all by name.
    References: e3nn-jax 0.21.

    Example:
      >>> x = e3nn.IrrepsArray("4x0e+1o", jnp.ones((5, 7)))
      >>> of = {"irreps_in": x.irreps, "irreps_out": "2x0e+1o"}
      >>> ops.equinox.Linear(**of, key=jax.random.key(0))(x).shape
      (5, 5)
    """

    def __call__(self, weights_or_input, input_or_none=None) -> e3nn.IrrepsArray:
        """Apply it, to the operands of `e3nn.equinox.Linear`.

        Args:
          weights_or_input: x, IrrepsArray [..., irreps], or what comes before it: [...] integers
            if `linear_type` is "indexed", or [..., d] weights if it is "mixed".
          input_or_none: x, if it is the second.
        Returns:
          IrrepsArray [..., irreps_out].
        Raises:
          ValueError, AssertionError: those of `e3nn.equinox.Linear`, and those of
            `eqfuse.ops.linear`.
        """
        # e3nn's own is traced, not computed, for what it refuses
        jax.eval_shape(lambda: super(Linear, self).__call__(weights_or_input, input_or_none).array)
        operands = weights_or_input, input_or_none
        index, weights, x = split_operands(*operands, self.num_indexed_weights)
        own = computed_by_e3nn(self, weights)
        if any(x.zero_flags) or self.irreps_out != self.irreps_out.simplify():
            own = "blocks are as they are in e3nn's Linear of Equinox"
        if own:
            resolve(None, "linear", x, of_e3nn=own)
            return super().__call__(*operands)
        return linear_of(self, index, x, self._weights)
