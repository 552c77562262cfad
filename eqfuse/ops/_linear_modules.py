"""`Linear` and `LinearSum`: e3nn's Linear of node features, all its matrices in one kernel."""

from collections.abc import Callable, Sequence

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse.ops import _linear_general
from eqfuse.ops._backend import matmul_precision, resolve
from eqfuse.ops._edges import nearest
from eqfuse.ops._linear_arguments import (
    OF_LINEAR_ALONE,
    as_floating,
    check_options,
    check_positional,
    index_or_weights,
    promoted,
)
from eqfuse.ops.ir import linears as _linears
from eqfuse.ops.primitives import linear_forms
from eqfuse.ops.primitives.batch_axes import BatchAxes

OF_FUSED = ("biases", "path_normalization", "gradient_normalization", "force_irreps_out")
OF_FUSED += ("num_indexed_weights",)
"""The options of `e3nn.flax.Linear` that fused ops have too."""
OPTIONS = (*OF_FUSED, *sorted(OF_LINEAR_ALONE - {"irreps_in"}))


class Linear(nn.Module):
    """`e3nn.flax.Linear`, with its parameters: one kernel forward, one backward.

    Backward has a second launch, which adds up parts, from 2048 rows on.

    Attributes:
      irreps_out: as in `e3nn.flax.Linear`, and so are `biases`, `path_normalization`,
        `gradient_normalization`, `force_irreps_out`, `num_indexed_weights`, `channel_out`,
        `weights_per_channel`, `parameter_initializer`, `instructions` and
        `simplify_irreps_internally`. All but `irreps_out` are given by name. With `channel_out`,
        JAX moves channels into the multiplicities and back, as e3nn does; weights as an operand
        are multiplied with x by JAX, and one kernel mixes the products.
      input_precision: of the matmuls on a GPU: "ieee" is float32, "tf32x3" close to it,
        "tf32" fast. None is "tf32x3" within
        `jax.default_matmul_precision("TF32_TF32_F32_X3")`, and "ieee" elsewhere.
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs `e3nn.flax.Linear` itself.
      irreps_in: those of x, which are checked then; needed with `instructions`.
    Raises:
      TypeError: other arguments by position.
    References: e3nn-jax 0.21.
    """

    irreps_out: e3nn.Irreps | str
    biases: bool = False
    path_normalization: str | float | None = None
    gradient_normalization: str | float | None = None
    force_irreps_out: bool = False
    num_indexed_weights: int | None = None
    input_precision: str | None = None
    backend: str | None = None
    irreps_in: e3nn.Irreps | str | None = None
    channel_out: int | None = None
    weights_per_channel: bool = False
    parameter_initializer: Callable[[], nn.initializers.Initializer] | None = None
    instructions: Sequence[tuple[int, int]] | None = None
    simplify_irreps_internally: bool = True

    def __new__(cls, *args, **kwargs):
        check_positional(cls, args, kwargs, others=())
        return super().__new__(cls)

    @nn.compact
    def __call__(self, weights_or_input, input_or_none=None):
        """Apply it: `linear(x)`; `linear(index, x)` with `num_indexed_weights`; `linear(e, x)`.

        Args:
          index: [...] integers, which set of weights a row takes. A negative one counts from the
            last set; one out of range takes the nearest set, and its gradient goes there.
          e: [..., d] or IrrepsArray of scalars, floating: weights that are contracted with
            parameters [d, mul_in, mul_out], as in the last layer of a radial network.
          x: IrrepsArray [..., irreps]; with `channel_out` or `weights_per_channel`
            [..., channels, irreps], and with the latter parameters are [d, channels, ...].
        Returns:
          IrrepsArray [..., irreps_out], with `channel_out` or `weights_per_channel`
          [..., channels, irreps_out], of the promoted dtype of the operands and the parameters,
          which are made in that of the operands: bfloat16 x with float32 parameters gives float32,
          as for e3nn.
        Raises:
          ValueError: an index without `num_indexed_weights`, or anything else with it; options
            that exclude each other; shapes or irreps that do not fit; a backend that cannot run.
        """
        first, x = weights_or_input, input_or_none
        if x is None:
            first, x = None, weights_or_input
        x = e3nn.as_irreps_array(x)
        index, weights = index_or_weights(first, self.num_indexed_weights)
        if index is not None:
            first = index = nearest(index, self.num_indexed_weights)
        check_options(self, x, weights)
        parameters = jax.tree.leaves(self.variables)
        backend = resolve(self.backend, "linear", x, weights, *parameters)
        if backend == "e3nn":
            linear = self._reference()
            nn.share_scope(self, linear)
            return linear(x) if first is None else linear(first, x)
        x = as_floating(x, weights)
        if self.channel_out is not None:
            if self.simplify_irreps_internally:  # before channels become part of the multiplicities
                x = x.remove_zero_chunks().regroup()
            x = x.axis_to_mul()
        if weights is None and self.instructions is None and self.simplify_irreps_internally:
            out = self._simple(x, index, backend)
        else:
            out = self._general(x, index, weights, backend)
        if self.channel_out is not None:
            out = out.mul_to_axis(self.channel_out)
        return rechunked(out, self.irreps_out) if self.force_irreps_out else out

    def _simple(self, x, index, backend):
        """Mix blocks of one irrep as one."""
        options = _options(self) | {"num_sets": self.num_indexed_weights or 0}
        irreps_out = (self.channel_out or 1) * e3nn.Irreps(self.irreps_out)
        x, linear = _prepared(x, irreps_out, options)
        parameters = self._declare(linear.parameters, (), x.dtype)
        return _evaluate([linear], [x], [*parameters.values()], index, backend)

    def _general(self, x, index, weights, backend):
        """Mix blocks as they are, or weights as an operand."""
        irreps_out = e3nn.Irreps(self.irreps_out)
        if self.simplify_irreps_internally:
            x, irreps_out = x.remove_zero_chunks().regroup(), irreps_out.simplify()
        if not self.force_irreps_out:
            irreps_out = irreps_out.filter(keep=x.irreps)
        options = _options(self)
        lead, num_sets, factor = (), self.num_indexed_weights or 0, 1.0
        if weights is not None:
            weights = weights.astype(x.dtype)
            lead = (weights.shape[-1],)
            # as e3nn computes it, for the same parameters from the same key
            factor = jnp.sqrt(1 / lead[0]) ** (1.0 - options["gradient_normalization"])
        if self.weights_per_channel:
            num_sets = x.shape[-2]
            lead = (*lead, num_sets)
            weights = weights[..., None, :]
            index = jnp.arange(num_sets, dtype=jnp.int32)
        general = _linear_general.general(
            x.irreps,
            (self.channel_out or 1) * irreps_out,
            self.instructions,
            self.biases,
            options["path_normalization"],
            options["gradient_normalization"],
            None if weights is None else weights.shape[-1],
            num_sets,
            matmul_precision(self.input_precision),
        )
        parameters = [*self._declare(general.declared, lead, x.dtype, factor).values()]
        row = e3nn.as_irreps_array(general.row(x, weights))
        matrices = general.matrices([parameters[n] for n in general.used])
        return _evaluate([general.linear], [row], matrices, index, backend)

    def _declare(self, parameters, lead, dtype, factor=1.0):
        initializer = self.parameter_initializer
        number = self.num_indexed_weights
        return declare(self, parameters, number, dtype, lead, factor, initializer)

    def _reference(self) -> e3nn.flax.Linear:
        options = {name: getattr(self, name) for name in OPTIONS}
        irreps_in = None if self.instructions is None else e3nn.Irreps(self.irreps_in)
        return e3nn.flax.Linear(self.irreps_out, irreps_in=irreps_in, **options)


