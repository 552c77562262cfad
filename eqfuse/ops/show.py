"""The report of a tensor product: its form, its kernels, and their registers.

python -m eqfuse.ops.show "32x0e+32x1o" "0e+1o+2e" --graph --weights --order backward
"""

from __future__ import annotations

import argparse
import importlib.util
import re

import e3nn_jax as e3nn
import jax.numpy as jnp

from eqfuse.ops._backend import explain
from eqfuse.ops._tensor_product import irreps_filter, normalization
from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.backends.triton.form import FormKernel
from eqfuse.ops.ir import linear as linears
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Form, Index
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.primitives.choice import MODES, choose, resolve_fused

ORDERS = ("forward", "backward", "double")
ITEMSIZE = {"float32": 4, "float64": 8, "bfloat16": 2}


def gradients(form: Form) -> Form:
    """Return the backward pass, from inputs and cotangents of the outputs to gradients."""
    inputs = len(form.inputs)
    tangents = form.jvp((True,) * inputs)
    return tangents.transpose((False,) * inputs + (True,) * inputs, (True,) * len(form.outputs))


def derivatives(form: Form) -> dict[str, Form]:
    """Return the form ("forward"), its backward pass, and the backward pass of that ("double")."""
    backward = gradients(form)
    return dict(zip(ORDERS, (form, backward, gradients(backward)), strict=True))


def show(
    irreps_x: str,
    irreps_y: str,
    *,
    filter_ir_out=None,
    graph: bool = False,
    weights: bool = False,
    irrep_normalization: str | None = None,
    order: str = "forward",
    dtype: str = "float32",
    target: str = "sm_90",
    source: bool = False,
    num_edges: int = 2700,
    num_nodes: int = 135,
    backend: str | None = None,
    linear: str | None = None,
    fused: str | None = None,
) -> str:
    """Return the text that the command prints.

    Args:
      irreps_x, irreps_y: of the operands.
      filter_ir_out, irrep_normalization: as in `eqfuse.ops.tensor_product`.
      graph: x per node through the senders, output summed to the receivers; else by rows.
      weights: a weight for each edge and irrep of the output, on a graph.
      order: "forward", "backward" or "double" (the backward pass of the backward pass).
      dtype: "float32", "float64" or "bfloat16".
      target: "sm_90", "gfx942" or their like, compiled for if triton is installed; "none".
      source: whether to print the kernels, and not only where they are.
      num_edges, num_nodes: what operations and bytes are counted for; edges are the rows of a
        product without a graph.
      backend: as in `eqfuse.ops.tensor_product`; the text says what runs the op on this machine,
        and shows the kernels of "triton" whatever that is.
      linear: irreps of a Linear that follows; the text says whether both are one kernel, and why.
      fused: see `eqfuse.ops.resolve_fused`.
    Raises:
      ValueError: irreps that are none, an unknown normalisation or target, a backend that cannot
        run here, or no kernel where `fused` is "always".
    """
    op = explain(backend, "graph_tensor_product" if graph or weights else "tensor_product")
    product = products.tensor_product(
        _irreps(irreps_x),
        _irreps(irreps_y),
        None if filter_ir_out is None else irreps_filter(_irreps(filter_ir_out)),
        normalization(irrep_normalization),
        weighted=weights,
        on_graph=graph or weights,
    )
    form = derivatives(product.form)[order]
    compiles = target != "none" and importlib.util.find_spec("triton") is not None
    kernels = plan.kernels(form, dtype) if form.paths else ()
    counts = num_edges, num_nodes
    sections = [
        f"{irreps_x} (x) {irreps_y} -> {product.irreps_out or 'nothing'}",
        *_notes(product, graph or weights),
        f"{op.kind} runs here on {op.backend}{op.why and ', ' + op.why}",
        *_fused_lines(product, irreps_x, irreps_y, linear, fused, op.backend, counts, dtype),
        "",
        repr(form),
        "",
        _work(form, dtype, num_edges, num_nodes),
        "",
        *_plan_lines(form, kernels, num_edges, num_nodes, source),
    ]
    if compiles and kernels:
        sections += ["", *_report(kernels, target)]
    elif target != "none" and kernels:
        sections += ["", f"not compiled for {target}: triton is not installed (eqfuse[cuda])"]
    return "\n".join(sections)


def _irreps(text) -> e3nn.Irreps:
    try:
        return e3nn.Irreps(text)
    except ValueError as error:
        raise ValueError(f"{text!r} are no irreps (such as '32x0e+32x1o'): {error}") from error


def _notes(product: products.Product, on_graph: bool):
    if product.channel_columns:
        yield "both have many channels: x and y are repeated for every pair of channels before it"
        if on_graph:
            yield "on a graph: this product per edge, times weights, then a sum to the receivers"
    if not product.form.paths:
        yield "no path from x and y to these irreps: the output is empty or zero, without a kernel"


