"""Trained networks, ready to compute: one, or those of a committee."""

import contextlib
import copy
import dataclasses
import glob
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from flax.errors import FlaxError

from eqfuse import models
from eqfuse.convert.names import resolved
from eqfuse.data import DataError, Structure
from eqfuse.data.neighbors import neighbor_list
from eqfuse.data.remarks import APERIODIC, total_charge, unread
from eqfuse.inference import tables
from eqfuse.models import Potential
from eqfuse.models.ewald import Reach
from eqfuse.models.radial_table import COLLECTION
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.files import digest_of, head_file, read_arrays
from eqfuse.runs.process import keep_memory, keep_programs
from eqfuse.train import load_run, read_metadata
from eqfuse.train.dispersion import Dispersion

UNCERTAINTY = "uncertainty.npz"
"""The file in the folder of a run that `eqfuse.inference.uncertainty` writes."""
ROOM = 1.05
"""By how much cells may grow before a sum of charges is compiled anew."""
MANY = 16
"""Elements from which on a network is narrowed to those that it computes."""


@dataclasses.dataclass(frozen=True)
class Module:
    """A potential with its cutoff (Å) and dtype; equal to all of the same settings."""

    potential: Potential = dataclasses.field(compare=False)
    cutoff: float
    dtype: str
    settings: str = dataclasses.field(default="", init=False)

    def __post_init__(self):
        # as text: some settings may be lists, which cannot be hashed
        object.__setattr__(self, "settings", repr(self.potential))


