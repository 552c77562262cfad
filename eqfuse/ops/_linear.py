"""`Linear`, e3nn's of node features, and `grouped_dense`: all matrices in one kernel."""

import dataclasses
import functools
import itertools

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse.ops._backend import matmul_precision, resolve
from eqfuse.ops._edges import nearest
from eqfuse.ops.ir import linear as linears
from eqfuse.ops.ir.form import Form, Operand, Path, Segment, SegmentRef
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.rules import BatchAxes

E3nnLinear = e3nn.flax.Linear
E3NN_FIELDS = {f.name: f.default for f in dataclasses.fields(E3nnLinear)}
OF_FUSED = ("biases", "path_normalization", "gradient_normalization", "force_irreps_out")
"""The options of `e3nn.flax.Linear` that fused ops have too."""
OF_LINEAR = ("channel_out", "instructions", "simplify_irreps_internally", "weights_per_channel")
"""Those with which e3nn's Linear itself runs, unless they are its defaults."""


def split_operands(first, x, num_indexed_weights: int | None):
    """Return (index, weights, x) of the operands of a Linear; one or both of the first are None.

    An index that there are no sets of weights for, and sets without an index, are refused.
    """
    first, x = (None, first) if x is None else (first, x)
    x = e3nn.as_irreps_array(x)
    if first is not None:
        dtype = jnp.asarray(getattr(first, "array", first)).dtype
        if not jnp.issubdtype(dtype, jnp.integer):
            if num_indexed_weights is None:
                return None, first, x
            raise ValueError(f"index must be of integers, got {dtype}")
    if (first is None) != (num_indexed_weights is None):
        raise ValueError("index is needed with num_indexed_weights, and only with it")
    return None if first is None else nearest(first, num_indexed_weights), None, x


def computed_by_e3nn(module, weights=None) -> str:
    """Return why e3nn's Linear computes a call, whatever the backend, or ""."""
    defaults = {n: E3NN_FIELDS[n] for n in OF_LINEAR}
    used = [n for n, default in defaults.items() if getattr(module, n, default) != default]
    used += ["weights as an operand"] if weights is not None else []
    return f"e3nn's Linear has {', '.join(used)}" if used else ""


def promoted(rows, parameters):
    """Return the dtype of a Linear: as for e3nn, float32 parameters widen rows of bfloat16."""
    return jnp.result_type(*(a.dtype for a in (*rows, *parameters)))


class Linear(e3nn.flax.Linear):
    """`e3nn.flax.Linear`, with its parameters: one kernel forward, one backward.

    Backward has a second launch, which adds up parts, from 2048 rows on.

    Attributes:
      irreps_out, irreps_in, channel_out, gradient_normalization, path_normalization, biases,
        parameter_initializer, instructions, num_indexed_weights, weights_per_channel,
        force_irreps_out, simplify_irreps_internally: as in `e3nn.flax.Linear`. With weights as an
        operand, `channel_out`, `weights_per_channel`, `instructions` or
        `simplify_irreps_internally=False`, `e3nn.flax.Linear` itself runs, whatever the backend.
      input_precision: of the matmuls on a GPU: "ieee" is float32, "tf32x3" close to it,
        "tf32" fast. None is "tf32x3" within
        `jax.default_matmul_precision("TF32_TF32_F32_X3")`, and "ieee" elsewhere.
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs `e3nn.flax.Linear` itself.
    References: e3nn-jax 0.21.

    Example:
      >>> x = e3nn.IrrepsArray("4x0e+2x1o", jnp.ones((3, 10)))
      >>> out, params = ops.Linear("8x0e+1o").init_with_output(jax.random.key(0), x)
      >>> out.irreps, out.shape
      (8x0e+1x1o, (3, 11))
      >>> jax.tree.map(jnp.shape, params)  # as of e3nn.flax.Linear
      {'params': {'w[0,0] 4x0e,8x0e': (4, 8), 'w[1,1] 2x1o,1x1o': (2, 1)}}
    """

    input_precision: str | None = None
    backend: str | None = None

    @nn.compact
    def __call__(self, weights_or_input, input_or_none=None):
        """Apply it: `linear(x)`; `linear(index, x)` with `num_indexed_weights`; `linear(e, x)`.

        Args:
          index: [...] integers, which set of weights a row takes. A negative one counts from the
            last set; one out of range takes the nearest set, and its gradient goes there.
          e: [..., d] or IrrepsArray of scalars, floating: weights that are contracted with
            parameters [d, mul_in, mul_out], as in the last layer of a radial network.
          x: IrrepsArray [..., irreps], with `channel_out` and the like as e3nn's.
        Returns:
          IrrepsArray [..., irreps_out], of the promoted dtype of the operands and the parameters,
          which are made in that of the operands: bfloat16 x with float32 parameters gives float32,
          as for e3nn.
        Raises:
          ValueError: an index without `num_indexed_weights`, or anything else with it; irreps that
            do not fit; a backend that cannot run. AssertionError: as e3nn's, where that runs.
        """
        sets = self.num_indexed_weights
        index, weights, x = split_operands(weights_or_input, input_or_none, sets)
        first = weights if index is None else index
        own = computed_by_e3nn(self, weights)
        parameters = jax.tree.leaves(self.variables)
        backend = resolve(self.backend, "linear", x, first, *parameters, of_e3nn=own)
        if backend == "e3nn":
            return super().__call__(*((x,) if first is None else (first, x)))
        irreps_in = e3nn.Irreps(x.irreps if self.irreps_in is None else self.irreps_in)
        if irreps_in.regroup() != x.irreps.regroup():
            raise ValueError(f"x has irreps {x.irreps}, and irreps_in is {irreps_in}")
        x = _adjacent(x)
        linear = linears.linear(
            x.irreps,
            (False,) * len(x.irreps),
            e3nn.Irreps(self.irreps_out),
            force_irreps_out=self.force_irreps_out,
            biases=self.biases,
            **linears.normalizations(self.path_normalization, self.gradient_normalization),
            num_sets=sets or 0,
            input_precision=matmul_precision(self.input_precision),
        )
        make = self.parameter_initializer
        parameters = [*declare(self, linear.parameters, sets, x.dtype, make).values()]
        shape = x.shape[:-1]
        if index is not None:
            shape = jnp.broadcast_shapes(shape, jnp.shape(index))
        batch_axes = BatchAxes(shape)
        dtype = promoted([x], parameters)
        arrays = [a.astype(dtype) for a in (batch_axes.flatten(x.array), *parameters)]
        if index is not None:
            index = batch_axes.flatten(index, others=0)
        [z] = forms.evaluate_linear(linear.linear_form, arrays, index, batch_axes.count, backend)
        flags = linear.zero_flags
        out = e3nn.IrrepsArray(linear.irreps_out, batch_axes.unflatten(z), zero_flags=flags)
        return rechunked(out, self.irreps_out) if self.force_irreps_out else out


