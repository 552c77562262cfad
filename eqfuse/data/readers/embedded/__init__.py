"""The data sets in the package; README.md describes how they were made."""

from importlib import resources

import numpy as np

from eqfuse.data.structures import DataError, Structure

NAMES = ("ethanol", "lif")


def read_embedded(name: str) -> list[Structure]:
    """Return the structures of an embedded set, in eV and Å.

    Args:
      name: one of `NAMES`.
    Returns:
      structures with energies and forces; with stress if periodic.
    Raises:
      DataError: an unknown name.
    """
    if name not in NAMES:
        raise DataError(f"no embedded data are named {name!r}; choose from: {', '.join(NAMES)}")
    with (
        resources.files(__name__).joinpath(f"{name}.npz").open("rb") as stream,
        np.load(stream) as file,
    ):
        arrays = dict(file)
    numbers = arrays.pop("numbers")
    periodic = "cell" in arrays
    frames = [
        dict(zip(arrays, values, strict=True)) for values in zip(*arrays.values(), strict=True)
    ]
    return [
        Structure(numbers, pbc=periodic, **{**frame, "config_type": str(frame["config_type"])})
        for frame in frames
    ]
