"""The start of a run: a trained network (`start_from=`), or itself where it was interrupted."""

import dataclasses
import functools
import hashlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ase.data import chemical_symbols

from eqfuse import models
from eqfuse.data import Batcher, Dataset, Structure
from eqfuse.data.lazy import Joined
from eqfuse.data.references import fit_energies_of_atoms
from eqfuse.data.structures import LABELS
from eqfuse.models import compile_predict
from eqfuse.models.heads import head_of
from eqfuse.models.radial_table import choose
from eqfuse.runs.checkpoint import metadata_of, module_of, read_checkpoint
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.files import FILES, RunFolder, has_checkpoint, read_file
from eqfuse.runs.log import say
from eqfuse.train.arguments import CHANGEABLE, LENGTHS
from eqfuse.train.dispersion import Dispersion
from eqfuse.train.metrics import predictions
from eqfuse.train.schedule import Limits
from eqfuse.train.settings.config import Config
from eqfuse.train.settings.options import flat
from eqfuse.train.sources import FIT

REFERENCE_TOLERANCE = 1e-3
"""How far the energies of isolated atoms may differ between data of one method, eV."""

OTHER_ENERGIES = 3.0
"""How far energies, relative to atoms, hardly differ between data of one method, eV/atom."""


@dataclasses.dataclass(frozen=True)
class Start:
    """A network with its parameters, and what it was trained with."""

    params: dict  # numpy arrays
    metadata: dict  # of its checkpoint, see `load_run`
    resumed: bool  # it is the run itself, which goes on
    config: Config  # of the run that starts from it

    @classmethod
    def of(cls, config: Config, head: str | None = None) -> "Start | None":
        """Return that of `start_from=`; of a resumed run, that in its own folder; None without.

        `head` is the name of one of several in a resumed run.
        """
        if config.start_from is None:
            return None
        resumed = config.resume is not None and has_checkpoint(config.resume, "last")
        run, names = config.start_from, ("best", "last")
        if resumed:
            run, names = config.resume, ("last",)
        params, metadata, _ = read_checkpoint(run, names)
        if resumed and head is not None:
            number = [own["head"] for own in metadata["heads"]].index(head)
            params, metadata = head_of(params, number), metadata | metadata["heads"][number]
        made = cls(params, metadata, resumed, config)
        own = made.dispersion
        if own is not None and own != config.data.subtracted():
            raise ConfigError(
                f"the network of {run} was trained on labels less {own}, which is added to it: "
                f"give data.dispersion={own} with start_from="
            )
        return made

    @property
    def dispersion(self) -> Dispersion | None:
        return Dispersion.of_run(self.metadata)

    @property
    def species(self) -> tuple[int, ...]:
        return tuple(self.metadata["species"])

    def for_elements(self, elements: tuple[int, ...]) -> "Start":
        """Return the network, with `elements=data` for these elements only."""
        if unknown := sorted({*elements} - {*self.species}):
            raise ConfigError(
                f"the data have {', '.join(chemical_symbols[z] for z in unknown)}, for which the "
                "network of start_from= has no weights; leave these frames out, start from a "
                "network that knows them, or train a new network on data with all elements "
                "(without start_from=)"
            )
        if self.config.elements is None:
            return self
        params, metadata = of_elements(self.params, self.metadata, elements)
        return dataclasses.replace(self, params=params, metadata=metadata)

    def references(self, given: dict[int, float] | None) -> dict[int, float]:
        """Return the reference energies, eV by atomic number: the given, or the network's own."""
        if given is None:
            return {int(z): e for z, e in self.metadata["reference_energies"].items()}
        if missing := [chemical_symbols[z] for z in self.species if z not in given]:
            raise ConfigError(
                f"data.reference_energies has no energy of {', '.join(missing)}, which the network "
                "of start_from= knows; add it"
            )
        return given

    def referenced(self, dataset: Dataset, structures, validation) -> tuple[Dataset, list[str]]:
        """Return the dataset with the reference energies of the network, and warnings."""
        messages = []
        if self.config.data.reference_energies is None:
            messages += self._other_atoms([structures[i] for i in dataset.isolated_atoms])
        if self.config.data.reference_energies == FIT and not self.resumed:
            dataset = dataset.with_references(self._fitted(dataset), structures, validation)
            dataset = dataclasses.replace(dataset, references_fitted=True)  # and checked as such
        before = self.metadata["statistics"]["energy_per_atom"]
        # of a converted network the data are not known
        known = before is not None and dataset.num_labelled("energy")[0]
        if known and not self.resumed and abs(dataset.energy_per_atom - before) >= OTHER_ENERGIES:
            messages.append(
                f"the energies are {dataset.energy_per_atom:.4g} eV/atom above the references, and "
                f"{before:.4g} eV/atom in the network's data; if these data were computed "
                "otherwise, give data.reference_energies= (a file of atoms, or fit)"
            )
        return dataset, messages

    def _other_atoms(self, isolated: list[Structure]) -> list[str]:
        references = self.references(None)
        return [
            f"{atom.origin or 'an isolated atom'}: {chemical_symbols[z]} has {atom.energy:.4f} eV, "
            f"and in the network's data {references[z]:.4f} eV, which is used; if these data were "
            "computed otherwise, give data.reference_energies= (a file of atoms, or fit)"
            for atom in isolated
            for z in atom.numbers.tolist()
            if atom.energy is not None
            and z in references
            and abs(atom.energy - references[z]) > REFERENCE_TOLERANCE
        ]

    def _fitted(self, dataset: Dataset) -> dict[int, float]:
        """Return the reference energies, eV, moved by what the network does not predict.

        For data of another method, whose energies differ by some constant for each atom: least
        squares per species of true minus predicted energies of the training samples.
        """
        if not dataset.num_labelled("energy")[0]:
            raise ConfigError("data.reference_energies=fit: no training frame has an energy")
        predict, params = compile_predict(self.potential), self.initial_params()
        how = {"dtype": self.config.dtype, "long_range": self.potential.long_range}
        batcher = Batcher(dataset.train, self.config.data.batch_size, **how)
        pairs = zip(dataset.train, predictions(predict, params, batcher), strict=True)
        known = [(s, found.energy) for s, found in pairs if s.energy is not None]
        missing = [s.energy - e for s, e in known]
        species = np.array(dataset.species)
        moves = fit_energies_of_atoms((species[s.species] for s, _ in known), missing)
        return {z: e + moves.get(z, 0.0) for z, e in dataset.references.items()}

    @functools.cached_property
    def potential(self) -> models.Potential:
        return module_of(self.metadata, self.config.backend)

    def initial_params(self) -> dict:
        """Return its variables as JAX arrays, in the dtype of the run."""
        return jax.tree.map(lambda p: jnp.asarray(p, self.config.dtype), self.params)


