"""Random splits of structures into training and validation."""

import numpy as np

from eqfuse.data.batching import shuffled
from eqfuse.data.errors import DataError, counted

_STREAM = 1


def split_indices(
    count: int, train_size: float | None, val_size: float | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return random disjoint indices for training and validation, which depend on the seed.

    Args:
      count: number of structures.
      train_size, val_size: a number of structures (int), or a fraction of them (float from 0 to
        1, rounded down); `train_size` None takes all that validation leaves, `val_size` None takes
        none for validation. The validation structures depend on the seed and `val_size` only, not
        on `train_size`.
      seed: non-negative.
    Returns:
      training and validation indices, in random order.
    Raises:
      DataError: an empty split, more structures than there are, a negative size or seed.
    """
    if seed < 0:
        raise DataError(f"the seed must be at least 0, got {seed}")
    n_val = 0 if val_size is None else _split_size("val_size", val_size, count)
    n_train = count - n_val if train_size is None else _split_size("train_size", train_size, count)
    checked = [("training", "train", train_size, n_train)]
    if val_size is not None:
        checked.insert(0, ("validation", "val", val_size, n_val))
    for name, key, given, size in checked:
        if size <= 0 and given is None:
            frames = counted(count, "frame")
            raise DataError(f"the {name} split is empty: data.val={n_val} leaves none of {frames}")
        if size <= 0:
            raise DataError(
                f"the {name} split is empty: {key}_size={given} of {count} structures; ask for at "
                f"least one (data.{key}=1), or give more structures"
            )
    if n_train + n_val > count:
        raise DataError(
            f"{n_train} training and {n_val} validation structures asked for, but there are only "
            f"{count}; lower train_size (data.train) or val_size (data.val)"
        )
    order = shuffled(count, (seed,), stream=_STREAM)
    return order[n_val : n_val + n_train], order[:n_val]


def _split_size(name: str, size: float, count: int) -> int:
    if isinstance(size, float) and 0 <= size <= 1:
        return int(np.floor(size * count + 1e-9))  # 0.29 * 100 is 28.999999999999996
    if size < 0 or size != int(size):
        raise DataError(f"{name} must be a number of structures or a fraction, got {size}")
    return int(size)