class Network:
    """A trained potential that is ready to predict. It can be copied and pickled.

    Its process keeps the programs that it compiles, and the memory that it frees until memory is
    short, see `eqfuse.runs.process`.

    Its `species` are sorted atomic numbers, `cutoff` is in Å, and `references`, [n_species] eV,
    are the reference energies. `path` is where it was read.

    Args:
      run: the folder of the run, or a file of its network (.safetensors); the name of a published
        network, or another program's file, see `eqfuse.convert.names.resolved`.
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      backend: see `eqfuse.ops`.
      radial: how functions of lengths are computed: "network"; "table", with the knots of the run;
        or "auto", which has tables for a run that was trained with them, and wherever they are
        within `eqfuse.inference.tables.BOUNDS` of the networks. None for that of the run, which is
        auto unless it says otherwise. `radial` is then a text of what was chosen.
      head: which head of a network with several; None where there is one.
      dispersion: see `eqfuse.Calculator`; `dispersion` is then a `Dispersion`, or None. Whoever
        computes with the network adds it, or calls `require`.
    Raises:
      CheckpointError: no readable checkpoint, or no such head.
      ConfigError: another dispersion, or no `dftd3`.
      TypeError: `run` is no name.
      ValueError: another `which`, dtype or `radial`.
    """

    def __init__(
        self, run, *, which=None, dtype=None, backend=None, radial=None, head=None, dispersion=None
    ):
        require_name(run)
        if dtype not in (None, "float32", "float64"):
            raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
        keep_programs()
        keep_memory()
        self.name = str(run if head is None else f"{run}, head {head}")
        run = head_file(resolved(run), head)
        self.path = os.path.abspath(os.path.expanduser(run))
        self.metadata = metadata = read_metadata(run, which=which)
        self.dispersion = Dispersion.of_run(metadata, dispersion)
        self.dtype = dtype or metadata["config"]["dtype"]
        self.species = tuple(metadata["species"])
        self.cutoff = float(metadata["model_fields"]["cutoff"])
        self.references = np.array([metadata["reference_energies"][str(z)] for z in self.species])
        with self.precision(), self.described():
            potential, params, _ = load_run(run, which=which, backend=backend)
            self._take(potential, params, radial or potential.model.radial)
        file = Path(self.path) / UNCERTAINTY
        self.uncertainty = _uncertainty(file, metadata["arrays_sha256"])

    def _take(self, potential, params, radial: str):
        """Take a potential with its variables, and choose between tables and networks."""
        fields, found = {}, None
        if radial == "auto":  # not by the number of edges, which differs from call to call
            radial = "table"
            if "radial" not in self.metadata:
                found = tables.tables_of(potential, params, self.dtype, self.path)
                radial = "table" if found.tree else "network"
                fields = {"radial_knots": found.knots} if found.tree else {}
        potential = potential.clone(model=potential.model.clone(radial=radial, **fields))
        potential.model.check()  # refuses a `radial` that is none
        self.module = Module(potential, self.cutoff, self.dtype)
        # by NumPy: JAX would compile a conversion for each shape
        self.params = jax.device_put(jax.tree.map(lambda p: np.asarray(p, self.dtype), params))
        self.radial, self._tables = radial, found and found._replace(tree=None)
        if found is not None:
            self.radial = found.why if found.tree else f"networks, since {found.why}"
            if found.tree:
                self.params = self.params | {COLLECTION: jax.device_put(found.tree)}
        elif radial == "table":
            self.radial = f"tables of {potential.model.radial_knots} knots"
            self.params = models.with_tables(potential, self.params)

    def of_elements(self, numbers) -> "Network":
        """Return this network for the elements of some atoms; or itself, if it is a small one.

        A step reads the parameters of all its elements, which takes longer than computing where
        these are many and atoms few. Functions of a pair of elements may have tables then.
        """
        species = np.unique(numbers)
        pairs = self.module.potential.model.num_pairs()
        has_tables = COLLECTION in self.params
        if (
            len(self.species) < MANY
            or not np.isin(species, self.species).all()  # refused where they are used
            or len(species) in (0, len(self.species))
            or (pairs > 1 and has_tables)
        ):
            return self
        keep, smaller = np.searchsorted(self.species, species), copy.copy(self)
        smaller.species, smaller.references = tuple(species.tolist()), self.references[keep]
        params = jax.tree.map(np.asarray, {"params": self.params["params"]})
        potential, params = self.module.potential.narrow(params, keep)
        with self.precision():
            if pairs > 1 and self._tables:
                smaller._take(potential, params, "auto")
            else:
                smaller.module = Module(potential, self.cutoff, self.dtype)
                smaller.params = self.params | jax.device_put(params)
        return smaller

    def keep_tables(self):
        """Make the tables of this network, if it has any, a part of its run."""
        if self._tables:
            tree = self.params.get(COLLECTION)
            tables.keep(self._tables._replace(tree=tree), self.path)

    def with_dispersion(self, given: str | None) -> "Network":
        """Return this network with another dispersion; itself for None."""
        if given is None:
            return self
        other = copy.copy(self)
        other.dispersion = Dispersion.of_run(self.metadata, given)
        return other

    @property
    def charge_key(self) -> str | None:
        """Return the key of `atoms.info` that has the total charge, if the network reads it."""
        long_range = self.module.potential.long_range
        return None if long_range is None else long_range.charge_key

    def charge_of(self, atoms) -> float:
        """Return the total charge of `ase.Atoms`, e; 0 if the network does not read it."""
        return total_charge(atoms.info, self.charge_key)

    def reach(self, cells, pbc, counts, room: float = ROOM) -> Reach:
        """Return what sums of latent charges need, see `LatentEwald.reach`; nothing without them.

        Raises:
          DataError: a structure that is periodic along one or two directions only.
        """
        long_range = self.module.potential.long_range
        if long_range is None:
            return Reach()
        try:
            return long_range.reach(cells, pbc, counts, room)
        except ValueError as error:
            raise DataError(str(error)) from error

    def require(self, what: str, *, charges: bool = False, dispersion: bool = False):
        """Refuse a network that needs more than `what` computes: charges, or a dispersion."""
        if self.module.potential.long_range is not None and not charges:
            raise ConfigError(
                f"{what} has no sums of latent charges (model.long_range): use eqfuse.Calculator, "
                "eqfuse md or eqfuse predict, or a network that was trained without them"
            )
        if self.dispersion is not None and not dispersion:
            raise ConfigError(
                f"{what} has no dispersion, and this run was trained on labels less "
                f"{self.dispersion}: use eqfuse.Calculator or eqfuse md, which add it, or say "
                "dispersion=none for the network alone"
            )

    def __getstate__(self):
        return {**self.__dict__, "params": jax.tree.map(np.asarray, self.params)}

    def __setstate__(self, state):
        self.__dict__.update(state)
        with jax.enable_x64(True):
            self.params = jax.device_put(self.params)

    @contextlib.contextmanager
    def described(self):
        """Return a context in which flax's error of parameters is one of the file."""
        try:
            yield
        except FlaxError as error:
            raise CheckpointError(
                f"{self.path} is damaged: its parameters are not those of the network that its "
                f"metadata describe: {str(error).partition(' (http')[0]}"
            ) from error

    @contextlib.contextmanager
    def precision(self):
        """Enter the dtype, without TF32, which would cost three digits of the forces on a GPU."""
        with jax.enable_x64(self.dtype == "float64"), jax.default_matmul_precision("highest"):
            yield


