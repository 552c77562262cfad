"""Run by test_full_disk.py: checkpoints that fail at one file after the other."""

import resource
import sys
from pathlib import Path

import numpy as np

from eqfuse.train.run.checkpoint import CheckpointError, Checkpoints, read_checkpoint

ARRAYS = {str(k): np.random.default_rng(k).random(300).astype(np.float32) for k in range(6)}
METADATA = {"model": "nequip", "model_fields": {}, "potential": None}


def main(folder: Path):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    failures, seen, step = [], [], 0
    # No file can be longer than this; a checkpoint has 17 kB.
    for limit in (0, 30, 100, 300, 600, 1000, 2000, 4000, 8000, 16_000, 40_000):
        checkpoints = Checkpoints(folder / "checkpoints", METADATA)
        checkpoints.offer("last", step, lambda: ARRAYS, {}, state=ARRAYS)
        left = [path.name for path in (folder / "checkpoints").iterdir()]
        assert len(left) == min(2, 1 + len(seen)), left  # what failed before is gone
        seen.append(step)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            checkpoints.offer("last", step + 1, lambda: ARRAYS, {}, state=ARRAYS)
            checkpoints.flush()
            step += 1
        except CheckpointError as error:
            failures.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        params, metadata, state = read_checkpoint(folder, ("last",), ARRAYS)
        assert metadata["step"] == step, (limit, metadata["step"], step)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(params[name], array)
            np.testing.assert_array_equal(state[name], array)
        step += 1
    assert len(failures) >= 5
    for message in failures:
        assert "File too large; free or repair the disk" in message, message
        assert "the one before it is intact" in message
    assert len(failures) < 11, "with the largest limit it is written"
    print("full disk ok")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
