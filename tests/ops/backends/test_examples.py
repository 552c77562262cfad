"""The examples at the head of the kernels' modules are what these emit."""

import textwrap

import e3nn_jax as e3nn
import jax
import pytest

from eqfuse.ops.backends import activations
from eqfuse.ops.backends.llvm import channels, layout, program
from eqfuse.ops.backends.llvm import form as llvm_form
from eqfuse.ops.backends.llvm import linear as llvm_linear
from eqfuse.ops.backends.llvm.text import Function
from eqfuse.ops.backends.triton import form, fused_rows
from eqfuse.ops.ir import linear, products
from eqfuse.ops.ir.form import Operand, Segment
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.program import Array, Elementwise, Program
from tests.ops.cases import product_form

MACHINE = layout.Machine(vector_bytes=16, registers=16)


def mixing(irreps: str):
    return linear.linear(e3nn.Irreps(irreps), (False,), e3nn.Irreps(irreps))


def packed_row() -> str:
    """Return the copy of 2x1o in float64."""
    operand = Operand("x", 6, (Segment.mul_ir(0, 2, 3),), channels=True)
    copies = layout.Copies("float64", 2)
    of_x = layout.Layout.of(operand, [0], 2)
    copies.call("pack", Function("float64"), of_x, "%row", "%copy")
    return next(iter(copies.functions.values()))


def contracted() -> str:
    """Return the scalar of two vectors of each channel, times a weight."""
    pair = [e3nn.Irreps("4x1o")] * 2
    of_pair = products.channelwise_tensor_product(
        *pair, (e3nn.Irrep("0e"),), "component", weighted=True
    ).form
    f, sums = Function("float32", 4), {}

    def load(operand, segment, component):
        name = "xyw"[operand]
        return f"%{name}{component}"

    row = channels.RowContraction(of_pair, f, 4, layout.Scalars(), load, None)
    [path] = of_pair.paths

    def accumulate(component, factor, value):
        channels._accumulate(f, 4, sums, path.output, component, factor, value)

    row.add([path], accumulate)
    return f.text("example")


def mixed_row() -> str:
    return llvm_form.generate(mixing("4x0e").linear_form, "float32", MACHINE).text


def sequence() -> str:
    arrays = tuple(Array(8, "float32") for _ in range(3))
    steps = Elementwise("mul", (0, 0), 1), Elementwise("neg", (1,), 2)
    return program.generate(Program(arrays, (0,), (2,), steps), "float32", MACHINE).text


def on_graph() -> str:
    [kernel] = form.kernels(product_form("32x0e", "1o", "1o"), "float32")
    return kernel.spec.source


def layer_of_rows() -> str:
    of_rows = product_form("32x0e", "0e", "0e", on_graph=False, weighted=False)
    mixed = mixing("32x0e")
    functions = dict.fromkeys(("even_act", "even_gate_act"), jax.nn.relu)
    gate = activations.gate(mixed.irreps_out, normalize_act=False, **functions)
    return fused_rows.forward(Fused.build(of_rows, mixed, gate, False), "float32").spec.source


EXAMPLES = {
    layout: packed_row,
    channels: contracted,
    llvm_linear: mixed_row,
    program: sequence,
    form: on_graph,
    fused_rows: layer_of_rows,
}


def lines(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


@pytest.mark.parametrize("module", EXAMPLES, ids=lambda m: m.__name__.removeprefix("eqfuse.ops."))
def test_the_example_of_a_module_is_what_it_emits(module):
    """The indented lines that end a docstring are in the kernel; `...` stands for others."""
    _, _, example = module.__doc__.partition("For example")
    blocks = [b for b in example.split("\n\n") if b.startswith("    ")]
    emitted = lines(EXAMPLES[module]())
    for part in lines(textwrap.dedent("\n".join(blocks))).split("\n...\n"):
        assert len(part) > 20
        assert part in emitted