class LinearSum(nn.Module):
    """The sum of an `e3nn.flax.Linear` of each of several inputs, in one kernel.

        out = sum_i e3nn.flax.Linear(irreps_out, force_irreps_out=True, name=names[i])(x_i)

    Attributes:
      irreps_out: of each of them; what no input has is zero.
      names: of the Linears, under which their parameters are.
      biases, path_normalization, gradient_normalization, input_precision, backend: as in `Linear`.
    References: e3nn-jax 0.21, `e3nn.flax.Linear`; Batzner et al. 2022, figure 1 (self-interaction
      and skip).
    """

    irreps_out: e3nn.Irreps | str
    names: tuple[str, ...]
    biases: bool = False
    path_normalization: str | float | None = None
    gradient_normalization: str | float | None = None
    input_precision: str | None = None
    backend: str | None = None

    @nn.compact
    def __call__(self, *inputs):
        """Apply them to IrrepsArrays [..., irreps], one for each name. Returns [..., irreps_out].

        The dtype is that of `Linear` for the promoted dtype of the inputs.

        Raises:
          ValueError: as many inputs as there are names are needed, with the same leading axes.
        """
        if len(inputs) != len(self.names):
            raise ValueError(f"one input for each of {self.names} is needed, got {len(inputs)}")
        if len({x.shape[:-1] for x in inputs}) > 1:
            raise ValueError(f"inputs of shapes {[x.shape for x in inputs]} cannot be added up")
        options = _options(self) | {"force_irreps_out": True}
        parameters = jax.tree.leaves(self.variables)
        backend = resolve(self.backend, "linear", *inputs, *parameters)
        if backend == "e3nn":
            options.pop("input_precision")
            linears = [e3nn.flax.Linear(self.irreps_out, name=n, **options) for n in self.names]
            first, *rest = (linear(x) for linear, x in zip(linears, inputs, strict=True))
            return sum(rest, first)
        prepared = [_prepared(x, self.irreps_out, options) for x in inputs]
        parameters = [
            p
            for name, (x, linear) in zip(self.names, prepared, strict=True)
            for p in _Parameters(linear, name=name)(x.dtype)
        ]
        arrays, linears = zip(*prepared, strict=True)
        out = _evaluate(linears, arrays, parameters, None, backend)
        return rechunked(out, self.irreps_out)


