"""Structures, neighbour lists and batches: data for interatomic potentials, in Å and eV."""

from eqfuse.data.batching import Batch, Batcher, Labels, Shape, collate
from eqfuse.data.dataset import Dataset
from eqfuse.data.lazy import prefetched
from eqfuse.data.neighbors import neighbor_list
from eqfuse.data.readers import Keys, Units, read_structures
from eqfuse.data.readers.embedded import read_embedded
from eqfuse.data.references import fit_reference_energies, isolated_atom_energies
from eqfuse.data.samples import Sample
from eqfuse.data.structures import DataError, Structure

__all__ = [
    "Batch",
    "Batcher",
    "DataError",
    "Dataset",
    "Keys",
    "Labels",
    "Sample",
    "Shape",
    "Structure",
    "Units",
    "collate",
    "fit_reference_energies",
    "isolated_atom_energies",
    "neighbor_list",
    "prefetched",
    "read_embedded",
    "read_structures",
]


def __dir__() -> list[str]:
    return __all__
