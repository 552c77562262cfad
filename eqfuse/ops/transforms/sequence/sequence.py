"""`sequence`: a whole small computation, such as a training step, in one native call."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
from jax.extend.core import jaxpr_as_fun

from eqfuse.ops.transforms.sequence.primitive import Traced, sequence_p

MOST = {"llvm": 3_500_000, "triton": 0, "triton-interpret": 0}
"""Operations from which on it is worth more to share each step out, by backend: see `sequence`.

None on a GPU: a training step of the Tetris network is predicted to take 276 us in one block, and
84 in 44 launches (benchmarks/results/sequences.md).
"""


def sequence(
    function: Callable | None = None,
    *,
    most: float | None = None,
    report: bool | Callable[[str], None] = False,
    **options,
) -> Callable:
    """Compile a function, as `jax.jit` does, into one native call where it is small.

    A network of few channels, on few atoms, spends most of its time on beginning operations. The
    function is traced, and its products, Linears and fused ops of backend "llvm" or "triton" with
    what is between them (element-wise functions, changes of shape, sums, rows gathered and added)
    become one kernel, which runs them one after the other. What it does not know, XLA computes:
    before it, after it, or between several such kernels. On several devices, on a mesh of explicit
    axes, inside `shard_map`, and with one in it or with a sharding constraint, the function is
    computed as it is written.

    On a GPU one block is the kernel, on one multiprocessor. By prediction that takes longer than
    the launches of all steps, unless the host is what they wait for, so it has to be asked for,
    with `most=math.inf`.

    Pass a function that takes its gradients itself, such as `jax.value_and_grad(loss)` or a whole
    training step. What is returned can be differentiated and mapped too: its derivatives are those
    of `function`, computed as they are without `sequence`.

    Args:
      function: of any arguments that `jax.jit` takes.
      most: operations, about, beyond which the function is computed as it is written: then it is
        worth more to share each one out. On a CPU they are of vectors. None is 3.5 million on a
        CPU, and none on a GPU.
      report: print, whenever the function is traced, a table of what is computed how, and why not
        otherwise. A function in its place is given one line about what was chosen. Another
        line follows where it is computed as it is written after all, for what becomes known later:
        several devices, another kind of device, derivatives, `vmap`.
      options: of `jax.jit`.
    Returns:
      The compiled function. Without a `function`, a decorator.
    """
    if function is None:
        return functools.partial(sequence, most=most, report=report, **options)

    log = report if callable(report) else print if report else lambda text: None

    @functools.wraps(function)
    def sequenced(*args, **kwargs):
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.explicit_axes or mesh.manual_axes:
            log("as written: inside shard_map, or on a mesh of explicit axes")
            return function(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays, structure = [leaves[n] for n in places], []

        def flat(*arrays):
            full = list(leaves)
            for n, array in zip(places, arrays, strict=True):
                full[n] = array
            args, kwargs = jax.tree.unflatten(tree, full)
            outputs, tree_out = jax.tree.flatten(function(*args, **kwargs))
            structure.append(tree_out)
            return outputs

        traced = Traced(jax.make_jaxpr(flat)(*arrays), MOST if most is None else most, log)
        if report:
            log(traced.choice if callable(report) else table(traced))
        if traced.reason:
            outputs = jaxpr_as_fun(traced.closed)(*traced.tracers, *arrays)
        else:
            outputs = sequence_p.bind(*traced.tracers, *arrays, call=traced)
        return jax.tree.unflatten(structure[0], outputs)

    return jax.jit(sequenced, **options)


def table(traced: Traced) -> str:
    """Return the report: a line for each native call, and for each reason why others are none."""
    if traced.reason:
        return traced.choice
    lines = [("operations", "computed by", "why not")]
    for stage in traced.stages.native:
        products = len(stage.program.multilinear)
        operations = f"{len(stage.nodes)}, {products} of them products and Linears"
        lines.append(
            (operations, f"a native call of {len(stage.program.in_loops.steps)} steps", "")
        )
    for reason, count in sorted(traced.stages.reasons.items()):
        if reason:
            lines.append((str(count), "XLA", reason))
    widths = [max(len(line[n]) for line in lines) for n in range(3)]
    rows = (" | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(row.rstrip() for row in rows)
