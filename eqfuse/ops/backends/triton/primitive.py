"""One Triton kernel inside a JAX computation, launched once."""

import itertools
import math
from typing import NamedTuple

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

    `aliases` are pairs (input, output) of arrays that share their memory, so that what the kernel
    does not write of the output keeps the input's value.
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


def _refuse(ctx, *operands, **params):
    raise ValueError(
        "backend 'triton' runs on a GPU (CUDA or ROCm), and this computation is for a CPU; use "
        "backend='llvm' or 'xla' there"
    )


mlir.register_lowering(launch_p, _refuse, platform="cpu")
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(launch_p, lower_gpu, platform=_platform)


def form_plans(
    form: Form, dtype: str, num_rows: int, num_nodes: int, deterministic: bool = True
) -> list[tuple[int, ...]]:
    """Return the plans of the kernels of a form, see `Plan`; what the rule says first.

    In two kernels, an edge would read 54 kB of weights, features and cotangents (NequIP, 64
    channels), by an estimate, and in one 29 to 41.
    """
    rule = plan.edge_lanes(form, dtype, num_rows, num_nodes)
    if not form.on_graph or dtype == "float64":  # whose kernels have no registers left
        return [(rule,)]
    channels = 0 if all(o.channels for o in form.outputs) else plan.WARP  # sums without barriers
    wanted = [(rule,), *((lanes,) for lanes in LANES), (rule, channels), (1, 0, 0, 2)]
    of_senders = [o.index is Index.SENDER for o in form.outputs]
    if any(of_senders):
        if any(o.index is Index.RECEIVER for o in form.inputs):
            wanted += [(-1, channels, 1)] * (dtype == "float32")
            wanted += [(rule, channels, 2)] * (not all(of_senders))
        if not deterministic:
            wanted += [(-1,), (-rule,), (-1, channels)]
    texts: dict[tuple, tuple[int, ...]] = {}
    for chosen in wanted:  # each once
        lanes, channels, apart, divisor = Plan(*chosen)
        own = chosen if apart else plan.kernels(form, dtype, lanes, channels, divisor)
        texts.setdefault(own, chosen)
    return list(texts.values())


class Plan(NamedTuple):
    """How a form is computed.

    Attributes:
      lanes: edges that a program has at a time, negative where receivers own all edges.
      channels: of a program at most; 0 for the rule's.
      apart: 1 where rows of senders are written for each edge and summed by another kernel, and not
        added atomically; 2 where one kernel has the senders' sums alone, and another, of receivers,
        all that remains.
      divisor: of the warps of a program, whose threads then have several channels.
    """

    lanes: int
    channels: int = 0
    apart: int = 0
    divisor: int = 1


LANES = 1, 2, 4, 8
"""Edges of a node that a program may have at a time."""


def run_form(form: Form, inputs, indices, num_rows: int, num_nodes: int, chosen=None):
    """Return the outputs of a form, computed by its kernels.

    `indices` are arrays by name, and `chosen` one of `form_plans`, the first if it is None.
    """
    dtype, dtypes = form.dtypes(inputs)
    chosen = chosen or (plan.edge_lanes(form, dtype, num_rows, num_nodes),)
    lanes, channels, apart, divisor = Plan(*chosen)
    if apart:
        run = _senders_by_edge if apart == 1 else _senders_apart
        return run(form, inputs, (indices, num_rows, num_nodes), lanes, channels)
    sizes = {"num_rows": num_rows, "num_nodes": num_nodes}
    results: dict[int, jax.Array] = {}
    for kernel in plan.kernels(form, dtype, lanes, channels, divisor):
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


def _senders_by_edge(form: Form, inputs, given, lanes: int, channels: int):
    """Return the outputs; those of senders are written for each edge, and then summed."""
    senders = [o for o, out in enumerate(form.outputs) if out.index is Index.SENDER]
    of_edges = form.indexed({}, dict.fromkeys(senders, Index.ROW))
    outputs = run_form(of_edges, inputs, *given, (lanes, channels))
    for o in senders:
        sums = rows_of_nodes(form.outputs[o].size, Index.SENDER, True)
        [outputs[o]] = run_form(sums, [outputs[o]], *given)
    return outputs


def _senders_apart(form: Form, inputs, given, lanes: int, channels: int):
    """Return the outputs: senders walk their edges for theirs, and receivers for all others."""
    results = {}
    for of_senders, own_lanes in ((True, lanes), (False, -lanes)):
        own = tuple((o.index is Index.SENDER) == of_senders for o in form.outputs)
        if any(own):
            part = form.restrict(own)
            used = part.used_inputs()
            arrays = [*itertools.compress(inputs, used)]
            found = run_form(part.drop_inputs(used), arrays, *given, (own_lanes, channels))
            results |= zip(itertools.compress(range(len(own)), own), found, strict=True)
    return [results[o] for o in range(len(form.outputs))]


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
