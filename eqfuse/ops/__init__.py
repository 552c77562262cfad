"""Equivariant operations, drop-in for e3nn-jax, as fused kernels.

README.md, beside this file, is a tour; or read in this order: `_form` (what a product is, and its
derivatives), `_build` and `_build_uuu` (irreps to forms), `_multilinear` and `_primitive` (forms in
JAX), `_xla` (forms in jax.numpy), `_body`, `_kernel` and `_plan` (forms as Triton kernels),
`_triton` (kernels compiled, kept and launched), `_numba` (forms natively), then the public
functions.
The dense part is `_mixing` (what a Linear is, and its derivatives), `_mixing_kernel` (as a kernel),
and `_fused` (product, Linear and gate in one, by definition) with `_fused_primitive` (their
derivatives), `_fused_kernel` and `_fused_backward` (as Triton kernels), and `_chain` (natively).
"""

from eqfuse.ops._ahead import compile_ahead
from eqfuse.ops._backend import BACKENDS, availability, recorded, resolve, resolve_here
from eqfuse.ops._channelwise_product import channelwise_tensor_product
from eqfuse.ops._edges import Edges
from eqfuse.ops._functions import linear, tensor_product_linear, tensor_product_linear_gate
from eqfuse.ops._graph_product import graph_tensor_product
from eqfuse.ops._grouped_dense import grouped_dense
from eqfuse.ops._linear_modules import Linear, LinearSum
from eqfuse.ops._symmetric_contraction import symmetric_contraction, symmetric_contraction_paths
from eqfuse.ops._tensor_product import elementwise_tensor_product, tensor_product
from eqfuse.ops._tensor_product_linear import TensorProductLinear, TensorProductLinearGate
from eqfuse.ops._tensor_square import tensor_square
from eqfuse.ops._weighted_channels import weighted_channels

__all__ = [
    "BACKENDS",
    "Edges",
    "Linear",
    "LinearSum",
    "TensorProductLinear",
    "TensorProductLinearGate",
    "availability",
    "channelwise_tensor_product",
    "compile_ahead",
    "elementwise_tensor_product",
    "graph_tensor_product",
    "grouped_dense",
    "linear",
    "recorded",
    "resolve",
    "resolve_here",
    "symmetric_contraction",
    "symmetric_contraction_paths",
    "tensor_product",
    "tensor_product_linear",
    "tensor_product_linear_gate",
    "tensor_square",
    "weighted_channels",
]
