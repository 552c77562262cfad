"""Equivariant operations, drop-in for e3nn-jax, as fused kernels."""

import importlib

from eqfuse import _e3nn_jax  # noqa: F401  (before e3nn-jax itself)
from eqfuse._late import late
from eqfuse.ops import shared_library
from eqfuse.ops._backend import (
    BACKENDS,
    TF32X3,
    availability,
    recorded,
    resolve,
    resolve_here,
)
from eqfuse.ops._edges import Edges, group_by_interval
from eqfuse.ops._graph_product import graph_tensor_product
from eqfuse.ops._interpolate import Tabulated, interpolate
from eqfuse.ops._layer import (
    TensorProductLinear,
    TensorProductLinearGate,
    linear,
)
from eqfuse.ops._linear import Linear, grouped_dense
from eqfuse.ops._symmetric_contraction import symmetric_contraction, symmetric_contraction_paths
from eqfuse.ops._tensor_product import (
    channelwise_tensor_product,
    elementwise_tensor_product,
    tensor_product,
)
from eqfuse.ops.primitives.choice import resolve_fused
from eqfuse.ops.primitives.lowering import compile_ahead
from eqfuse.ops.primitives.measuring import measure, measure_on_gpu
from eqfuse.ops.transforms import fused_op as _fused_op  # noqa: F401  (lowers fused ops on CPUs)
from eqfuse.ops.transforms.sequence import sequence

__all__ = [
    "BACKENDS",
    "TF32X3",
    "Edges",
    "FunctionalLinear",
    "FunctionalTensorProduct",
    "Linear",
    "Tabulated",
    "TensorProductLinear",
    "TensorProductLinearGate",
    "availability",
    "channelwise_tensor_product",
    "compile_ahead",
    "elementwise_tensor_product",
    "fuse",
    "graph_tensor_product",
    "group_by_interval",
    "grouped_dense",
    "interpolate",
    "linear",
    "measure",
    "measure_on_gpu",
    "patched",
    "recorded",
    "resolve",
    "resolve_fused",
    "resolve_here",
    "sequence",
    "shared_library",
    "symmetric_contraction",
    "symmetric_contraction_paths",
    "tensor_product",
]

_FRAMEWORKS = {"haiku": "dm-haiku", "equinox": "equinox"}
_LATE = {
    "eqfuse.fuse.patch": "patched",
    "eqfuse.fuse.rewrite": "fuse",  # which is above the ops
    # e3nn-jax does not import what these are made of either
    "eqfuse.ops._legacy": "FunctionalLinear FunctionalTensorProduct",
}
_, _read, _ = late(__name__, _LATE)


def __getattr__(name: str):
    """Import `ops.haiku` and `ops.equinox`, whose frameworks may be absent, on first use."""
    if name not in _FRAMEWORKS:
        return _read(name)
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        package = _FRAMEWORKS[name]
        raise ImportError(f"{__name__}.{name} needs {package}: pip install {package}") from error


def __dir__() -> list[str]:
    return [*__all__, *_FRAMEWORKS]
