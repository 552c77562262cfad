"""The ops with parameters as functions: of arrays and of the parameters, without a module."""

from eqfuse.ops._linear_modules import Linear
from eqfuse.ops._tensor_product_linear import TensorProductLinear, TensorProductLinearGate


def linear(x, parameters, irreps_out, *, index=None, weights=None, **options):
    """Apply `e3nn.flax.Linear` with these parameters, as a function.

    Args:
      x: IrrepsArray [..., irreps].
      parameters: dict of arrays, by the names of `e3nn.flax.Linear`.
      irreps_out: of the result.
      index: [...] integers, which set of weights a row takes.
      weights: [..., d], which are contracted with the parameters, see `Linear`.
      options: attributes of `Linear`.
    Returns:
      IrrepsArray [..., irreps_out].
    Raises:
      ValueError: as `Linear`, and an index as well as weights. flax.errors.ScopeParamShapeError,
        ScopeParamNotFoundError: parameters that do not fit.
    References: those of `Linear`; so for the other functions here.
    """
    if index is not None and weights is not None:
        raise ValueError("index and weights exclude each other")
    arguments = [a for a in (index, weights, x) if a is not None]
    return Linear(irreps_out, **options).apply({"params": parameters}, *arguments)


def tensor_product_linear(
    x, y, parameters, irreps_out, *, weights=None, edges=None, index=None, skip=None, **options
):
    """Apply `TensorProductLinear` with these parameters, as a function.

    Args:
      x, y, weights, edges, index, skip: as in `TensorProductLinear`.
      parameters: dict of arrays, by the names of `e3nn.flax.Linear`.
      irreps_out: of the Linear.
      options: attributes of `TensorProductLinear`.
    Returns:
      IrrepsArray [..., irreps_out]; with `split`, a tuple of them.
    Raises:
      ValueError: as `TensorProductLinear`; of flax for parameters, as `linear`.
    """
    module = TensorProductLinear(irreps_out, **options)
    return module.apply({"params": parameters}, x, y, weights, edges, index, skip)


def tensor_product_linear_gate(
    x, y, parameters, irreps_out, *, weights=None, edges=None, index=None, skip=None, **options
):
    """Apply `TensorProductLinearGate` with these parameters, as a function.

    Args:
      x, y, weights, edges, index, skip: as in `TensorProductLinear`.
      parameters: dict of arrays, by the names of `e3nn.flax.Linear`.
      irreps_out: of the Linear, before the gate.
      options: attributes of `TensorProductLinearGate`.
    Returns:
      IrrepsArray [..., irreps of `e3nn.gate` of the Linear's output].
    Raises:
      ValueError: as `TensorProductLinear`; of flax for parameters, as `linear`.
    """
    module = TensorProductLinearGate(irreps_out, **options)
    return module.apply({"params": parameters}, x, y, weights, edges, index, skip)
