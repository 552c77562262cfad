"""Fine-tuning: what a run that starts from a trained network keeps of it."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import optax

from eqfuse.data import DataError, Dataset, Structure, read_structures
from eqfuse.data.samples import Samples
from eqfuse.models.heads import head_of
from eqfuse.train.adapter import Adapter
from eqfuse.train.elastic import held, stiffness
from eqfuse.train.flat import Flat
from eqfuse.train.metrics import Loss
from eqfuse.train.optimizer import flat_training
from eqfuse.train.replay import AUTO, FILE, Network, moved, moved_text, write_frames
from eqfuse.train.run.checkpoint import read_checkpoint
from eqfuse.train.run.files import CheckpointError, RunFolder, write_table
from eqfuse.train.settings.config import PAST, Config
from eqfuse.train.settings.schema import ConfigError
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
        resumed = starts[0].resumed
        if resumed or config.heads:  # the network of a resumed run has been tuned
            configs = [start.config for start in starts]
            configs += [dataclasses.replace(configs[0], start_from=config.start_from)]
            try:
                starts = [Start.read(dataclasses.replace(own, resume=None)) for own in configs]
            except CheckpointError as error:
                if config.adapter is not None or config.replay:
                    raise
                print(f"warning: what moves elsewhere will not be known: {error}", file=sys.stderr)
                return None
            starts = [start.for_elements(dataset.species) for start in starts]
        start = starts[-1]
        # with several heads, the past is one of its own
        references = start.references(None) if config.heads else dataset.references
        own = start.potential()[0], start.initial_params()
        of_run = dataset.species, references, config.dtype, frozenset(_elements(dataset))
        return cls(config, starts, Network(*own, *of_run), resumed)

    @property
    def origin(self) -> dict[str, str]:
        """Return where the network is, and the SHA-256 of its parameters."""
        run = self.config.start_from
        return {"run": run, "arrays_sha256": self.starts[-1].metadata["arrays_sha256"]}

    @property
    def knows_more(self) -> bool:
        """Test whether the network knows elements that the data have not."""
        return len(self.network.species) > len(self.network.data)

    @property
    def elastic(self) -> float:
        """Return the weight of the penalty of `eqfuse.train.elastic`, 0 for none."""
        return _elastic(self.config, self.knows_more)

    @functools.cached_property
    def frames(self) -> list[Structure]:
        """Return the frames to remember; of a resumed run those that it has kept."""
        config = self.config
        if config.replay is None:
            return []
        if config.resume is not None:
            return read_structures(f"{config.resume}/{FILE}")
        return self._made(config.replay)

    def _made(self, source: str) -> list[Structure]:
        own = self.starts[-1].references(None)
        how = {"own": own, "dispersion": self.starts[-1].dispersion}
        return self.network.frames(source, self.config.replay_frames, self.config.seed, **how)

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
        train = self.network.remembered(self.frames, self.config.replay_weight)
        own = next(iter(dataset.heads.values()))
        references = self.network.references
        past = dataclasses.replace(own, train=train, val=(), test=(), references=references)
        return Dataset.of_heads({**dataset.heads, PAST: past})

    def with_replay(self, train) -> Samples:
        """Return the training samples of a run with one head, and those to remember."""
        if not self.frames or self.config.heads:
            return train
        if not isinstance(train, tuple | list):
            raise ConfigError(
                f"replay={self.config.replay} is for data in memory, and these are read as they "
                "are needed; put the frames to remember into the data, and give replay=none"
            )
        remembered = self.network.remembered(self.frames, self.config.replay_weight)
        return Samples((*train, *remembered))

    def keep(self, folder: RunFolder):
        """Write the frames to remember into the folder of a run that begins."""
        if self.frames and self.config.resume is None:
            write_frames(folder.path / FILE, self.frames)

    def stiffness(self, layout: Flat, force_scale: float) -> jax.Array:
        """Return how much the past depends on each parameter, see `eqfuse.train.elastic`.

        A resumed run finds it in its state.
        """
        config = self.config
        nothing = jnp.zeros(layout.size, layout.dtype)
        if self.resumed:
            return nothing
        frames = self.frames
        if not frames:
            try:
                frames = self._made(AUTO)
            except DataError:
                if config.elastic is not None:  # asked for
                    raise
                return nothing
        loss = Loss.of(config.training, force_scale)
        return stiffness(self.network, frames, layout, loss, config.seed)

    def facts(self) -> dict[str, str]:
        """Return what there is to say before the training, by title."""
        if self.elastic and not self.frames:
            return {"elastic": f"weight {self.elastic:g}; elastic=0 lets the network forget more"}
        if not self.frames:
            return {}
        source, weight = self.config.replay, self.config.replay_weight
        kind = "made for its elements and labelled by it" if source == AUTO else source
        return {"replay": f"{len(self.frames)} frames of weight {weight:g}, {kind}"}

    def report(self, folder: RunFolder, dataset: Dataset):
        """Print and write what the training moved elsewhere, if the network knows elsewhere."""
        if not self.knows_more:
            return
        params, _, _ = read_checkpoint(folder.path, ("best", "last"))
        params = jax.tree.map(lambda p: jnp.asarray(p, self.config.dtype), params)
        rows = []
        for number, head in enumerate(dataset.heads or [None]):
            own = params if head is None else head_of(params, number)
            before = dataclasses.replace(self.network, params=self.starts[number].initial_params())
            found = moved(before, own, self.config.seed)
            print(moved_text(found, head), flush=True)
            rows += [({} if head is None else {"head": head}) | row for row in found]
        try:
            write_table(folder.path / "moved.csv", rows)
        except OSError as error:  # the training is done
            print(f"warning: moved.csv cannot be written: {error}", file=sys.stderr)


def _elements(dataset: Dataset) -> set[int]:
    """Return the atomic numbers of the training data."""
    return {dataset.species[k] for s in dataset.train for k in {*s.species.tolist()}}


def _elastic(config: Config, knows_more: bool) -> float:
    others = config.adapter or config.heads or config.replay
    if config.elastic is None and knows_more and not others:
        return ELASTIC
    return config.elastic or 0.0


def trained_part(config: Config, dataset: Dataset, params: dict, tuning: Tuning | None):
    """Return what of the variables is trained, and its layout and optimizer.

    With `adapter=lora` that is two narrow matrices beside each matrix, see `Adapter`.
    """
    if config.adapter is None:
        layout, optimizer = flat_training(config.training, params)
        weight = 0.0 if tuning is None else tuning.elastic
        if tuning is None and config.start_from is not None:  # resumed, and the start is gone
            weight = _elastic(config, len(dataset.species) > len(_elements(dataset)))
        if weight:
            stiff = jnp.zeros(layout.size, layout.dtype)
            if tuning is not None:
                stiff = tuning.stiffness(layout, dataset.force_rms)
            optimizer = optax.chain(held(weight, stiff), optimizer)
        return params, (layout, optimizer)
    adapter = Adapter.of(tuning.network.params, config.rank, config.seed)
    layout, optimizer = flat_training(config.training, adapter.initial)
    return adapter.initial, (dataclasses.replace(adapter, layout=layout), optimizer)
