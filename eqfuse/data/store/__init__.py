"""Structures and neighbour lists on disk, for data sets that are larger than memory.

Arrays of all frames are one file each, which is mapped into memory: a frame is a few views of them.
"""

from eqfuse.data.store.cache import samples_of, store_structures
from eqfuse.data.store.frames import StoredStructures
from eqfuse.data.store.lists import StoredSamples

__all__ = ["StoredSamples", "StoredStructures", "samples_of", "store_structures"]
