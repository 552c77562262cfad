"""Trained networks at work: predictions, ASE's calculator, errors on a file."""

from eqfuse.inference.calculator import Calculator, Committee, hessian
from eqfuse.inference.charges import born_charges
from eqfuse.inference.descriptors import descriptors
from eqfuse.inference.network import Network, load_networks
from eqfuse.inference.predict import Predicted, Spread, predict

__all__ = [
    "Calculator",
    "Committee",
    "Network",
    "Predicted",
    "Spread",
    "born_charges",
    "descriptors",
    "hessian",
    "load_networks",
    "predict",
]


def __dir__() -> list[str]:
    return __all__
