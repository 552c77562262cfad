"""One Triton kernel inside a JAX computation, launched once."""

import itertools
import math

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.backends.triton import linear
from eqfuse.ops.backends.triton.runtime import lower_gpu
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.ir.form import Form, Index, rows_of_nodes

launch_p = Primitive("eqfuse_launch")
launch_p.multiple_results = True


def launch(spec: KernelSpec, arrays, shapes, scalars, grid: tuple[int, ...], aliases=()):
    """Run a kernel on arrays and scalars; return outputs of these shapes.

    `aliases` are pairs (input, output) that are one array: the kernel adds to what is there.
    """
    return launch_p.bind(
        *arrays,
        spec=spec,
        shapes=tuple(shapes),
        scalars=tuple(scalars),
        grid=grid,
        aliases=aliases,
    )


@launch_p.def_abstract_eval
def _abstract(*arrays, spec, shapes, **params):
    return [
        jax.core.ShapedArray(shape, jnp.dtype(dtype))
        for shape, dtype in zip(shapes, spec.output_dtypes, strict=True)
    ]


def _lower(ctx, *operands, spec, shapes, scalars, grid, aliases):
    return lower_gpu(ctx, spec, operands, scalars, grid, aliases)


def _refuse(ctx, *operands, **params):
    raise ValueError(
        "backend 'triton' runs on a GPU (CUDA or ROCm), and this computation is for a CPU; use "
        "backend='llvm' or 'xla' there"
    )


mlir.register_lowering(launch_p, _refuse, platform="cpu")
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(launch_p, _lower, platform=_platform)


def form_plans(
    form: Form, dtype: str, num_rows: int, num_nodes: int, deterministic: bool = True
) -> list[tuple[int, ...]]:
    """Return the plans of the kernels of a form, what the rule says first.

    The first number of a plan is how many edges a program has at a time, negative where receivers
    own all edges; the second how many channels at most, 0 for the rule's; the third is 1 where rows
    of senders are written for each edge and summed by another kernel, and not added atomically, and
    2 where one kernel has the senders' sums alone, and another, of receivers, all that remains; the
    fourth by what the warps of a program are divided, whose threads then have several channels.
    In two kernels, an edge would read 54 kB of weights, features and cotangents (NequIP, 64
    channels), by an estimate, and in one 29 to 41.
    """
    rule = _lanes(form, dtype, num_rows, num_nodes)
    if not form.on_graph or dtype == "float64":  # whose kernels have no registers left
        return [(rule,)]
    channels = 0 if all(o.channels for o in form.outputs) else plan.WARP  # sums without barriers
    wanted = [(rule,), *((lanes,) for lanes in LANES), (rule, channels), (1, 0, 0, 2)]
    if any(o.index is Index.SENDER for o in form.outputs):
        if any(o.index is Index.RECEIVER for o in form.inputs):
            wanted += [(-1, channels, 1)] * (dtype == "float32") + [(rule, channels, 2)]
        if not deterministic:
            wanted += [(-1,), (-rule,), (-1, channels)]
    texts: dict[tuple, tuple[int, ...]] = {}
    for chosen in wanted:
        texts.setdefault(_kernels(form, dtype, chosen), chosen)  # each once
    return list(texts.values())


def _kernels(form: Form, dtype: str, chosen: tuple[int, ...]) -> tuple[plan.FormKernel, ...]:
    lanes, channels, apart, divisor = (*chosen, *(0, 0, 0, 1)[len(chosen) :])
    if apart == 2:
        parts = [(part, (sign * lanes, channels)) for _, _, part, sign in _by_end(form)]
        return tuple(k for part, how in parts for k in _kernels(part, dtype, how))
    form = _of_edges(form) if apart else form
    kernels = plan.kernels(form, dtype, abs(lanes), lanes < 0, channels)
    return kernels if divisor == 1 else tuple(k.with_fewer_warps(divisor) for k in kernels)


def _of_edges(form: Form) -> Form:
    """Return the form with a row for each edge in the place of sums of senders."""
    rows = {o: Index.ROW for o, out in enumerate(form.outputs) if out.index is Index.SENDER}
    return form.indexed({}, rows)


def _by_end(form: Form):
    """Yield the outputs, the inputs and the form of sums of senders, and of all others.

    Last is 1 where senders walk their edges, and -1 where receivers do.
    """
    sums = [o.index is Index.SENDER for o in form.outputs]
    for sign, wanted in ((1, sums), (-1, [not s for s in sums])):
        if any(wanted):
            part = form.restrict(tuple(wanted))
            used = part.used_inputs()
            yield wanted, used, part.drop_inputs(used), sign


def _lanes(form: Form, dtype: str, num_rows: int, num_nodes: int) -> int:
    return plan.edge_lanes(form, dtype, num_rows, num_nodes) if form.on_graph else 1


LANES = 1, 2, 4, 8
"""Edges of a node that a program may have at a time."""


