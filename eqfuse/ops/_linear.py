"""`Linear` and `LinearSum`: e3nn's Linear of node features, all its matrices in one kernel."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse.ops._backend import matmul_precision, resolve
from eqfuse.ops._edges import nearest
from eqfuse.ops.ir import linear as linears
from eqfuse.ops.ir.linear import Block, BlockRef, LinearForm, Parameter, Rows, Term, Weights
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.rules import BatchAxes


@functools.cache
def _general_linear(
    irreps_in: e3nn.Irreps,
    zero_flags: tuple[bool, ...],
    irreps_out: e3nn.Irreps,
    instructions: tuple[tuple[int, int], ...] | None,
    num_weights: int | None,
    num_sets: int,
    input_precision: str,
    **options,
) -> tuple[linears.Linear, tuple[Parameter, ...], tuple[int, ...], tuple[bool, ...]]:
    """Return the Linear of `e3nn.flax.Linear` on blocks as they are, with or without weights.

    With `num_weights` weights as an operand, its row is the weights, then their products with the
    blocks of x. Behind it come all parameters of e3nn's, also empty ones, without axes of weights;
    the numbers of those that the Linear has; and the zero flags of e3nn's output.
    """
    ours = linears.functional(irreps_in, irreps_out, instructions=instructions, **options)
    d, shift = (1, 0) if num_weights is None else (num_weights, num_weights)
    row = {
        n: Block(shift + d * b.offset, d * b.mul, b.dim)
        for n, b in enumerate(linears.blocks(irreps_in))
        if b.mul
    }
    if num_weights is not None:
        row[-1] = Block(0, d, 1)  # what a bias reads
    outputs = {n: block for n, block in enumerate(linears.blocks(irreps_out)) if block.mul}
    number, place_out = ({n: k for k, n in enumerate(of)} for of in (row, outputs))
    share = d ** (-0.5 * options["gradient_normalization"])
    declared, used, terms = [], [], []
    for k, i in enumerate(ours.instructions):
        out = irreps_out[i.i_out]
        name = f"b[{i.i_out}] {out}"
        if i.i_in >= 0:
            name = f"w[{i.i_in},{i.i_out}] {irreps_in[i.i_in]},{out}"
        declared.append(Parameter(name, tuple(map(int, i.path_shape)), float(i.weight_std)))
        if 0 in i.path_shape:
            continue
        used.append(k)
        x = BlockRef(0, number[i.i_in]) if i.i_in in number else None
        terms.append((x, len(used), place_out[i.i_out], share * float(i.path_weight)))
    parameters = []
    for k in used:
        *lead, columns = declared[k].shape
        is_matrix = lead or num_weights is not None
        shape = (d * math.prod(lead), columns) if is_matrix else (columns,)
        parameters.append(dataclasses.replace(declared[k], shape=shape))
    linear_form = LinearForm(
        (
            Rows(shift + d * irreps_in.dim, tuple(row.values())),
            *(Weights(p.shape) for p in parameters),
        ),
        (Rows(irreps_out.dim, tuple(outputs.values())),),
        tuple(Term(x, w, BlockRef(1 + len(used), z), scale) for x, w, z, scale in terms),
        num_sets,
        input_precision,
    )
    linear = linears.Linear(linear_form, tuple(parameters), irreps_out)
    added = {i.i_out for i in ours.instructions if i.i_in < 0 or not zero_flags[i.i_in]}
    flags = tuple(n not in added for n in range(len(irreps_out)))
    return linear, tuple(declared), tuple(used), flags


def _row_of_weights(x: e3nn.IrrepsArray, weights):
    """Return [..., size]: the weights and then their products with the blocks of x."""
    shape = jnp.broadcast_shapes(x.shape[:-1], weights.shape[:-1])
    parts = [jnp.broadcast_to(weights, (*shape, weights.shape[-1]))]
    for columns in x.irreps.slices():
        parts.append((weights[..., None] * x.array[..., None, columns]).reshape(*shape, -1))
    return jnp.concatenate(parts, axis=-1)


def _matrix_of_weights(p, ndim: int):
    """Return the matrix, or [channels, ...] those of each channel, of a parameter [d, ...]."""
    if p.ndim == ndim + 2:  # [d, channels, ...]
        p = jnp.moveaxis(p, 0, 1)
    return p.reshape(*p.shape[: p.ndim - ndim - 1], -1, p.shape[-1])


OF_FUSED = ("biases", "path_normalization", "gradient_normalization", "force_irreps_out")
OF_FUSED += ("num_indexed_weights",)
"""The options of `e3nn.flax.Linear` that fused ops have too."""
OF_LINEAR = ("channel_out", "instructions", "parameter_initializer", "simplify_irreps_internally")
OF_LINEAR += ("weights_per_channel",)
"""Those that `Linear` alone has, and `irreps_in`."""


def check_positional(cls, args, kwargs) -> None:
    """Refuse all arguments but irreps_out by position, and of fused ops those of `Linear`."""
    if len(args) > 1:
        raise TypeError(
            f"ops.{cls.__name__} takes irreps_out alone by position, the rest by name: the second "
            f"argument of e3nn.flax.Linear is irreps_in; got {args}"
        )
    missing = {*OF_LINEAR, "irreps_in"} & (kwargs.keys() - cls.__dataclass_fields__.keys())
    if missing:
        raise TypeError(
            f"ops.{cls.__name__} has no {', '.join(sorted(missing))}; ops.Linear has, to be "
            "applied to the product"
        )


def check_index(index, num_indexed_weights) -> None:
    """Refuse an index that there are no sets of weights for, and sets without an index."""
    if index is not None:
        array = index.array if isinstance(index, e3nn.IrrepsArray) else jnp.asarray(index)
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"index must be of integers, got {array.dtype}")
    if (index is not None) != (num_indexed_weights is not None):
        raise ValueError("index is needed with num_indexed_weights, and only with it")


def index_or_weights(first, num_indexed_weights: int | None):
    """Return (index, weights), of which one at least is None."""
    if isinstance(first, e3nn.IrrepsArray):
        if not first.irreps.is_scalar():
            raise ValueError(f"weights must be scalars, 0e, got {first.irreps}")
        first = first.array
    if first is None or num_indexed_weights is not None:
        check_index(first, num_indexed_weights)
        return first, None
    weights = jnp.asarray(first)
    if not jnp.issubdtype(weights.dtype, jnp.inexact):
        check_index(first, None)
    if weights.ndim == 0 or weights.shape[-1] == 0:
        raise ValueError(f"weights must be [..., d], at least one, got shape {weights.shape}")
    return None, weights


def check_options(module, x: e3nn.IrrepsArray, weights) -> None:
    """Refuse options of `Linear` that exclude each other, and an x that they are not for."""
    chosen, per_channel = module.instructions is not None, module.weights_per_channel
    channels = module.channel_out is not None
    excluded = {
        "weights_per_channel needs weights as an argument": weights is None and per_channel,
        "weights_per_channel and channel_out exclude each other": per_channel and channels,
        "instructions need irreps_in": chosen and module.irreps_in is None,
        "instructions need simplify_irreps_internally=False": chosen
        and module.simplify_irreps_internally,
        "instructions and channel_out exclude each other": chosen and channels,
    }
    for message, is_wrong in excluded.items():
        if is_wrong:
            raise ValueError(message)
    if (channels or per_channel) and x.ndim < 2:
        raise ValueError(f"x must be [..., channels, {x.irreps}], got shape {x.shape}")
    if module.irreps_in is None:
        return
    irreps = e3nn.Irreps(module.irreps_in)
    known = [x.irreps]
    if channels:  # e3nn's counts the channels in
        known.append(x.shape[-2] * x.irreps)
    same = irreps == x.irreps if chosen else irreps.regroup() in [i.regroup() for i in known]
    if not same:
        raise ValueError(f"x has irreps {x.irreps}, and irreps_in is {irreps}")


def promoted(rows, parameters):
    """Return the dtype of a Linear: as for e3nn, float32 parameters widen rows of bfloat16."""
    return jnp.result_type(*(a.dtype for a in (*rows, *parameters)))


def as_floating(x: e3nn.IrrepsArray, weights=None) -> e3nn.IrrepsArray:
    """Return x in the dtype that it has together with weights, a floating one."""
    dtype = x.dtype if weights is None else jnp.result_type(x.dtype, weights.dtype)
    return x.astype(dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.float32)


class Linear(nn.Module):
    """`e3nn.flax.Linear`, with its parameters: one kernel forward, one backward.

    Backward has a second launch, which adds up parts, from 2048 rows on.

    Attributes:
      irreps_out: as in `e3nn.flax.Linear`, and so is what is not listed here; all else is given by
        name. With `channel_out`, JAX moves channels into the multiplicities and back, as e3nn does;
        weights as an operand are multiplied with x by JAX, and one kernel mixes the products.
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
        check_positional(cls, args, kwargs)
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
        options = _options(self) | {"num_sets": self.num_indexed_weights or 0}
        irreps_out = (self.channel_out or 1) * e3nn.Irreps(self.irreps_out)
        x, linear = _prepared(x, irreps_out, options)
        parameters = self._declare(linear.parameters, (), x.dtype)
        return _evaluate([linear], [x], parameters, index, backend, linear.zero_flags)

    def _general(self, x, index, weights, backend):
        """Mix blocks as they are, or weights as an operand."""
        irreps_out = e3nn.Irreps(self.irreps_out)
        if self.simplify_irreps_internally:
            x, irreps_out = x.remove_zero_chunks().regroup(), irreps_out.simplify()
        if not self.force_irreps_out:
            irreps_out = irreps_out.filter(keep=x.irreps)
        options = _options(self)
        options.pop("force_irreps_out")
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
        linear, declared, used, zero_flags = _general_linear(
            x.irreps,
            x.zero_flags,
            (self.channel_out or 1) * irreps_out,
            self.instructions,
            None if weights is None else weights.shape[-1],
            num_sets,
            options.pop("input_precision"),
            **options,
        )
        parameters = self._declare(declared, lead, x.dtype, factor)
        matrices = [parameters[n] for n in used]
        if weights is not None:
            matrices = [
                _matrix_of_weights(p, len(declared[n].shape))
                for p, n in zip(matrices, used, strict=True)
            ]
            x = e3nn.as_irreps_array(_row_of_weights(x, weights))
        return _evaluate([linear], [x], matrices, index, backend, zero_flags)

    def _declare(self, parameters, lead, dtype, factor=1.0) -> list:
        number, make = self.num_indexed_weights, self.parameter_initializer
        return [*declare(self, parameters, number, dtype, lead, factor, make).values()]

    def _reference(self) -> e3nn.flax.Linear:
        options = {name: getattr(self, name) for name in (*OF_FUSED, *OF_LINEAR)}
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
            of_names = [e3nn.flax.Linear(self.irreps_out, name=n, **options) for n in self.names]
            first, *rest = (linear(x) for linear, x in zip(of_names, inputs, strict=True))
            return sum(rest, first)
        prepared = [_prepared(x, self.irreps_out, options) for x in inputs]
        parameters = [
            p
            for name, (x, linear) in zip(self.names, prepared, strict=True)
            for p in _Parameters(linear, name=name)(x.dtype)
        ]
        arrays, of_inputs = zip(*prepared, strict=True)
        zero_flags = tuple(map(all, zip(*(li.zero_flags for li in of_inputs), strict=True)))
        out = _evaluate(of_inputs, arrays, parameters, None, backend, zero_flags)
        return rechunked(out, self.irreps_out)


