"""Fine-tuning: what a run that starts from a trained network keeps of it.

The network's past is frames that it labelled itself before it is tuned, so that nobody needs the
data that it was trained on (distillation), or frames of a file. Replay mixes them with new ones.
Elastic weights hold parameters that the past depends on near what they were:

    penalty = weight * sum_k F_k (p_k - p0_k)^2,    F_k = mean over frames of (d/dp_k v . f)^2

f are the energy per atom, forces and stress of a frame in the units of the loss, and v normal
random numbers: F is the diagonal of the Gauss-Newton matrix of the loss on these frames, if they
were labelled by the network itself.

References: Kirkpatrick et al. 2017, PNAS 114, 3521 (there F is of classes).
"""

import dataclasses
import functools
from collections.abc import Sequence
from itertools import compress

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse.data import Batcher, DataError, Dataset, Structure, read_structures
from eqfuse.data.group_errors import error_table
from eqfuse.data.samples import Samples, prepare_samples
from eqfuse.data.structures import Weights
from eqfuse.models import compile_predict, predict
from eqfuse.models.features import layer_features
from eqfuse.models.heads import head_of
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.files import RunFolder, write_table
from eqfuse.runs.log import say, warn
from eqfuse.train.flat import Flat
from eqfuse.train.metrics import Loss, predictions
from eqfuse.train.optimizer import flat_training
from eqfuse.train.replay import farthest, structures_of, write_frames
from eqfuse.train.results import errors_text
from eqfuse.train.settings.config import PAST, Config
from eqfuse.train.start import Start
from eqfuse.train.terminal import elements_of