def run_form(form: Form, inputs, indices, num_rows: int, num_nodes: int, chosen=None):
    """Return the outputs of a form, computed by its kernels.

    `indices` are arrays by name, and `chosen` one of `form_plans`, the first if it is None.
    """
    sizes = {"num_rows": num_rows, "num_nodes": num_nodes}
    results: dict[int, jax.Array] = {}
    dtype, dtypes = form.dtypes(inputs)
    chosen = chosen or (_lanes(form, dtype, num_rows, num_nodes),)
    given = indices, num_rows, num_nodes
    if chosen[2:3] == (1,):
        outputs = run_form(_of_edges(form), inputs, *given, chosen[:2])
        for o, operand in enumerate(form.outputs):
            if operand.index is Index.SENDER:
                sums = rows_of_nodes(operand.size, Index.SENDER, True)
                [outputs[o]] = run_form(sums, [outputs[o]], *given)
        return outputs
    if chosen[2:3] == (2,):
        for wanted, used, part, sign in _by_end(form):
            how = sign * chosen[0], chosen[1]
            found = run_form(part, [*itertools.compress(inputs, used)], *given, how)
            results |= zip(itertools.compress(range(len(wanted)), wanted), found, strict=True)
        return [results[o] for o in range(len(form.outputs))]
    for kernel in _kernels(form, dtype, chosen):
        arrays = [inputs[i] for i in kernel.inputs]
        arrays += [indices[name] for name in kernel.index_arrays]
        aliases = tuple(
            (len(arrays) + n, kernel.outputs.index(o)) for n, o in enumerate(kernel.continued)
        )
        shapes = {o: form.shape(form.outputs[o], num_rows, num_nodes) for o in kernel.outputs}
        shapes |= {o: (kernel.channel_blocks, *shapes[o]) for o in kernel.partial}
        types = dict(zip(kernel.outputs, kernel.spec.output_dtypes, strict=True))
        for o in set(kernel.continued) - set(results):
            results[o] = jnp.zeros(shapes[o], types[o])
        written = launch(
            kernel.spec,
            [*arrays, *(results[o] for o in kernel.continued)],
            list(shapes.values()),
            [sizes[name] for name in kernel.spec.scalars],
            kernel.grid(num_rows, num_nodes),
            aliases,
        )
        results.update(zip(kernel.outputs, written, strict=True))
    whole = [results[o] for o in range(len(form.outputs))]
    whole = [a.sum(axis=0) if a.ndim == 3 else a for a in whole]
    return [a.astype(t) for a, t in zip(whole, dtypes, strict=True)]


ROWS_OF_A_PART = 128  # the fewest that a program walks for its sum of a gradient of weights
MOST_PARTS = 256  # such sums; fewer where they would take more memory than the linear form reads


def num_parts(linear_form: Form, num_rows: int) -> int:
    """Return the number of programs that share the rows of a gradient of weights."""
    shapes = [linear_form.shape(o, num_rows) for o in linear_form.outputs if o.matrix]
    if not shapes:
        return 1
    read = sum(math.prod(linear_form.shape(o, num_rows)) for o in linear_form.inputs)
    most = read // max(1, sum(map(math.prod, shapes)))
    return max(1, min(most, MOST_PARTS, num_rows // ROWS_OF_A_PART))


def linear_plans(linear_form: Form, dtype: str, num_rows: int) -> list[tuple[int]]:
    """Return the tiles that the kernel of a linear form may have; what the rule says first.

    Negative ones are of kernels that split the factors of "tf32x3" by bits.
    """
    parts = num_parts(linear_form, num_rows)
    rule = linear.tile(linear_form, dtype, num_rows, parts)
    if dtype == "float64" or linear_form.num_sets:
        return [(rule,)]
    tiles = [rule, linear.WIDE_TILE if rule == linear.TILE else linear.TILE]
    in_three = dtype == "float32" and linear_form.input_precision == "tf32x3"
    return [(tile,) for tile in tiles + [-tile for tile in tiles] * in_three]


def run_linear_form(linear_form: Form, arrays, index, num_rows: int, chosen=None):
    """Return the outputs of a linear form, from one kernel; another adds up parts of gradients.

    `chosen` is one of `linear_plans`, the first if it is None.
    """
    dtype = arrays[0].dtype.name
    parts = num_parts(linear_form, num_rows)
    shapes = [
        (parts, *linear_form.shape(o, num_rows))
        if parts > 1 and o.matrix
        else linear_form.shape(o, num_rows)
        for o in linear_form.outputs
    ]
    [tile] = chosen or (linear.tile(linear_form, dtype, num_rows, parts),)
    if abs(tile) == linear.WIDE_TILE and not linear_form.num_sets:
        linear_form, turned = linear_form.turned()  # for many rows worth the launches
        arrays = [*arrays, *(arrays[n].T for n in turned)]
    results = launch(
        linear.generate(linear_form, dtype, parts > 1, tile),
        [*arrays, *index],
        shapes,
        (num_rows, parts),
        (linear.programs(linear_form, num_rows, parts, abs(tile)),),
    )
    if parts == 1:
        return results
    return reduced(linear_form.outputs, results, dtype)


def reduced(operands, results, dtype: str):
    """Return the results, those of weights summed over their first axis by one kernel."""
    places = [n for n, o in enumerate(operands) if o.matrix]
    sizes = tuple(math.prod(results[n].shape[1:]) for n in places)
    sums = launch(
        linear.reduction(sizes, dtype),
        [results[n] for n in places],
        [results[n].shape[1:] for n in places],
        (results[places[0]].shape[0],),
        (linear.reduction_programs(sizes),),
    )
    results = list(results)
    for n, total in zip(places, sums, strict=True):
        results[n] = total
    return results
