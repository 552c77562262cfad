"""The settings of a run: what can be chosen, and what each setting means."""

import ast
import dataclasses
import os
import re
from pathlib import Path
from typing import Any, Literal

import eqfuse
from eqfuse.runs.command import settings_of
from eqfuse.runs.errors import naming
from eqfuse.runs.files import heads_of
from eqfuse.runs.schema import (
    NOT_NEGATIVE,
    POSITIVE,
    Range,
    absolute,
    check_ranges,
    described,
    documented,
    require,
    setting,
    value,
)
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.sources import AVERAGE, FIT, DataSettings

NETWORKS = {"nequip": "NequIP", "allegro": "Allegro", "mace": "MACE"}
_MODELS = Path(eqfuse.__file__).parent / "models"
_NO_SETTINGS = {"irreps_out", "num_species", "avg_num_neighbors", "backend", "fused"}
_NO_SETTINGS |= {"half_weights"}  # see `precision`
PAST = "replay"
"""The head of the network's past in a run with several."""
_MAY_BE_ZERO = ("lmax", "hidden_lmax", "radial_layers")


@documented
@dataclasses.dataclass
class PotentialSettings:
    """What every potential has besides the fields of the module of its network."""

    avg_num_neighbors: float | None = value(None, POSITIVE)
    """neighbours per atom; null: from the data"""
    trainable_scale_shift: bool = value(False)
    """train the per-species scale and shift (eV)"""
    shift: Literal["mean", "zero"] = value("mean")
    """constant energy of an atom: the mean of the training energies, or zero, for dissociation"""
    zbl: bool = value(False)
    """add the repulsion of near nuclei (ZBL)"""
    long_range: Literal["les"] | None = value(None)
    """les: add the electrostatic energy of latent charges, which the network predicts for each atom
    and which are trained on energies and forces alone; null: the network sees no further than its
    layers"""
    les_charges: int = value(1, POSITIVE)
    """with long_range=les: charges of an atom, whose energies are added"""
    les_sigma: float = value(1.0, Range(lambda x: 0.3 <= x <= 10, "between 0.3 and 10 Å"))
    """with long_range=les: width of the charges, Å; sums in cells cost its inverse cubed"""
    les_cutoff: float | None = value(None, POSITIVE)
    """with long_range=les: largest wave vector of the sums in cells, 1/Å; null: where what is left
    out is below 1e-7"""

    def __post_init__(self):
        check_ranges(self, "model.")
        for name in ("les_charges", "les_sigma", "les_cutoff"):
            unset = getattr(self, name) == getattr(PotentialSettings, name)
            need = "left out without model.long_range=les"
            require(self.long_range or unset, f"model.{name}", getattr(self, name), need)
        both = getattr(self, "species_linear", False) and self.first_skip
        need = "left out with model.first_skip=true: it is in the place of that skip"
        require(not both, "model.species_linear", "true", need)

    def model_fields(self, avg_num_neighbors: float) -> dict:
        """Return the fields of the module; neighbours are those of the data, if not given."""
        others = {"name", *(f.name for f in dataclasses.fields(PotentialSettings))}
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in others}
        return fields | {"avg_num_neighbors": self.avg_num_neighbors or avg_num_neighbors}


