"""Print the form of a tensor product, its kernels for a GPU, and their registers where compiled.

python scripts/show.py 32x0e+32x1o 0e+1o+2e --graph --weights --order backward --source
"""

import argparse
import importlib.util
import math
import sys
from pathlib import Path

import e3nn_jax as e3nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.backends.triton.compile import compile_kernel
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Form, Index, derivatives

ITEMSIZE = {"float32": 4, "float64": 8, "bfloat16": 2}


def counts(form: Form, num_rows: int, num_nodes: int, itemsize: int) -> tuple[int, int]:
    """Return work and least memory traffic, of each operand moved once.

    A term counts one operation for each factor after the first, one for its coefficient and one for
    the sum; nothing that terms share is taken off.
    """
    operations = 0
    for path in form.paths:
        muls = (form.inputs[s.operand].segments[s.segment].mul for s in path.factors)
        operations += max(muls) * len(path.terms) * (len(path.factors) + 1)
    elements = sum(math.prod(form.shape(o, num_rows, num_nodes)) for o in form.operands)
    return operations * num_rows, elements * itemsize


def text(form: Form, options) -> str:
    """Return what is printed of a form."""
    rows, nodes = options.edges, options.nodes
    operations, size = counts(form, rows, nodes, ITEMSIZE[options.dtype])
    kernels = plan.kernels(form, options.dtype) if form.paths else ()
    where = f"{rows} edges, {nodes} nodes" if form.on_graph else f"{rows} rows"
    lines = [
        f"{form!r}\n\n{len(form.paths)} paths, {form.num_terms} terms; for {where}: "
        f"{operations:.3g} operations, {size:.3g} bytes at least\n"
    ]
    for n, kernel in enumerate(kernels):
        names = [form.inputs[i].name for i in kernel.inputs] + list(kernel.index_arrays)
        writes = [form.outputs[o].name for o in kernel.outputs]
        owned = "a block of rows" if kernel.reduce_over is Index.ROW else kernel.reduce_over.value
        lines.append(
            f"kernel {n}, {kernel.spec.name}: a program owns {owned}, reads {', '.join(names)}, "
            f"writes {', '.join(writes)}; grid {kernel.grid(rows, nodes)}, "
            f"{kernel.spec.num_warps} warps"
        )
        if options.source:
            lines.append(f"\n{kernel.spec.source}")
        if importlib.util.find_spec("triton") is not None:
            found = compile_kernel(kernel.spec, options.target)
            lines.append(
                f"  {options.target}: {found.registers} registers, {found.spilled_bytes} bytes "
                f"spilled, {found.shared_bytes} bytes of shared memory, {found.compile_seconds} s "
                "to compile"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Print the form and the kernels of the product that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("irreps_x", type=e3nn.Irreps)
    parser.add_argument("irreps_y", type=e3nn.Irreps)
    parser.add_argument("--filter", type=e3nn.Irreps, help="irreps of the output to keep")
    parser.add_argument("--graph", action="store_true", help="gather x, sum to the receivers")
    parser.add_argument("--weights", action="store_true", help="weighted edges of a graph")
    parser.add_argument("--order", choices=("forward", "backward", "double"), default="forward")
    parser.add_argument("--dtype", choices=tuple(ITEMSIZE), default="float32")
    parser.add_argument("--target", default="sm_90", help="or gfx942, ...; needs triton")
    parser.add_argument("--source", action="store_true", help="print the kernels")
    parser.add_argument("--edges", type=int, default=2700, help="to count work for, or rows")
    parser.add_argument("--nodes", type=int, default=135)
    options = parser.parse_args(arguments)
    product = products.tensor_product(
        options.irreps_x,
        options.irreps_y,
        options.filter and tuple(ir for _, ir in options.filter),
        "component",
        weighted=options.weights,
        on_graph=options.graph or options.weights,
    )
    print(f"{options.irreps_x} (x) {options.irreps_y} -> {product.irreps_out}")
    print(text(derivatives(product.form)[options.order], options))


if __name__ == "__main__":
    main()
