"""Trained networks at work: predictions, ASE's calculator, errors on a file.

Of a run, here one of copper and aluminium; `eqfuse.Calculator` and some others are these:

    >>> import pathlib, ase.build
    >>> atoms = ase.build.bulk("Cu", cubic=True)
    >>> inference.require_backend("xla")
    >>> network = inference.Network("first")
    >>> [predicted] = inference.predict(network, [atoms])
    >>> isinstance(predicted, inference.Predicted), predicted.forces.shape, predicted.spread
    (True, (4, 3), None)
    >>> atoms.calc = inference.Calculator("first")
    >>> bool(abs(atoms.get_potential_energy() - predicted.energy) < 1e-4)
    True
    >>> inference.require_writable(pathlib.Path("copper.xyz"), source="bulk.xyz")
    >>> inference.write_atoms("copper.xyz", [atoms], inference.format_of("copper.xyz", 1))
    >>> inference.descriptors("first", atoms).shape, inference.hessian("first", atoms).shape
    ((4, 8), (4, 3, 4, 3))
    >>> [structure] = inference.as_structures("copper.xyz")
    >>> inference.unlike_training(network, [structure])
    []
    >>> evaluator = inference.Evaluator(network)  # of many steps, whose list of neighbours is kept
    >>> placed = inference.Placed(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    >>> evaluator.run(evaluator.list([placed])).forces.shape
    (4, 3)

Several networks have a spread; so has one to which `eqfuse uncertainty` fitted it:

    >>> networks = inference.load_networks(["first", "second"])
    >>> [predicted] = inference.predict(networks, [atoms])
    >>> isinstance(predicted.spread, inference.Spread)
    True
    >>> inference.Committee(["first", "second"]).get_potential_energy(atoms) == predicted.energy
    True
    >>> for door in (inference.with_spread, lambda one: inference.born_charges("first", atoms)):
    ...     try:
    ...         door(network)
    ...     except ValueError as error:
    ...         print(type(error).__name__)
    CheckpointError
    ConfigError
"""

from eqfuse._late import late
from eqfuse.inference.descriptors import descriptors  # these have the names of their modules
from eqfuse.inference.predict import predict

_LATE = {
    "Calculator": "eqfuse.inference.calculator",
    "Committee": "eqfuse.inference.calculator",
    "Evaluator": "eqfuse.inference.evaluator",
    "Network": "eqfuse.inference.network",
    "Placed": "eqfuse.inference.evaluator",
    "Predicted": "eqfuse.inference.predict",
    "Spread": "eqfuse.inference.predict",
    "as_structures": "eqfuse.inference.predict",
    "born_charges": "eqfuse.inference.charges",
    "format_of": "eqfuse.inference.commands",
    "hessian": "eqfuse.inference.calculator",
    "load_networks": "eqfuse.inference.network",
    "require_backend": "eqfuse.inference.commands",
    "require_writable": "eqfuse.inference.commands",
    "unlike_training": "eqfuse.inference.network",
    "with_spread": "eqfuse.inference.spread",
    "write_atoms": "eqfuse.inference.commands",
}
__all__ = [*_LATE, "descriptors", "predict"]
__getattr__, _ = late(__name__, _LATE)


def __dir__() -> list[str]:
    return __all__