_SEVERAL = 8  # atoms
_SURROUNDED = 0.8  # of the neighbours that atoms had in the training


def unlike_training(network: Network, structures: Sequence[Structure]) -> list[str]:
    """Return warnings of what a network does not read, and of crystals without a cell."""
    texts = [unread((r for s in structures for r in s.remarks), network.charge_key)]
    known = network.metadata.get("statistics", {})
    # of another network, or one that was converted, it is not known what it was trained on
    periodic = known.get("periodic", False) and "started_from" not in network.metadata
    for s in (s for s in structures if not s.pbc.any() and s.num_atoms >= _SEVERAL):
        where = s.origin or "the structure"
        if APERIODIC in s.remarks:
            texts.append(f"{where} has {APERIODIC}: should it be periodic?")
        elif periodic:
            pairs = neighbor_list(s.positions, s.cell, s.pbc, network.cutoff)[0]
            mean, usual = len(pairs) / s.num_atoms, known["avg_num_neighbors"]
            if mean < _SURROUNDED * usual:
                texts.append(
                    f"{where} is not periodic, and the network was trained on periodic cells only: "
                    f"atoms have {mean:.3g} neighbours in the mean, and {usual:.3g} there; should "
                    "it have a cell and pbc T T T?"
                )
        if len(texts) > 1:
            break
    return [text for text in texts if text]


def _uncertainty(file: Path, network: str) -> dict | None:
    """Return what was fitted to a network of this digest; None if there is no file."""
    try:
        arrays = read_arrays(file)
        fitted_to, digest = str(arrays.pop("network")), str(arrays.pop("sha256"))
        if digest_of(arrays) != digest:
            raise ValueError("its arrays have changed")
        shapes = {name: (array.ndim, array.dtype.kind) for name, array in arrays.items()}
        if shapes != {"root": (2, "f"), "forces": (0, "f"), "limit": (0, "f")}:
            raise ValueError(f"it has arrays of {shapes}")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("its arrays are not finite")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # of NumPy and zipfile, which raise many
        raise CheckpointError(f"{file} is damaged ({error}); remove it, or fit it again") from error
    if fitted_to == network:
        return arrays
    text = f"{file} was fitted to another network, and is not used; fit it again"
    warnings.warn(text, UserWarning, stacklevel=3)
    return None


def require_name(run):
    """Raise a TypeError for what names no network, such as a calculator."""
    if not isinstance(run, str | os.PathLike):
        named = "the folder of a run, a file of its network, or the name of a published one"
        raise TypeError(f"a network must be {named}, got {type(run).__name__}")


def find_runs(run) -> list:
    """Return the runs that a name stands for: a run, a folder of runs, a pattern, or several."""
    runs = _runs_of(run)
    places = [Path(one).expanduser().resolve() for one in runs]
    if twice := [place for place in places if places.count(place) > 1]:
        raise CheckpointError(f"{twice[0]} is given twice; a committee needs different networks")
    return runs


def _runs_of(run) -> list:
    if isinstance(run, Sequence) and not isinstance(run, str):
        if not run:
            raise CheckpointError("no run is given; name at least one")
        return [found for one in run for found in _runs_of(one)]
    require_name(run)
    path = Path(run).expanduser()
    if not str(run).strip():
        return [resolved(run)]  # which refuses it
    if path.exists() or not any(mark in str(run) for mark in "*?["):
        inside = [] if (path / "checkpoints").exists() else sorted(path.glob("*/checkpoints"))
        return [folder.parent for folder in inside] or [run]
    matches = sorted(glob.glob(str(path)))
    if not matches:
        raise CheckpointError(f"no run matches {run}")
    return [Path(match) for match in matches]


def load_networks(run, **how) -> list[Network]:
    """Return the networks of a run or a committee, see `find_runs`; or those that are given.

    Args:
      run: see `find_runs`; or a `Network`, or several.
      how: they are read, see `Network`; of those that are given, the dispersion alone.
    Raises:
      TypeError: another option for networks that are given.
    """
    if isinstance(run, Network):
        run = [run]
    if isinstance(run, Sequence) and run and all(isinstance(one, Network) for one in run):
        dispersion = how.pop("dispersion", None)
        if others := ", ".join(name for name, value in how.items() if value is not None):
            raise TypeError(f"{others}: only of a run that is read, and a Network is given")
        return [one.with_dispersion(dispersion) for one in run]
    return [Network(one, **how) for one in find_runs(run)]
