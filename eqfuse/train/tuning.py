"""Fine-tuning: what a run that starts from a trained network keeps of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from eqfuse.data import DataError, Dataset, Structure, read_structures
from eqfuse.data.samples import Samples
from eqfuse.models.heads import head_of
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.files import RunFolder, write_table
from eqfuse.runs.log import warn
from eqfuse.train.elastic import held, stiffness
from eqfuse.train.metrics import Loss
from eqfuse.train.optimizer import flat_training
from eqfuse.train.replay import AUTO, FILE, Network, moved, moved_text, write_frames
from eqfuse.train.settings.config import PAST, Config
from eqfuse.train.start import Start

ELASTIC = 30.0
"""Weight of elastic weights where nothing else is asked for, see `benchmarks/results/tuning.md`."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The network that a run starts from, as it was, and how the run tunes it."""

    config: Config
    starts: list[Start]  # before the run, of each head, and of the network's past
    network: Network  # the past
    resumed: bool

    @classmethod
    def of(cls, config: Config, dataset: Dataset, starts: list[Start | None]) -> "Tuning | None":
        """Return that of a run whose heads start from these; None for a new network."""
        if starts[0] is None:
            return None
        resumed, before = starts[0].resumed, starts[0].metadata.get("started_from")
        if resumed or config.heads:  # the network of a resumed run has been tuned
            configs = [start.config for start in starts]
            configs += [dataclasses.replace(configs[0], start_from=config.start_from)]
            try:
                starts = [Start.read(dataclasses.replace(own, resume=None)) for own in configs]
            except CheckpointError as error:
                if config.replay:
                    raise
                warn(f"what moves elsewhere will not be known: {error}")
                return None
            starts = [start.for_elements(dataset.species) for start in starts]
        # with several heads, the past is one of its own
        references = starts[-1].references(None) if config.heads else dataset.references
        of_run = dataset.species, references, config.dtype, frozenset(_elements(dataset))
        network = Network(starts[-1].potential()[0], starts[-1].initial_params(), *of_run)
        tuning = cls(config, starts, network, resumed)
        if resumed and before and before["arrays_sha256"] != tuning.origin["arrays_sha256"]:
            raise ConfigError(
                f"the network in {config.start_from} is another one than the run in "
                f"{config.resume} started from; bring that back, or start a new run "
                f"(start_from={config.resume})"
            )
        return tuning

    @property
    def origin(self) -> dict:
        """Return where the network is, and the SHA-256 of the parameters of all starts."""
        digests = dict.fromkeys(start.metadata["arrays_sha256"] for start in self.starts)
        return {"run": self.config.start_from, "arrays_sha256": list(digests)}

    @functools.cached_property
    def frames(self) -> list[Structure]:
        """Return the frames to remember; of a resumed run those that it has kept."""
        if self.config.replay is None:
            return []
        if self.resumed:
            return read_structures(f"{self.config.resume}/{FILE}")
        return self._made(self.config.replay)

    def _made(self, source: str) -> list[Structure]:
        own = self.starts[-1].references(None)
        how = {"own": own, "dispersion": self.starts[-1].dispersion}
        return self.network.frames(source, self.config.replay_frames, self.config.seed, **how)

    def _remembered(self) -> Samples:
        return self.network.remembered(self.frames, self.config.replay_weight)

    def with_past(self, dataset: Dataset) -> Dataset:
        """Return the dataset of several heads, with one more for the frames to remember."""
        if not self.frames:
            return dataset
        first = next(iter(self.config.of_heads().values()))
        if self.starts[-1].dispersion != first.data.subtracted():  # a head of the past has that
            raise ConfigError(
                f"data.dispersion={first.data.dispersion} cannot be given with heads and replay=: "
                "the network of start_from= has no dispersion; leave one of them out"
            )
        own, references = next(iter(dataset.heads.values())), self.network.references
        parts = {"train": self._remembered(), "val": (), "test": (), "references": references}
        return Dataset.of_heads({**dataset.heads, PAST: dataclasses.replace(own, **parts)})

    def with_replay(self, train) -> Samples:
        """Return the training samples of a run with one head, and those to remember."""
        if not self.frames or self.config.heads:
            return train
        if not isinstance(train, tuple | list):
            raise ConfigError(
                f"replay={self.config.replay} is for data in memory, and these are read as they "
                "are needed; put the frames to remember into the data, and give replay=none"
            )
        return Samples((*train, *self._remembered()))

    def keep(self, folder: RunFolder):
        """Write the frames to remember into the folder of a run that begins."""
        if self.frames and not self.resumed:
            write_frames(folder.path / FILE, self.frames)

    def stiffness(self, force_scale: float, layout) -> jax.Array | None:
        """Return how much the past depends on each parameter; None where no frame can be made."""
        try:
            frames = self.frames or self._made(AUTO)
        except DataError:
            if self.config.elastic is not None:  # asked for
                raise
            return None
        loss = Loss.of(self.config.training, force_scale)
        return stiffness(self.network, frames, layout, loss, self.config.seed)

    def facts(self, dataset: Dataset) -> dict[str, str]:
        """Return what there is to say before the training, by title."""
        weight, source = elastic_of(self.config, dataset), self.config.replay
        if self.frames:
            kind = "made for its elements and labelled by it" if source == AUTO else source
            of_weight = f"of weight {self.config.replay_weight:g}"
            return {"replay": f"{len(self.frames)} frames {of_weight}, {kind}"}
        text = f"weight {weight:g}; elastic=0 lets the network forget more"
        return {"elastic": text} if weight else {}

    def report(self, folder: RunFolder, dataset: Dataset):
        """Print and write what the training moved elsewhere, if the network knows elsewhere."""
        if len(self.network.species) == len(self.network.data):
            return
        params, _, _ = read_checkpoint(folder.path, ("best", "last"))
        params, rows = jax.tree.map(lambda p: jnp.asarray(p, self.config.dtype), params), []
        for number, head in enumerate(dataset.heads or [None]):
            own = params if head is None else head_of(params, number)
            before = dataclasses.replace(self.network, params=self.starts[number].initial_params())
            found = moved(before, own, self.config.seed)
            print(moved_text(found, head), flush=True)
            rows += [({} if head is None else {"head": head}) | row for row in found]
        try:
            write_table(folder.path / "moved.csv", rows)
        except OSError as error:  # the training is done
            warn(f"moved.csv cannot be written: {error}")


def _elements(dataset: Dataset) -> set[int]:
    """Return the atomic numbers of the training data."""
    return {dataset.species[k] for s in dataset.train for k in {*s.species.tolist()}}


def elastic_of(config: Config, dataset: Dataset) -> float:
    """Return the weight of the penalty of `eqfuse.train.elastic`, 0 for none."""
    if config.elastic is None and not (config.start_from is None or config.heads or config.replay):
        knows_more = len(dataset.species) > len(_elements(dataset))
        return ELASTIC if knows_more else 0.0
    return config.elastic or 0.0


def training_of(config: Config, dataset: Dataset, params: dict, tuning: Tuning | None):
    """Return the layout of the parameters in one array, and its optimizer."""
    layout, optimizer = flat_training(config.training, params)
    if weight := elastic_of(config, dataset):
        stiff = None
        if tuning is not None and not tuning.resumed:  # else it is found in the state
            stiff = tuning.stiffness(dataset.force_rms, layout)
        stiff = jnp.zeros(layout.size, layout.dtype) if stiff is None else stiff
        optimizer = optax.chain(held(weight, stiff), optimizer)
    return layout, optimizer
