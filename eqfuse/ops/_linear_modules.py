"""`Linear` and `LinearSum`: e3nn's Linear of node features, all its matrices in one kernel."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse.ops._backend import resolve
from eqfuse.ops.algebra import linears as _linears
from eqfuse.ops.primitives import linear_forms
from eqfuse.ops.primitives.batch_axes import Leading

PRECISIONS = ("ieee", "tf32x3", "tf32")
OF_E3NN_ALONE = {
    "channel_out",
    "parameter_initializer",
    "instructions",
    "weights_per_channel",
    "simplify_irreps_internally",
}
"""Options of `e3nn.flax.Linear` that its counterpart here does not have."""


class Linear(nn.Module):
    """`e3nn.flax.Linear`, with its parameters: one kernel forward, one backward.

    Backward has a second launch, which adds up parts, from 2048 rows on.

    Attributes:
      irreps_out: as in `e3nn.flax.Linear`, and so are `biases`, `path_normalization`,
        `gradient_normalization`, `force_irreps_out` and `num_indexed_weights`. All but
        `irreps_out` are given by name.
      input_precision: of the matrix products on a GPU: "ieee" is float32, "tf32x3" close to it,
        "tf32" fast.
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs `e3nn.flax.Linear` itself.
      irreps_in: those of x, which are checked then.
    Raises:
      TypeError: other arguments by position; options that only e3nn's Linear has.
    References: e3nn-jax 0.21.
    """

    irreps_out: e3nn.Irreps | str
    biases: bool = False
    path_normalization: str | float | None = None
    gradient_normalization: str | float | None = None
    force_irreps_out: bool = False
    num_indexed_weights: int | None = None
    input_precision: str = "ieee"
    backend: str | None = None
    irreps_in: e3nn.Irreps | str | None = None

    def __new__(cls, *args, **kwargs):
        if len(args) > 1:
            raise TypeError(
                "ops.Linear takes irreps_out alone by position, the rest by name: the second "
                f"argument of e3nn.flax.Linear is irreps_in; got {args}"
            )
        if missing := sorted(OF_E3NN_ALONE & kwargs.keys()):
            raise TypeError(f"ops.Linear has no {', '.join(missing)}; use e3nn.flax.Linear")
        return super().__new__(cls)

    @nn.compact
    def __call__(self, index_or_input, input_or_none=None):
        """Apply it: `linear(x)`, or `linear(index, x)` with `num_indexed_weights`.

        Args:
          index: [...] integers, which set of weights a row takes.
          x: IrrepsArray [..., irreps].
        Returns:
          IrrepsArray [..., irreps_out] of the promoted dtype of x and the parameters, which are
          made in that of x; or of the dtype of x if that is bfloat16 or float16, whatever that of
          the parameters, unlike e3nn's.
        Raises:
          ValueError: an index without `num_indexed_weights` or the other way round; weights, as
            e3nn's Linear mixes them with its own; shapes or irreps that do not fit; a backend that
            cannot run.
        """
        index, x = index_or_input, input_or_none
        if x is None:
            index, x = None, index_or_input
        check_index(index, self.num_indexed_weights)
        x = e3nn.as_irreps_array(x)
        irreps = x.irreps if self.irreps_in is None else e3nn.Irreps(self.irreps_in)
        if irreps.regroup() != x.irreps.regroup():
            raise ValueError(f"x has irreps {x.irreps}, and irreps_in is {irreps}")
        if resolve(self.backend, type(self).__name__) == "e3nn":
            linear = self._reference()
            nn.share_scope(self, linear)
            return linear(x) if index is None else linear(index, x)
        options = _options(self) | {"num_sets": self.num_indexed_weights or 0}
        x, linear = _prepared(x, self.irreps_out, options)
        parameters = declare(self, linear.parameters, self.num_indexed_weights, x.dtype)
        out = _evaluate([linear], [x], [*parameters.values()], index, self.backend)
        return rechunked(out, self.irreps_out) if self.force_irreps_out else out

    def _reference(self) -> e3nn.flax.Linear:
        return e3nn.flax.Linear(
            self.irreps_out,
            biases=self.biases,
            path_normalization=self.path_normalization,
            gradient_normalization=self.gradient_normalization,
            force_irreps_out=self.force_irreps_out,
            num_indexed_weights=self.num_indexed_weights,
        )


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
    input_precision: str = "ieee"
    backend: str | None = None

    @nn.compact
    def __call__(self, *inputs):
        """inputs: IrrepsArray [..., irreps], one for each name. Returns [..., irreps_out].

        The dtype is that of `Linear` for the promoted dtype of the inputs.

        Raises:
          ValueError: as many inputs as there are names are needed, with the same leading axes.
        """
        if len(inputs) != len(self.names):
            raise ValueError(f"one input for each of {self.names} is needed, got {len(inputs)}")
        if len({x.shape[:-1] for x in inputs}) > 1:
            raise ValueError(f"inputs of shapes {[x.shape for x in inputs]} cannot be added up")
        options = _options(self) | {"force_irreps_out": True}
        if resolve(self.backend, type(self).__name__) == "e3nn":
            options.pop("input_precision")
            linears = [e3nn.flax.Linear(self.irreps_out, name=n, **options) for n in self.names]
            return sum(linear(x) for linear, x in zip(linears[1:], inputs[1:], strict=True)) + (
                linears[0](inputs[0])
            )
        prepared = [_prepared(x, self.irreps_out, options) for x in inputs]
        parameters = [
            p
            for name, (x, linear) in zip(self.names, prepared, strict=True)
            for p in _Parameters(linear, name=name)(x.dtype)
        ]
        arrays, linears = zip(*prepared, strict=True)
        out = _evaluate(linears, arrays, parameters, None, self.backend)
        return rechunked(out, self.irreps_out)


class _Parameters(nn.Module):
    """The parameters of a Linear, in a scope of their own."""

    linear: _linears.Linear

    @nn.compact
    def __call__(self, dtype):
        return list(declare(self, self.linear.parameters, None, dtype).values())


def _options(module) -> dict:
    if module.input_precision not in PRECISIONS:
        raise ValueError(
            f"input_precision {module.input_precision!r} is unknown; choose one of {PRECISIONS}"
        )
    names = ("biases", "path_normalization", "gradient_normalization", "input_precision")
    options = {name: getattr(module, name) for name in names}
    if isinstance(module, Linear):
        options["force_irreps_out"] = module.force_irreps_out
    return options


def rechunked(x: e3nn.IrrepsArray, irreps) -> e3nn.IrrepsArray:
    """x with blocks as in irreps, which are equal to its own but for how they are cut."""
    irreps = e3nn.Irreps(irreps)
    return x if x.irreps == irreps else x.rechunk(irreps)


def check_index(index, num_indexed_weights) -> None:
    """Refuse an index that there are no sets of weights for, and sets without an index.

    Raises:
      ValueError: one without the other, or an index that is not of integers.
    """
    if index is not None:
        array = index.array if isinstance(index, e3nn.IrrepsArray) else jnp.asarray(index)
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(
                f"index must be of integers, got {array.dtype}; use e3nn.flax.Linear for weights "
                "as an argument"
            )
    if (index is not None) != (num_indexed_weights is not None):
        raise ValueError("index is needed with num_indexed_weights, and only with it")


def wrapped(index, num_sets: int) -> jax.Array:
    """The index as int32; a negative one counts from the last set, as it does for e3nn."""
    index = jnp.asarray(index).astype(jnp.int32)
    return jnp.where(index < 0, index + num_sets, index)


def declare(module: nn.Module, parameters, num_sets: int | None, dtype) -> dict[str, jax.Array]:
    """Parameters of e3nn's Linear by name, in the scope of a module, in their order."""
    lead = (num_sets,) if num_sets else ()
    return {
        p.name: module.param(p.name, nn.initializers.normal(stddev=p.std), (*lead, *p.shape), dtype)
        for p in parameters
    }


def promoted(rows, parameters):
    """The dtype that a Linear of some rows is computed in, which is that of the result.

    As for e3nn, that of all operands together; but parameters do not widen rows in half precision,
    which would leave nothing of what that saves.
    """
    dtype = jnp.result_type(*(a.dtype for a in rows))
    if dtype in (jnp.bfloat16, jnp.float16):
        return dtype
    return jnp.result_type(dtype, *(p.dtype for p in parameters))


def _prepared(x, irreps_out, options):
    """An input whose blocks of one irrep are adjacent, and its Linear."""
    x = e3nn.as_irreps_array(x)
    x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)
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
    leading = Leading.of(shape, [x.array for x in inputs])
    arrays = [*(leading.rows(x.array) for x in inputs), *parameters]
    dtype = promoted(inputs, parameters)
    arrays = [a.astype(dtype) for a in arrays]
    if index is not None:
        index = leading.rows(wrapped(index, linears[0].mixing.num_sets), others=0)
    [out] = linear_forms.evaluate(
        _linears.sum_of(linears), arrays, index, leading.count, resolve(backend)
    )
    return e3nn.IrrepsArray(linears[0].irreps_out, leading.apart(out))
