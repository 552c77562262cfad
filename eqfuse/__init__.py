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
from eqfuse._late import late
from eqfuse.runs.process import without_collection

__version__ = "0.3.0"
_LATE = {
    "eqfuse.convert.accelerate": "accelerate",
    "eqfuse.inference": "Calculator Committee born_charges descriptors hessian predict",
}
_PACKAGES = ("convert", "data", "inference", "md", "models", "ops", "train")
_WITH_EXTRAS = ("jax_md", "torch_sim")  # which `import *` must not import
_names, _read, _ = late(__name__, _LATE)
__all__ = [*_names, *_PACKAGES]


_startup.silence_cuda_plugin()


def __getattr__(name: str):
    # JAX takes seconds to import: not for `--help`.
    if name in (*_PACKAGES, *_WITH_EXTRAS):
        return importlib.import_module(f"eqfuse.{name}")
    with without_collection():
        return _read(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
