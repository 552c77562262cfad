"""The Triton kernels of a linear form inside a JAX computation."""

import functools
import math

from eqfuse.ops.backends.triton.emit import linear_kernel, linear_plan
from eqfuse.ops.backends.triton.launch import launch
from eqfuse.ops.ir.linear_form import LinearForm, Weights

ROWS_OF_A_PART = 128
"""The fewest rows that a program walks for its sum of a gradient of weights."""
MOST_PARTS = 256
"""The most such sums; fewer where they would take more memory than the linear form reads."""

kernel = functools.lru_cache(maxsize=512)(linear_kernel.generate)
reduction = functools.lru_cache(maxsize=512)(linear_kernel.reduction)


def num_parts(linear_form: LinearForm, arrays, num_rows: int) -> int:
    """Return how many programs share the rows of a gradient of weights."""
    shapes = [linear_form.shape(o, num_rows) for o in linear_form.outputs if isinstance(o, Weights)]
    if not shapes:
        return 1
    most = sum(a.size for a in arrays) // max(1, sum(map(math.prod, shapes)))
    return max(1, min(most, MOST_PARTS, num_rows // ROWS_OF_A_PART))


def run(linear_form: LinearForm, arrays, index, num_rows: int, backend: str):
    """Return the outputs of a linear form, from one kernel; another adds up parts of gradients."""
    dtype = arrays[0].dtype.name
    parts = num_parts(linear_form, arrays, num_rows)
    shapes = [
        (parts, *linear_form.shape(o, num_rows))
        if parts > 1 and isinstance(o, Weights)
        else linear_form.shape(o, num_rows)
        for o in linear_form.outputs
    ]
    tile = linear_plan.tile(linear_form, dtype, num_rows, parts)
    if tile == linear_plan.WIDE_TILE and not linear_form.num_sets:
        linear_form, turned = linear_form.turned()  # for many rows worth the launches
        arrays = [*arrays, *(arrays[n].T for n in turned)]
    results = launch(
        kernel(linear_form, dtype, parts > 1, tile),
        [*arrays, *index],
        shapes,
        (num_rows, parts),
        (linear_plan.programs(linear_form, num_rows, parts, tile),),
        backend,
    )
    if parts == 1:
        return results
    return reduced(linear_form.outputs, results, dtype, backend)


def reduced(operands, results, dtype: str, backend: str):
    """Return the results, those of weights summed over their first axis by one kernel."""
    places = [n for n, o in enumerate(operands) if isinstance(o, Weights)]
    sizes = tuple(math.prod(results[n].shape[1:]) for n in places)
    sums = launch(
        reduction(sizes, dtype),
        [results[n] for n in places],
        [results[n].shape[1:] for n in places],
        (results[places[0]].shape[0],),
        (linear_kernel.reduction_programs(sizes),),
        backend,
    )
    results = list(results)
    for n, total in zip(places, sums, strict=True):
        results[n] = total
    return results
