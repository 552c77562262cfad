"""Bad files of structures: each is read, all of it, or refused in one line, soon and in memory."""

import itertools
import shutil
from pathlib import Path

import numpy as np

from eqfuse.train import molecule
from eqfuse.train.main import main
from tests.fuzz.bad_file import FRAMES, READ, REFUSED
from tests.fuzz.bad_files import BAD_FILES
from tests.fuzz.judge import FaultError, Said, check_refusal, listen
from tests.small_runs import TINY


class ReadError(BaseException):
    """Ends a training when its data are read; `dataset` is what they are."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset


class Attacks:
    """The bad files, one kind after the other; see `Worker`.

    Args:
      folder: to work in.
    """

    seconds, megabytes = 30, 3000

    def __init__(self, folder: Path):
        self._folder = folder / "data"

        def read(config, dataset, backend):
            raise ReadError(dataset)

        molecule.build_potential = read  # the training ends there, which would take longest

    def prepare(self, seed: int):
        """Choose a bad file; see `Worker`. Successive seeds go through all kinds of them."""
        name, bad = next(itertools.islice(BAD_FILES.items(), seed % len(BAD_FILES), None))
        rng = np.random.default_rng(seed)

        def attack():
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            path = bad.make(rng, self._folder)
            run = self._folder / "run"
            arguments = [*TINY, *bad.settings, f"data.path={path}", f"run={run}"]
            dataset, said = None, None
            try:
                said = listen(main, arguments)
            except ReadError as end:
                dataset = end.dataset
            if run.exists():
                raise FaultError("a folder was made for a run on it")
            return _judged(bad.expected, dataset, said, path)

        return name, attack


def _judged(expected: str, dataset, said: Said | None, path: Path) -> tuple[str, str]:
    """Outcome and detail of what was read or said."""
    if dataset is None:
        check_refusal(said, str(path), "cutoff", "stress", "split")
        if expected == READ:
            raise FaultError(f"it was refused, and is good: {said.error}")
        return "refused", said.error
    samples = [*dataset.train, *dataset.val]
    if expected == REFUSED:
        raise FaultError(f"{len(samples)} frames of it were taken for good")
    if expected == READ and len(samples) != FRAMES:
        raise FaultError(f"{len(samples)} frames were read, of {FRAMES}")
    for sample in samples:
        arrays = sample.positions, sample.forces, sample.energy
        if not all(np.isfinite(a).all() for a in arrays if a is not None):
            raise FaultError("what was read is not finite")
    return "read", f"{len(samples)} frames"