def of_elements(params: dict, metadata: dict, elements) -> tuple[dict, dict]:
    """Return params and metadata of a network for some of its elements, sorted atomic numbers."""
    keep = np.array([metadata["species"].index(z) for z in elements])
    potential, params = module_of(metadata, None).narrow(params, keep)
    fields = {n: getattr(potential.model, n, v) for n, v in metadata["model_fields"].items()}
    references = metadata["reference_energies"]
    return params, {
        **metadata,
        "model_fields": {n: list(v) if isinstance(v, tuple) else v for n, v in fields.items()},
        "potential": potential.to_plain(),
        "species": list(elements),
        "reference_energies": {str(z): references[str(z)] for z in elements},
    }


def run_metadata(ready) -> dict:
    """Return plain values, from which the network of a prepared run is made, and it is recognised.

    The samples by which it is recognised are all that are trained on, those of replay too.
    """
    dataset, train = ready.dataset, ready.batchers[0]
    data = {"data_sha256": _fingerprint(Joined(train.samples, dataset.val)), **_of_data(dataset)}
    data["species"] = list(dataset.species)
    if ready.starts[0] is not None:
        before = ready.starts[0].metadata.get("started_from")  # resumed, and the start is gone
        data["started_from"] = ready.tuning.origin if ready.tuning else before
    if choose(ready.potential.model, max(shape.n_edges for shape in train.shapes)).table:
        data["radial"] = "table"
    metadata = metadata_of(ready.config, ready.fields, ready.potential, **data)
    if not dataset.heads:
        return metadata
    configs, heads = ready.config.of_heads(), []
    for number, (name, own) in enumerate(dataset.heads.items()):
        given = {n: ready.params["params"][n][number] for n in ("scale", "shift")}
        numbers = {n: np.asarray(array, float).tolist() for n, array in given.items()}
        like = configs.get(name) or next(iter(configs.values()))
        described = {"config": dataclasses.asdict(like), **_of_data(own)}
        described["potential"] = metadata["potential"] | numbers
        heads.append({"head": name, **described})
    return metadata | {"heads": heads}