FILE = "replay.traj"
"""In the folder of a run: the frames, of which a resumed run reads the same numbers."""
ELASTIC = 30.0
"""Weight of elastic weights where nothing else is asked for, see `benchmarks/results/tuning.md`."""
_AUTO = "auto"
_FROM = 8  # structures are made and labelled for each that is chosen, and so many are in a batch
_MOST_FORCE, _MOST_PRESSURE = 5.0, 0.1  # eV/Å and eV/Å^3


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The network that a run starts from, as it was, and how the run tunes it."""

    config: Config
    starts: list[Start]  # before the run, of each head; the last one is the network's past
    data: frozenset[int]  # atomic numbers in the data of the run
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
                starts = [Start.of(dataclasses.replace(own, resume=None)) for own in configs]
            except CheckpointError as error:
                if config.replay:
                    raise
                warn(f"what moves elsewhere will not be known: {error}")
                return None
            starts = [start.for_elements(dataset.species) for start in starts]
        tuning = cls(config, starts, frozenset(elements_of(dataset)), resumed)
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

    @property
    def past(self) -> Start:
        return self.starts[-1]

    @functools.cached_property
    def _predict(self):
        return compile_predict(self.past.potential, stress=True)

    def samples(self, structures: Sequence[Structure]) -> Samples:
        """Return samples, whose labels count from the network's own reference energies."""
        cutoff = float(self.past.potential.model.cutoff)
        return prepare_samples(structures, cutoff, self.past.species, self.past.references(None))

    def batcher(self, structures: Sequence[Structure], size: int = _FROM) -> Batcher:
        how = {"dtype": self.config.dtype, "long_range": self.past.potential.long_range}
        return Batcher(self.samples(structures), size, max_shapes=1, **how)  # one program

    def labelled(self, structures: Sequence[Structure], params) -> list[Structure]:
        """Return structures with the energy, forces and stress that these variables give."""
        batcher, frames, references = self.batcher(structures), [], self.past.references(None)
        found = predictions(self._predict, params, batcher)
        for structure, sample, one in zip(structures, batcher.samples, found, strict=True):
            energy = one.energy + sum(references[z] for z in structure.numbers.tolist())
            labels = {"energy": energy, "forces": sample.in_structure(one.forces)}
            frames.append(dataclasses.replace(structure, stress=one.stress, **labels))
        return frames

    @functools.cached_property
    def frames(self) -> list[Structure]:
        """Return the frames to remember; of a resumed run those that it has kept."""
        if self.config.replay is None:
            return []
        if self.resumed:
            return read_structures(f"{self.config.resume}/{FILE}")
        return self.made(self.config.replay)

    def made(self, source: str) -> list[Structure]:
        """Return at most `replay_frames` frames, the farthest from each other by descriptors.

        The source is "auto", or a file, whose labels have the names of the data or the usual ones,
        count from the reference energies of the network and have its dispersion; frames without
        energy and forces are labelled by it.

        Raises:
          DataError: a file that cannot be read, or has no frame of the network's elements.
        """
        past, count = self.past, self.config.replay_frames
        if source == _AUTO:
            given = structures_of(past.species, self.data, _FROM * count, self.config.seed)
        else:
            long_range = past.potential.long_range
            if long_range is not None and long_range.charge_key is not None:
                raise DataError(
                    f"replay={source}: total charges of replayed frames are not read, and the "
                    "network reads them; give replay=auto or none"
                )
            keys, known = self.config.data.keys, {*past.species}
            read = read_structures(source, keys=keys, require_labels=False)
            if not any(s.forces is not None for s in read):  # of a past with the usual names
                read = read_structures(source, require_labels=False)
            given = [s for s in read if not s.is_isolated_atom and {*s.numbers.tolist()} <= known]
            given = [*map(past.dispersion.without, given)] if past.dispersion else given
        is_known = [s.energy is not None and s.forces is not None for s in given]
        frames = [*compress(given, is_known)]
        others = [s for s, known in zip(given, is_known, strict=True) if not known]
        if others:
            if unread := ", ".join(sorted({key for s in others for key in s.unread.values()})):
                warn(f"replay={source}: {unread} is not read; the network labels these frames")
            frames += filter(_is_moderate, self.labelled(others, past.initial_params()))
        if not frames:
            raise DataError(
                f"replay={source}: no frame has only elements of the network and forces below "
                f"{_MOST_FORCE:g} eV/Å and a low pressure; give a file of others, or replay=none"
            )
        if len(frames) <= count:
            return frames
        return [frames[k] for k in farthest(self._features(frames), count)]

    def _features(self, frames: list[Structure]) -> np.ndarray:
        """Return the mean of the features of the atoms of each, in units of their spread."""
        potential, params = self.past.potential, self.past.initial_params()

        @jax.jit
        def sums(params, graph):
            operands = graph.vectors, graph.species, graph.edges
            rows = layer_features(potential, params, *operands, layers=potential.model.layers)
            rows = jnp.where(graph.node_mask[:, None], rows, 0)
            return jax.ops.segment_sum(rows, graph.graph_index, graph.num_graphs)

        batcher = self.batcher(frames)
        graphs = [batch.graph for batch in batcher.batches(shuffle=False)]
        rows = [sums(params, graph)[np.asarray(graph.graph_mask)] for graph in graphs]
        rows = np.concatenate(rows) / batcher.samples.sizes[:, :1]
        return (rows - rows.mean(axis=0)) / (rows.std(axis=0).mean() or 1.0)

    def remembered(self) -> Samples:
        """Return the frames to remember as samples for the training, of the weight of replay."""
        weights = Weights(*[self.config.replay_weight] * len(Weights._fields))
        how = {"weights": weights, "atom_weights": None, "origin": "a frame of replay"}
        return self.samples([dataclasses.replace(s, **how) for s in self.frames])

    def with_replay(self, dataset: Dataset) -> tuple[Dataset, Samples | None]:
        """Return the dataset and, if others than its own, the samples to train on.

        With several heads, the dataset has one more, of the frames to remember.
        """
        if not self.frames:
            return dataset, None
        if not self.config.heads:
            if isinstance(dataset.train, tuple | list):
                return dataset, Samples((*dataset.train, *self.remembered()))
            raise ConfigError(
                f"replay={self.config.replay} is for data in memory, and these are read as they "
                "are needed; put the frames to remember into the data, and give replay=none"
            )
        first = next(iter(self.config.of_heads().values()))
        if self.past.dispersion != first.data.subtracted():  # a head of the past has that
            raise ConfigError(
                f"data.dispersion={first.data.dispersion} cannot be given with heads and replay=: "
                "the network of start_from= has no dispersion; leave one of them out"
            )
        own = next(iter(dataset.heads.values()))
        parts = {"train": self.remembered(), "val": (), "test": ()}
        past = dataclasses.replace(own, references=self.past.references(None), **parts)
        return Dataset.of_heads({**dataset.heads, PAST: past}), None

    def keep(self, folder: RunFolder):
        """Write the frames to remember into the folder of a run that begins."""
        if self.frames and not self.resumed:
            write_frames(folder.path / FILE, self.frames)

    def stiffness(self, frames: Sequence[Structure], layout: Flat, loss: Loss) -> jax.Array:
        """Return F of the penalty for frames of the past, at least one: [layout.size].

        Weights and force scale of the loss say what an error of each quantity is worth.
        """
        stress, potential = loss.stress > 0, self.past.potential

        def projected(params, graph, v):
            found = predict(potential, layout.unflatten(params), graph, stress=stress)
            total = loss.energy**0.5 * v["energy"] * found.energy[0]
            total += loss.forces**0.5 * (v["forces"] * found.forces).sum()
            total += loss.stress**0.5 * (v["stress"] * found.stress[0]).sum() if stress else 0.0
            return total / loss.force_scale

        gradient = jax.jit(jax.grad(projected))
        rng = np.random.Generator(np.random.PCG64((self.config.seed, 23)))
        params, total = layout.flatten(self.past.initial_params()), 0.0
        batcher = self.batcher(frames, 1)
        for sample, batch in zip(batcher.samples, batcher.batches(shuffle=False), strict=True):
            mask, count = batch.graph.node_mask[:, None], sample.num_atoms
            v = {  # of means over atoms and components
                "energy": rng.normal() / count,
                "forces": rng.normal(size=(len(mask), 3)) * mask / (3 * count) ** 0.5,
                "stress": rng.normal(size=(3, 3)) / 3,
            }
            total = total + gradient(params, batch.graph, v) ** 2
        return total / len(frames)

    def facts(self, dataset: Dataset) -> dict[str, str]:
        """Return what there is to say before the training, by title."""
        source, weight = self.config.replay, elastic_of(self.config, dataset)
        if self.frames:
            kind = "made for its elements and labelled by it" if source == _AUTO else source
            of_weight = f"of weight {self.config.replay_weight:g}"
            return {"replay": f"{len(self.frames)} frames {of_weight}, {kind}"}
        text = f"weight {weight:g}; elastic=0 lets the network forget more"
        return {"elastic": text} if weight else {}

    def moved(self, before: dict, after: dict) -> list[dict]:
        """Return what a training moved in structures that it did not see, as an error table.

        Errors are those of the variables `after` it against the network with those `before`, for
        crystals with elements of the data, other crystals and molecules, see `error_table`.
        """

        def kind(s: Structure) -> str:
            is_near = self.data & {*s.numbers.tolist()}
            near, other = "crystals with elements of the data", "other crystals"
            return "molecules" if not s.pbc.any() else near if is_near else other

        made = structures_of(self.past.species, self.data, 128, self.config.seed + 1)
        frames = filter(_is_moderate, self.labelled(made, before))
        frames = [dataclasses.replace(s, config_type=kind(s), stress=None) for s in frames]
        return error_table(frames, self.labelled(frames, after))

    def report(self, folder: RunFolder, dataset: Dataset):
        """Print and write what the training moved elsewhere, if the network knows elsewhere."""
        if len(self.past.species) == len(self.data):
            return
        params, _, _ = read_checkpoint(folder.path, ("best", "last"))
        params, rows = jax.tree.map(lambda p: jnp.asarray(p, self.config.dtype), params), []
        for number, head in enumerate(dataset.heads or [None]):
            own = params if head is None else head_of(params, number)
            found = self.moved(self.starts[number].initial_params(), own)
            rows += [{"set": head or "moved"} | row for row in found]
            of_head = f" by the head {head}" if head else ""
            title = f"moved elsewhere{of_head}, in structures that were not trained on"
            shown = [row for row in rows[-len(found) :] if "config_type" in row["group"]]
            say(errors_text(title, shown))
        try:
            write_table(folder.path / "moved.csv", rows)
        except OSError as error:  # the training is done
            warn(f"moved.csv cannot be written: {error}")


