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

Loops that are compiled whole, as `eqfuse.md`, make their lists on the device, with some room:

    >>> def step(params, positions, cell):
    ...     atoms, species = jnp.full(4, True), jnp.full(4, network.species.index(29))
    ...     found = grid.make_pairs(room.pairs, positions[None], cell[None], atoms[None])
    ...     pairs, needed = inference.Pairs(*found[0]), inference.Needed(*found[1])
    ...     geometry = inference.Geometry(positions, cell[None], jnp.zeros(4, int), species, atoms)
    ...     given = module, params, pairs, geometry
    ...     near, found = inference.evaluate_pairs(*given, size=room.edges)
    ...     fits = (needed.pairs <= room.pairs) & (near.num_edges <= room.edges)
    ...     fits &= (needed.occupancy <= grid.occupancy) & ~needed.is_narrow
    ...     strain = inference.strain_derivatives(near, found, geometry)
    ...     same = inference.near_edges(module.cutoff, pairs, geometry, room.edges)
    ...     added = params | {"spread": {"root": jnp.eye(4)}}  # as `with_spread` has it, here any
    ...     spread = inference.spread_of_atoms(module, added, same, geometry)
    ...     return found.forces(same.edges), strain, spread, fits
    >>> module: inference.Module = network.module
    >>> with jax.enable_x64():
    ...     placed = atoms.positions, atoms.cell.array
    ...     *pairs, near = inference.list_structures([placed], [atoms.pbc], module.cutoff, skin=0.5)
    ...     room = inference.Sizes().grown(inference.Sizes(pairs=len(pairs[0]), edges=near))
    ...     grid = inference.Grid.of([placed], atoms.pbc, module.cutoff + 0.5)
    ...     compiled = inference.Kept(step, None, result=lambda *_: (0, 0, 0, 0))
    ...     forces, strain, spread, fits = compiled(network.params, *placed)
    >>> bool(fits), bool(np.allclose(forces, predicted.forces, atol=1e-4))
    (True, True)
    >>> strain.shape, spread.shape
    ((1, 3, 3), (4,))

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
    "eqfuse.inference.calculator": "Calculator Committee hessian",
    "eqfuse.inference.charges": "born_charges",
    "eqfuse.inference.commands": "format_of require_backend require_writable write_atoms",
    "eqfuse.inference.evaluator": "Evaluator Geometry Placed Sizes evaluate_pairs near_edges "
    "strain_derivatives",
    "eqfuse.inference.lists": "Grid Needed Pairs list_structures",
    "eqfuse.inference.network": "Module Network load_networks unlike_training",
    "eqfuse.inference.predict": "Predicted Spread as_structures",
    "eqfuse.inference.programs": "Kept",
    "eqfuse.inference.spread": "spread_of_atoms with_spread",
}
_names, __getattr__, _ = late(__name__, _LATE)
__all__ = [*_names, "descriptors", "predict"]


def __dir__() -> list[str]:
    return __all__