def _settings_of_network(name: str) -> type:
    """Return the settings of a network as a dataclass, with those of every potential.

    They are the fields of its class, and of that of all networks, that are numbers, texts, true or
    false, and the docstrings are their help. The statements of the fields are run alone, and the
    modules are not imported: that would import JAX, which takes seconds, and for which `--help`
    does not wait.
    """
    found, helps, title = {"Literal": Literal}, {}, ""
    for module, of in (("network", "Network"), (name, NETWORKS[name])):
        tree = ast.parse((_MODELS / f"{module}.py").read_text(encoding="utf-8"))
        [node] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == of)
        statements = [item for item in node.body if isinstance(item, ast.AnnAssign)]
        exec(compile(ast.Module(statements, []), module, "exec"), found)
        title, _, attributes = ast.get_docstring(node).partition("Attributes:\n")
        section = re.split(r"\n\n|\n(?=\w)", attributes)[0]
        for names, text in re.findall(r"^  (\w[\w, ]*): (.*(?:\n    .*)*)", section, re.M):
            helps |= dict.fromkeys(names.split(", "), " ".join(text.split()).rstrip("."))
    fields = [("name", str, name)]
    for key, kind in found["__annotations__"].items():
        if key in _NO_SETTINGS or "tuple" in str(kind):
            continue
        within = NOT_NEGATIVE if key in _MAY_BE_ZERO else POSITIVE
        within = within if kind in (int, float) else None
        fields.append((key, kind, setting(found[key], helps[key], within)))
    made = dataclasses.make_dataclass(NETWORKS[name], fields, bases=(PotentialSettings,))
    made.__doc__ = title.splitlines()[0]
    return made


MODELS = {name: _settings_of_network(name) for name in NETWORKS}
"""The settings of each `model=`."""