class _Parameters(nn.Module):
    """The parameters of a Linear, in a scope of their own."""

    linear: linears.Linear

    @nn.compact
    def __call__(self, dtype):
        return list(declare(self, self.linear.parameters, None, dtype).values())


def _options(module) -> dict:
    options = {"biases": module.biases, "input_precision": matmul_precision(module.input_precision)}
    options |= linears.normalizations(module.path_normalization, module.gradient_normalization)
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

    `lead` are sizes of leading axes, `factor` is one of the standard deviations of the normal
    distribution, and `make` gives another initializer.
    """
    lead = (num_sets,) if num_sets else lead
    made = {}
    for p in parameters:
        initializer = nn.initializers.normal(stddev=factor * p.std) if make is None else make()
        made[p.name] = module.param(p.name, initializer, (*lead, *p.shape), dtype)
    return made


def _prepared(x, irreps_out, options):
    """Return an input whose blocks of one irrep are adjacent, and its Linear."""
    x = as_floating(e3nn.as_irreps_array(x))
    if any(x.zero_flags):
        x = x.remove_zero_chunks()
    irs = [ir for _, ir in x.irreps.simplify()]
    if len(set(irs)) < len(irs):
        x = x.regroup()
    flags = (False,) * len(x.irreps)
    return x, linears.linear(x.irreps, flags, e3nn.Irreps(irreps_out), **options)


def _evaluate(of_inputs, inputs, parameters, index, backend, zero_flags):
    shape = inputs[0].shape[:-1]
    if index is not None:
        shape = jnp.broadcast_shapes(shape, jnp.shape(index))
    batch_axes = BatchAxes(shape)
    arrays = [*(batch_axes.rows(x.array) for x in inputs), *parameters]
    dtype = promoted(inputs, parameters)
    arrays = [a.astype(dtype) for a in arrays]
    if index is not None:
        index = batch_axes.rows(index, others=0)
    linear_form = linears.sum_of(of_inputs)
    [out] = forms.evaluate_linear(linear_form, arrays, index, batch_axes.count, backend)
    return e3nn.IrrepsArray(of_inputs[0].irreps_out, batch_axes.apart(out), zero_flags=zero_flags)


def grouped_dense(
    x, kernels, *, scale: float = 1.0, split: bool = False, backend: str | None = None
) -> jax.Array | list[jax.Array]:
    """Apply dense layers without bias side by side, in one kernel: small ones cost mostly launches.

        out[:, k] = scale * x[:, k] @ kernels[k]

    Args:
      x: [rows, len(kernels) * n_in], the columns of layer k at k * n_in; or [rows, n_in], which all
        of them read.
      kernels: arrays [n_in, n_out], n_out of each its own.
      scale: of the result.
      split: return an array for each layer.
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs the definition, as "xla" does.
    Returns:
      [rows, sum of n_out] of the promoted dtype, a floating one; with `split` a list of
      [rows, n_out].
    Raises:
      ValueError: no kernels, kernels of several n_in, or an x that does not fit them.
    References: the radial networks of the layers of Batzner et al. 2022 (methods).
    """
    shapes = [kernel.shape for kernel in kernels]
    if len({n_in for n_in, _ in shapes}) != 1:
        raise ValueError(f"kernels [n_in, n_out] of one n_in are needed, got {shapes}")
    n_in, widths = shapes[0][0], tuple(n_out for _, n_out in shapes)
    if x.ndim != 2 or x.shape[1] not in (n_in, len(kernels) * n_in):
        raise ValueError(
            f"x must be [rows, {n_in}] or [rows, {len(kernels) * n_in}] for {len(kernels)} kernels "
            f"of {n_in} rows, got shape {x.shape}"
        )
    sizes = x.shape[1] // n_in, n_in, widths, split
    linear_form = _linear_form(*sizes, float(scale), matmul_precision())
    backend = resolve(backend, "grouped_dense", x, *kernels)
    dtype = jnp.result_type(x, *kernels)
    if not jnp.issubdtype(dtype, jnp.inexact):
        dtype = jnp.ones(()).dtype
    arrays = [jnp.asarray(a, dtype) for a in (x, *kernels)]
    outputs = forms.evaluate_linear(linear_form, arrays, None, x.shape[0], backend)
    return list(outputs) if split else outputs[0]


@functools.cache
def _linear_form(groups: int, n_in: int, widths, split: bool, scale: float, precision: str):
    count, starts = len(widths), (0, *itertools.accumulate(widths))
    rows_in = Rows(groups * n_in, tuple(Block(k * n_in, n_in, 1) for k in range(groups)))
    blocks = tuple(Block(starts[k], width, 1) for k, width in enumerate(widths))
    outputs = [Rows(starts[-1], blocks)]
    if split:
        outputs = [Rows(width, (Block(0, width, 1),)) for width in widths]
    out = [BlockRef(1 + count + k, 0) if split else BlockRef(1 + count, k) for k in range(count)]
    terms = tuple(Term(BlockRef(0, k % groups), 1 + k, out[k], scale) for k in range(count))
    inputs = rows_in, *(Weights((n_in, width)) for width in widths)
    return LinearForm(inputs, tuple(outputs), terms, 0, precision)