def _of_data(dataset: Dataset) -> dict:
    return {
        "reference_energies": {str(z): float(e) for z, e in dataset.references.items()},
        "statistics": {
            "force_rms": dataset.force_rms,
            "avg_num_neighbors": dataset.avg_num_neighbors,
            "energy_per_atom": dataset.energy_per_atom,
            "periodic": all(bool(sample.cell.any()) for sample in dataset.train),
        },
    }


def _fingerprint(samples) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        labels = sample.forces, sample.stress, sample.atom_weights, sample.hessian
        arrays = [sample.positions, sample.species, sample.cell]
        for array in (*arrays, *(label for label in labels if label is not None)):
            digest.update(np.ascontiguousarray(array).tobytes())
        if sample.energy is not None:
            digest.update(np.float64(sample.energy).tobytes())
        known = [getattr(sample, name) is not None for name in LABELS]
        numbers = [*known, *sample.weights[: len(LABELS)]]
        numbers += [] if sample.hessian is None else [sample.weights.hessian]
        numbers += [] if sample.head is None else [sample.head]
        numbers += [sample.charge] if sample.charge else []
        digest.update(np.array(numbers, np.float64).tobytes())
    return digest.hexdigest()


def kept_references(run: str | Path, species, head: str | None = None) -> dict[int, float] | None:
    """Return the reference energies of a resumed run; None for other species or no checkpoint.

    Least squares have other last digits with another version of NumPy, and the energies of the
    samples with them; with the references of the run, its data are the same.
    """
    try:
        metadata = read_file(Path(run) / "checkpoints" / FILES["last"][0], only_metadata=True)[1]
    except CheckpointError:  # reading the run raises what is wrong
        return None
    for own in metadata.get("heads", []):
        metadata |= own if own["head"] == head else {}
    kept = {int(z): energy for z, energy in metadata["reference_energies"].items()}
    return kept if set(kept) == set(species) else None


def interrupted_run(
    config: Config, like, metadata: dict, folder: RunFolder, limits: Limits, writes: bool
):
    """Return state and position of the run in the folder, or None before its first checkpoint.

    `like`, a state, and `metadata` are those of the run as it would begin now, see `run_metadata`.
    Damaged checkpoints are set aside if this process `writes`. Other settings or data are refused.
    A run that is made longer after its learning rate fell (wsd) goes on from before it did.
    """
    if not has_checkpoint(folder.path, "last") and not folder.metrics.exists():
        say("resume     from the beginning: the run ended before its first checkpoint")
        return None
    _, theirs, _ = read_checkpoint(folder.path, ("last",))
    # before the state, which follows the settings
    _check_same_run(metadata["config"], theirs["config"], folder.path)
    for name in ("data_sha256", "model_fields", "species", "reference_energies", "units"):
        if theirs[name] != metadata[name]:
            data = [own.data for own in config.of_heads().values()]
            files = [f for own in data for f in (own.origin, own.val_path) if f]
            files += ["replay.traj"] if config.replay else []
            raise ConfigError(
                f"{' or '.join(files)} is not as it was when the run in {folder.path} "
                f"began ({name} differs); bring it back, or start a new run"
            )
    _, theirs, state = read_checkpoint(folder.path, ("last",), like, sets_aside=writes)
    ours = metadata["warnings"]
    ours[:0] = [text for text in theirs.get("warnings", []) if text not in ours]
    position, again = theirs["position"], ""
    lengths = [{n: c[n] for n in LENGTHS} for c in (theirs["config"], metadata["config"])]
    if position.get("falls_since") is not None and lengths[0] != lengths[1]:
        _, stable, earlier = read_checkpoint(folder.path, ("stable",), like)
        limits.start(stable["position"]["elapsed"])
        if limits.fraction(stable["step"]) < config.training.stable_until:
            state, position = earlier, stable["position"]
            again = ", where the learning rate began to fall; what came after is done anew"
    say(f"resume     epoch {position['epoch']}, batch {position['batch']} of the epoch{again}")
    return jax.tree.map(jnp.asarray, state), position


def _check_same_run(ours: dict, theirs: dict, folder: Path):
    """Refuse a checkpoint with other settings (`theirs`) than those in config.yaml (`ours`)."""
    ours, theirs = flat(ours, folder), flat(theirs, folder)
    may_differ = (*CHANGEABLE, "run", "resume", "data.path")  # of a folder that was moved
    different = [
        f"{key} ({theirs.get(key)} there, {ours.get(key)} here)"
        for key in sorted(ours.keys() | theirs.keys())
        if key not in may_differ and ours.get(key) != theirs.get(key)
    ]
    if different:
        raise ConfigError(
            f"the checkpoint in {folder} is of another run than its config.yaml: "
            + ", ".join(different)
        )
