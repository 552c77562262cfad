"""Structures, neighbour lists and batches: data for interatomic potentials, in Å and eV.

Files and ASE's atoms become structures, and structures batches:

    >>> import ase.io
    >>> structures = data.read_embedded("ethanol")[:8]
    >>> [*data.fit_reference_energies(structures)]
    [1, 6, 8]
    >>> dataset = data.Dataset.build(structures, cutoff=4.0, references="average")
    >>> isinstance(dataset.train[0], data.Sample), len(dataset.train)
    (True, 7)
    >>> batch = next(data.prefetched(data.Batcher(dataset.train, 2).batches()))
    >>> isinstance(batch, data.Batch), isinstance(batch.labels, data.Labels)
    (True, True)
    >>> data.collate(dataset.train[:1], data.Shape(10, 100, 2)).graph.species.shape
    (10,)

    >>> water = ase.Atoms("OH2", [(0, 0, 0), (0.96, 0, 0), (-0.24, 0.93, 0)])
    >>> ase.io.write("water.xyz", water)
    >>> [atoms.get_chemical_formula() for atoms in data.iterate_atoms("water.xyz")]
    ['H2O']
    >>> how = {"keys": data.Keys(energy="E"), "units": data.Units.of("Ha", "Bohr")}
    >>> [read] = data.read_structures("water.xyz", **how, require_labels=False)
    >>> isinstance(read, data.Structure), read.energy
    (True, None)
    >>> [(read, atoms)] = data.read_with_atoms("water.xyz", data.Keys())  # with all that it has
    >>> senders, receivers, shifts = data.neighbor_list(water.positions, water.cell, water.pbc, 1.2)
    >>> len(senders), data.species_index(water.numbers, [1, 8]), data.room_for_pairs(len(senders))
    (4, array([1, 0, 0], dtype=int32), 32)
    >>> [atoms.get_chemical_formula() for atoms in data.frames_of([water, "water.xyz"])]
    ['H2O', 'H2O']
    >>> data.indexed("water.xyz@0")[0], data.has_types("water.xyz")
    ('water.xyz', False)
    >>> water.info |= {"free_energy": -76.4, "frozen": [0], "note": "of a file"}
    >>> data.labels_of(water), data.unread_names(water, data.HELD)
    ({'free_energy'}, ['frozen'])
    >>> data.APERIODIC in data.remarks_of(water)
    False
    >>> data.keep(data.as_atoms(read), water, without=data.labels_of(water))  # what is renamed
    {}
    >>> ase.io.write("water.xyz", data.writable(water))  # texts as they are read again
    >>> [row["group"] for row in data.error_table([data.of_atoms(water)], [read])]
    ['all', 'element H', 'element O']
    >>> ase.io.write("atoms.xyz", ase.Atoms("H", info={"E": -13.6}))
    >>> data.isolated_atom_energies("atoms.xyz", energy_key="E")
    {1: -13.6}
    >>> water.positions[1] = data.COINCIDENT
    >>> try:
    ...     data.require_apart(water)
    ... except data.DataError as error:
    ...     print(str(error)[:21])
    atoms 0 and 1 overlap
"""

from eqfuse._late import late

_LATE = {
    "eqfuse.data.batching": "Batch Batcher Labels collate",
    "eqfuse.data.dataset": "Dataset",
    "eqfuse.data.group_errors": "error_table",
    "eqfuse.data.lazy": "prefetched",
    "eqfuse.data.neighbors": "COINCIDENT neighbor_list require_apart",
    "eqfuse.data.padding": "Shape room_for_pairs",
    "eqfuse.data.readers": "Keys Units frames_of has_types indexed iterate_atoms read_structures "
    "read_with_atoms",
    "eqfuse.data.readers.ase_files": "HELD as_atoms keep labels_of of_atoms unread_names writable",
    "eqfuse.data.readers.embedded": "read_embedded",
    "eqfuse.data.references": "fit_reference_energies isolated_atom_energies",
    "eqfuse.data.remarks": "APERIODIC remarks_of",
    "eqfuse.data.samples": "Sample species_index",
    "eqfuse.data.structures": "DataError Structure",
}
__all__, __getattr__, __dir__ = late(__name__, _LATE)