@documented
@dataclasses.dataclass(kw_only=True)
class Config:
    """A whole run: the settings of its model, data and training, and its own."""

    model: Any
    data: DataSettings
    training: MoleculeTraining
    preset: str | None = value(None)
    """settings that go together, see Presets"""
    seed: int = value(0, Range(lambda k: 0 <= k < 2**32, "zero or more, and less than 2^32"))
    """seed of the initial parameters, the split and the order of the data"""
    backend: str | None = value(None)
    """implementation of the ops: triton, llvm, xla or e3nn; null: by device"""
    dtype: Literal["float32", "float64"] = value("float32")
    """dtype of parameters and data"""
    precision: Literal["auto", "highest", "bfloat16"] = value("auto")
    """of matmuls in float32; auto computes three products of TF32 on NVIDIA GPUs that have it, with
    the errors of float32; bfloat16 also rounds the weights of edges, in training alone"""
    steps: int | None = value(None, POSITIVE)
    """stop after this many steps; null: no limit"""
    verbose: bool = value(False)
    """print layers and what runs each op, too"""
    run: str | None = value(None, convert=os.path.expanduser)
    """folder of the run; null: runs/<date-time>_<model>_<data>"""
    devices: str = value("1")
    """share every batch between a number of devices, all, or distributed; see Options"""
    epochs: int | None = value(None, POSITIVE)
    """stop after this many epochs; null: 100, unless steps or max_minutes is given"""
    max_minutes: float | None = value(None, POSITIVE)
    """stop after this many minutes, or at steps or epochs if these come first; reading the data,
    compiling and writing the results come on top"""
    start_from: str | None = value(None, convert=os.path.expanduser)
    """run, name of a published network or file of another program, to start from; see Options"""
    head: str | None = value(None)
    """with start_from=: which head of a network with several; the run has this one"""
    elements: Literal["data"] | None = value(None)
    """with start_from=: keep only the elements of the data; null: those of the network"""
    replay: str | None = value(
        None, convert=lambda text: {"none": None, "auto": text}.get(text, absolute(text))
    )
    """with start_from=: frames of the network's past that are mixed with the data: auto (crystals
    and molecules of its elements, labelled by itself), or a FILE; null: none"""
    replay_frames: int = value(64, POSITIVE)
    """frames of replay, the farthest from each other by descriptors"""
    replay_weight: float = value(1.0, POSITIVE)
    """weight of frames of replay in the loss"""
    elastic: float | None = value(None, NOT_NEGATIVE)
    """with start_from=: weight of a penalty on changes of parameters that matter for frames of the
    network's past, made as those of replay; 0: none; null: 30, where the network knows elements
    that the data have not, without replay and heads"""
    resume: str | None = value(None, convert=os.path.expanduser)
    """folder of an interrupted run to continue; see Options. Nothing else is needed"""
    heads: dict[str, dict] = dataclasses.field(default_factory=dict)
    """By the name of a head: the settings of its data that are not those of `data`."""

    def __post_init__(self):
        check_ranges(self, "")
        self._check_heads()
        self._check_charges()
        rounds = self.dtype == "float32" and not getattr(self.model, "nonlinear", False)
        rounds = rounds and self.model.name != "allegro"
        need = "auto or highest with dtype=float64, model=allegro or model.nonlinear=true"
        require(rounds or self.precision != "bfloat16", "precision", self.precision, need)
        fits = re.fullmatch("all|distributed|0*[1-9][0-9]*", self.devices)
        require(fits, "devices", self.devices, "a number of devices, all, or distributed")
        if self.start_from is None:
            has = "has the elements of its data"
            for name in ("elements", "replay", "elastic", "head"):
                need = f"left out without start_from=: a new network {has}"
                require(not getattr(self, name), name, getattr(self, name), need)
                has = "has no past"
            wrong, need = FIT, f"a file, energies, average or null: {FIT} is for start_from="
        else:
            wrong = AVERAGE
            need = f"a file of free atoms, their energies, or {FIT}, with start_from=: its network "
            need += f"has reference energies, and {FIT} moves them"
        require(self.data.reference_energies != wrong, "data.reference_energies", wrong, need)

    def _check_charges(self):
        key, charges = self.data.charge_key, self.model.les_charges
        need = "1 with data.charge_key, which says what one charge of each atom adds up to"
        require(key is None or charges == 1, "model.les_charges", charges, need)
        need = "left out without model.long_range=les: no other network reads charges"
        reads = self.model.long_range is not None or self.start_from is not None
        require(key is None or reads, "data.charge_key", key, need)

    def _check_heads(self):
        if not self.heads:
            need = f"the file to train on: data={self.data.name} data.path=FILE"
            require(self.data.path or self.data.name != "extxyz", "data.path", "null", need)
            return
        own = self.data.path or (self.data.name if self.data.name != "extxyz" else None)
        need = "left out with heads.NAME=FILE: each head has data of its own"
        require(own is None, "data", own, need)
        require(not self.elastic, "elastic", self.elastic, "left out with heads.NAME=FILE")
        for name in self.heads:
            need = "a name of letters, digits, - and _"
            require(re.fullmatch(r"[\w-]+", name), "heads", name, need)
            need = f"another name: with replay=, the network's past is the head {PAST}"
            require(name != PAST or self.replay is None, "heads", name, need)
        self.of_heads()

    def of_heads(self) -> dict[str | None, "Config"]:
        """Return the configuration of each head, as if it were alone; itself where there is one.

        A head starts from that of its name, if the network of `start_from` has it.
        """
        if not self.heads:
            return {None: self}
        configs, start = {}, Path(self.start_from or "")
        known = heads_of(start.parent.parent) if start.parent.name == "heads" else ()
        for name, own in self.heads.items():
            with naming(f"heads.{name}"):
                data = dataclasses.replace(self.data, **own)
                file = start.parent / f"{name}.safetensors"
                begins = {"start_from": str(file)} if name in known else {}
                configs[name] = dataclasses.replace(self, heads={}, data=data, **begins)
        return configs


def known(model: str) -> dict[str, dataclasses.Field]:
    """Return every setting of a run with this network by its full name."""
    own = settings_of(Config) | settings_of(MODELS[model], "model.")
    return own | settings_of(DataSettings, "data.") | settings_of(MoleculeTraining, "training.")


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Return name, help and default of the settings of a title; what networks share is together."""

    def rows(kind: type, prefix: str = "") -> list[tuple[str, str, str]]:
        return [(name, *described(f)) for name, f in settings_of(kind, prefix).items()]

    owners, found = {}, {"every run": rows(Config)}
    for name, kind in MODELS.items():
        for row in rows(kind, "model."):
            owners.setdefault(row, []).append(name)
    for row, names in sorted(owners.items(), key=lambda item: -len(item[1])):
        title = "all" if len(names) == len(MODELS) else ", ".join(names)
        found.setdefault(f"model={title}", []).append(row)
    more = {"the data": rows(DataSettings, "data.")}
    return found | more | {"the training": rows(MoleculeTraining, "training.")}
