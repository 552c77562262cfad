"""The functions of single numbers that kernels compute: the one table of them.

A function is one that both sequences of element-wise steps and activations may have. To add one,
add its line, and a rule in `llvm.functions` if it is of no kind that has one.
"""

from typing import NamedTuple


class Function(NamedTuple):
    """A function in the languages of the kernels."""

    kind: str  # what LLVM computes it with, see `llvm.functions`
    llvm: str = ""  # its name there
    triton: str = ""  # its text there, of its operands; "" where Triton has none
    is_real: bool = False  # whether it is of real numbers alone


FUNCTIONS = {
    "add": Function("arithmetic", "add", "{} + {}"),
    "sub": Function("arithmetic", "sub", "{} - {}"),
    "mul": Function("arithmetic", "mul", "{} * {}"),
    "div": Function("arithmetic", "div", "{} / {}", True),
    "neg": Function("own", triton="-{}"),
    "square": Function("own", is_real=True),
    "integer_pow": Function("own", is_real=True),
    "sign": Function("own", is_real=True),
    "is_finite": Function("own", is_real=True),
    "rsqrt": Function("own", triton="tl.rsqrt({})", is_real=True),
    # of those of two numbers, NaN where either is, and -0 is less than 0
    "max": Function("intrinsic", "maximum", "tl.maximum({}, {}, tl.PropagateNan.ALL)"),
    "min": Function("intrinsic", "minimum", "tl.minimum({}, {}, tl.PropagateNan.ALL)"),
    "abs": Function("intrinsic", "fabs", "tl.abs({})", True),
    "sqrt": Function("intrinsic", "sqrt", "tl.sqrt({})", True),
    # of the C library, in float32 with an f behind the name
    "exp": Function("library", "exp", "tl.exp({})", True),
    "log": Function("library", "log", "tl.log({})", True),
    "sin": Function("library", "sin", "tl.sin({})", True),
    "cos": Function("library", "cos", "tl.cos({})", True),
    "log1p": Function("library", "log1p", is_real=True),
    "expm1": Function("library", "expm1", is_real=True),
    "pow": Function("library", "pow", is_real=True),
    # as others, see `activations.WRITTEN_OUT`
    "tanh": Function("written out", is_real=True),
    "logistic": Function("written out", is_real=True),
    "eq": Function("comparison", "oeq", "{} == {}"),
    "ne": Function("comparison", "une", "{} != {}"),
    "lt": Function("comparison", "olt", "{} < {}"),
    "le": Function("comparison", "ole", "{} <= {}"),
    "gt": Function("comparison", "ogt", "{} > {}"),
    "ge": Function("comparison", "oge", "{} >= {}"),
    "and": Function("logic", "and", "{} & {}"),
    "or": Function("logic", "or", "{} | {}"),
    "not": Function("logic"),
    "select": Function("choice", triton="tl.where({0}, {2}, {1})"),
    "convert": Function("choice"),
    "identity": Function("choice"),
}

OF_JAX = {"add_any": "add", "select_n": "select", "convert_element_type": "convert"}
OF_JAX |= {"stop_gradient": "identity", "copy": "identity", "copy_p": "identity"}
"""The functions of JAX's primitives whose names differ."""
