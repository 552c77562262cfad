"""Bad files of structures: each is read, all of it, or refused in one line, soon and in memory."""

import itertools
import shutil
from pathlib import Path

import numpy as np

from eqfuse.train import molecule
from eqfuse.train.main import main
from tests.fuzz.bad_file import FRAMES, READ, REFUSED
from tests.fuzz.bad_files import BAD_FILES
from tests.fuzz.checks import CommandOutput, FailureError, check_refusal, run_command
from tests.small_runs import TINY


class ReadError(BaseException):
    """Ends a training when its data are read; `dataset` is what they are."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset


class Cases:
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

        def case():
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            path = bad.make(rng, self._folder)
            run = self._folder / "run"
            arguments = [*TINY, *bad.settings, f"data.path={path}", f"run={run}"]
            dataset, output = None, None
            try:
                output = run_command(main, arguments)
            except ReadError as end:
                dataset = end.dataset
            if run.exists():
                raise FailureError("a folder was made for a run on it")
            return _judged(bad.expected, dataset, output, path)

        return name, case


def _judged(expected: str, dataset, output: CommandOutput | None, path: Path) -> tuple[str, str]:
    """Return outcome and detail of what was read or printed."""
    if dataset is None:
        check_refusal(output, str(path), "cutoff", "stress", "split")
        if expected == READ:
            raise FailureError(f"it was refused, and is good: {output.error}")
        return "refused", output.error
    samples = [*dataset.train, *dataset.val]
    if expected == REFUSED:
        raise FailureError(f"{len(samples)} frames of it were taken for good")
    if expected == READ and len(samples) != FRAMES:
        raise FailureError(f"{len(samples)} frames were read, of {FRAMES}")
    for sample in samples:
        arrays = sample.positions, sample.forces, sample.energy
        if not all(np.isfinite(a).all() for a in arrays if a is not None):
            raise FailureError("what was read is not finite")
    return "read", f"{len(samples)} frames"