class _Parameters(nn.Module):
    """The parameters of a Linear, in a scope of their own."""

    linear: _linears.Linear

    @nn.compact
    def __call__(self, dtype):
        return list(declare(self, self.linear.parameters, None, dtype).values())


def _options(module) -> dict:
    options = {"biases": module.biases, "input_precision": matmul_precision(module.input_precision)}
    options |= _linears.normalizations(module.path_normalization, module.gradient_normalization)
    if isinstance(module, Linear):
        options["force_irreps_out"] = module.force_irreps_out
    return options


def rechunked(x: e3nn.IrrepsArray, irreps) -> e3nn.IrrepsArray:
    """Return x with blocks as in irreps, which are equal to its own but for how they are cut."""
    irreps = e3nn.Irreps(irreps)
    return x if x.irreps == irreps else x.rechunk(irreps)


def declare(
    module: nn.Module, parameters, num_sets: int | None, dtype, lead=(), factor=1.0, make=None
) -> dict[str, jax.Array]:
    """Return parameters of e3nn's Linear by name, in the scope of a module, in their order.

    Args:
      lead: sizes of leading axes.
      factor: of their standard deviations.
      make: gives an initializer, for those of a normal distribution.
    """
    lead = (num_sets,) if num_sets else lead

    def initializer(p):
        return nn.initializers.normal(stddev=factor * p.std) if make is None else make()

    return {
        p.name: module.param(p.name, initializer(p), (*lead, *p.shape), dtype) for p in parameters
    }


def _prepared(x, irreps_out, options):
    """Return an input whose blocks of one irrep are adjacent, and its Linear."""
    x = as_floating(e3nn.as_irreps_array(x))
    if any(x.zero_flags):
        x = x.remove_zero_chunks()
    irs = [ir for _, ir in x.irreps.simplify()]
    if len(set(irs)) < len(irs):
        x = x.regroup()
    flags = (False,) * len(x.irreps)
    return x, _linears.linear(x.irreps, flags, e3nn.Irreps(irreps_out), **options)


def _evaluate(linears, inputs, parameters, index, backend):
    shape = inputs[0].shape[:-1]
    if index is not None:
        shape = jnp.broadcast_shapes(shape, jnp.shape(index))
    batch_axes = BatchAxes.of(shape, [x.array for x in inputs])
    arrays = [*(batch_axes.rows(x.array) for x in inputs), *parameters]
    dtype = promoted(inputs, parameters)
    arrays = [a.astype(dtype) for a in arrays]
    if index is not None:
        index = batch_axes.rows(index, others=0)
    [out] = linear_forms.evaluate(
        _linears.sum_of(linears), arrays, index, batch_axes.count, backend
    )
    return e3nn.IrrepsArray(linears[0].irreps_out, batch_axes.apart(out))