def rechunked(x: e3nn.IrrepsArray, irreps) -> e3nn.IrrepsArray:
    """Return x with blocks as in irreps, which are equal to its own but for how they are cut."""
    irreps = e3nn.Irreps(irreps)
    return x if x.irreps == irreps else x.rechunk(irreps)


def declare(
    module: nn.Module, parameters, num_sets: int | None, dtype, make=None
) -> dict[str, jax.Array]:
    """Return parameters of e3nn's Linear by name, in the scope of a module, in their order.

    `make` gives another initializer than normal numbers.
    """
    lead = (num_sets,) if num_sets else ()
    made = {}
    for p in parameters:
        initializer = nn.initializers.normal(stddev=p.std) if make is None else make()
        made[p.name] = module.param(p.name, initializer, (*lead, *p.shape), dtype)
    return made


def _adjacent(x) -> e3nn.IrrepsArray:
    """Return an input whose blocks of one irrep are adjacent."""
    # a new array, since e3nn's keeps its chunks, and x may outlive this trace
    x = x.astype(x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.float32)
    if any(x.zero_flags):
        x = x.remove_zero_chunks()
    irs = [ir for _, ir in x.irreps.simplify()]
    return x.regroup() if len(set(irs)) < len(irs) else x


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

    Example:
      >>> kernels = [jnp.ones((8, 2)), jnp.ones((8, 5))]
      >>> first, second = ops.grouped_dense(jnp.ones((3, 8)), kernels, split=True)
      >>> first.shape, second.shape
      ((3, 2), (3, 5))
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
    places = tuple(Segment.mul_ir(k * n_in, n_in, 1) for k in range(groups))
    blocks = tuple(Segment.mul_ir(starts[k], width, 1) for k, width in enumerate(widths))
    outputs = [Operand("z", starts[-1], blocks, True)]
    if split:
        parts = [(Segment.mul_ir(0, n, 1),) for n in widths]
        outputs = [Operand(f"z{k}", n, parts[k], True) for k, n in enumerate(widths)]
    out = [SegmentRef(k, 0) if split else SegmentRef(0, k) for k in range(count)]
    paths = (
        Path.of_matrix(SegmentRef(0, k % groups), 1 + k, z, scale, 1) for k, z in enumerate(out)
    )
    inputs = [Operand("x", groups * n_in, places, True)]
    inputs += [Operand.of_matrix(f"w{k}", (n_in, width)) for k, width in enumerate(widths)]
    return Form(tuple(inputs), tuple(outputs), tuple(paths), 0, precision)
