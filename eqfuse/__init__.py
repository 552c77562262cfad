"""Equivariant interatomic potentials in JAX with fused tensor products.

    import ase.build
    import eqfuse

    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.calc = eqfuse.Calculator("runs/first")  # what `eqfuse train` or `eqfuse convert` wrote
    print(atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress())

    [predicted] = eqfuse.predict("runs/first", [atoms])  # of many structures at once
    print(predicted.energy, predicted.forces)
    print(eqfuse.descriptors("runs/first", atoms).shape, eqfuse.hessian("runs/first", atoms).shape)

`eqfuse.ops` has the tensor products, as e3nn-jax has them; `eqfuse.models`, `eqfuse.data` and
`eqfuse.train` are what networks are made of.
"""

import importlib

from eqfuse import _startup
from eqfuse.runs.process import without_collection

__version__ = "0.3.0"
_LATE = {
    "Calculator": "eqfuse.inference",
    "Committee": "eqfuse.inference",
    "accelerate": "eqfuse.convert.accelerate",
    "born_charges": "eqfuse.inference",
    "descriptors": "eqfuse.inference",
    "hessian": "eqfuse.inference",
    "predict": "eqfuse.inference",
}
_PACKAGES = ("convert", "data", "inference", "md", "models", "ops", "train")
_WITH_EXTRAS = ("jax_md", "torch_sim")  # which `import *` must not import
__all__ = [*_LATE, *_PACKAGES]


_startup.silence_cuda_plugin()


def __getattr__(name: str):
    # JAX takes seconds to import: not for `--help`.
    if name in _LATE:
        with without_collection():
            return getattr(importlib.import_module(_LATE[name]), name)
    if name in (*_PACKAGES, *_WITH_EXTRAS):
        return importlib.import_module(f"eqfuse.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