def _fused_lines(product, irreps_x, irreps_y, linear, fused, backend, counts, dtype: str):
    if linear is None:
        return
    flags = [(False,) * len(_irreps(irreps)) for irreps in (irreps_x, irreps_y)]
    irreps = products.product_irreps(_irreps(irreps_x), _irreps(irreps_y), None, *flags)
    options = {"force_irreps_out": False, "biases": False, "num_sets": 0, "input_precision": "ieee"}
    options |= linears.normalizations(None, None)
    mixed, _ = linears.for_product(
        product.irreps_out, product.zero_flags, irreps, _irreps(linear), **options
    )
    whole = Fused.build(product.form, mixed, None, False)
    chosen = choose(resolve_fused(fused), whole, *counts, backend, jnp.dtype(dtype))
    yield f"with a Linear to {mixed.irreps_out}, {chosen.text}"


def _work(form: Form, dtype: str, num_edges: int, num_nodes: int) -> str:
    counts = form.counts(num_edges, num_nodes, ITEMSIZE[dtype])
    rows = f"{num_edges} edges, {num_nodes} nodes" if form.on_graph else f"{num_edges} rows"
    return (
        f"{counts.paths} paths, {counts.terms} terms; for {rows} in {dtype}: "
        f"{counts.operations:.3g} operations, {counts.bytes:.3g} bytes at least"
    )


def _plan_lines(form: Form, kernels: tuple[FormKernel, ...], num_edges, num_nodes, source: bool):
    yield f"{len(kernels)} kernel{'' if len(kernels) == 1 else 's'}"
    for kernel in kernels:
        owned = kernel.reduce_over
        reduce_over = "a block of rows" if owned is Index.ROW else f"one {owned.value}"
        reads = [form.inputs[i].name for i in kernel.inputs] + list(kernel.index_arrays)
        writes = [
            form.outputs[o].name + " (added to)" * (o in kernel.continued) for o in kernel.outputs
        ]
        grid = "x".join(map(str, kernel.grid(num_edges, num_nodes)))
        yield (
            f"  {kernel.spec.name}: a program owns {reduce_over}, reads {', '.join(reads)}, writes "
            f"{', '.join(writes)}; grid {grid}, {kernel.spec.num_warps} warps"
        )
        if source:
            yield "\n" + kernel.spec.source


def _report(kernels: tuple[FormKernel, ...], target: str):
    from eqfuse.ops.backends.triton.compile import compile_many, source_file

    yield f"compiled for {target}"
    for kernel in kernels:
        compiled = compile_many([kernel.spec], target)[0]
        yield (
            f"  {compiled.registers} registers, {compiled.spilled_bytes} bytes spilled, "
            f"{compiled.shared_bytes} bytes of shared memory, "
            f"{compiled.compile_seconds} s to compile"
            f"{' (from disk)' if compiled.from_disk else ''}\n  {source_file(kernel.spec)}"
        )


def _target(text: str) -> str:
    if text != "none" and not re.fullmatch(r"sm_\d{2,3}|gfx[0-9a-f]{3,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of 'sm_90', 'gfx942', their like, none")
    return text


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    """Print `show` of the command line's arguments."""
    parser = argparse.ArgumentParser(prog="eqfuse show", description=__doc__.split("\n")[0])
    parser.add_argument("irreps_x", help="of the first operand, such as '32x0e+32x1o'")
    parser.add_argument("irreps_y", help="of the second operand, such as '0e+1o+2e'")
    parser.add_argument(
        "--filter", dest="filter_ir_out", metavar="IRREPS", help="irreps of the output to keep"
    )
    parser.add_argument("--graph", action="store_true", help="gather x, sum to the receivers")
    parser.add_argument("--weights", action="store_true", help="weighted edges of a graph")
    parser.add_argument(
        "--normalization", dest="irrep_normalization", choices=("component", "norm", "none")
    )
    parser.add_argument("--order", choices=ORDERS, default="forward")
    parser.add_argument("--dtype", choices=tuple(ITEMSIZE), default="float32")
    parser.add_argument("--target", type=_target, default="sm_90", help="or gfx942, ..., none")
    parser.add_argument("--backend", help="what to run on, such as triton,tensor_product=xla")
    parser.add_argument("--linear", metavar="IRREPS", help="of a Linear that follows")
    parser.add_argument("--fused", choices=MODES, help="whether both are one kernel")
    parser.add_argument("--source", action="store_true", help="print the kernels")
    parser.add_argument(
        "--edges", dest="num_edges", type=_size, default=2700, help="to count work for, or rows"
    )
    parser.add_argument(
        "--nodes", dest="num_nodes", type=_size, default=135, help="to count work for"
    )
    options = vars(parser.parse_args(arguments))
    try:
        print(show(options.pop("irreps_x"), options.pop("irreps_y"), **options))
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


if __name__ == "__main__":
    main()