def _is_moderate(s: Structure) -> bool:
    """Test whether forces are below 5 eV/Å, and the pressure below 16 GPa.

    Others are so far from what networks know that they would dominate the training.
    """
    pressure = 0.0 if s.stress is None else abs(np.trace(s.stress)) / 3
    return abs(s.forces).max() < _MOST_FORCE and pressure < _MOST_PRESSURE


def elastic_of(config: Config, dataset: Dataset) -> float:
    """Return the weight of the penalty of elastic weights, 0 for none."""
    if config.elastic is None and not (config.start_from is None or config.heads or config.replay):
        knows_more = len(dataset.species) > len(elements_of(dataset))
        return ELASTIC if knows_more else 0.0
    return config.elastic or 0.0


def held(weight: float, stiff: jax.Array) -> optax.GradientTransformation:
    """Return the transformation that adds the gradient of the penalty to that of the loss.

    F and the parameters at the start are in its state, so that a resumed run has them.
    """

    def update(gradient, state, params):
        stiff, anchor = state
        return gradient + (2 * weight * stiff * (params - anchor)).astype(gradient.dtype), state

    return optax.GradientTransformation(lambda params: (stiff, jnp.asarray(params)), update)


def training_of(config: Config, dataset: Dataset, params: dict, tuning: Tuning | None):
    """Return the layout of the parameters in one array, and its optimizer."""
    weight = elastic_of(config, dataset)
    layout, optimizer = flat_training(config.training, params)
    if not weight:
        return layout, optimizer
    stiff = jnp.zeros(layout.size, layout.dtype)
    if tuning is not None and not tuning.resumed:  # else it is found in the state
        try:
            say("prepare    elastic weights: structures of all elements of the network, once")
            frames = tuning.frames or tuning.made(_AUTO)
            stiff = tuning.stiffness(frames, layout, Loss.of(config.training, dataset.force_rms))
        except DataError:  # no frame can be made, and elastic weights were not asked for
            if config.elastic is not None:
                raise
    return layout, optax.chain(held(weight, stiff), optimizer)
