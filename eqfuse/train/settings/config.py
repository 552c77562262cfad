"""The settings of a run: what can be chosen, and what each setting means."""

import ast
import dataclasses
import os
import re
from pathlib import Path
from typing import Any, Literal

import eqfuse
from eqfuse.train.run.files import heads_of
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.schema import (
    NOT_NEGATIVE,
    POSITIVE,
    ConfigError,
    Range,
    absolute,
    check_ranges,
    require,
    setting,
)
from eqfuse.train.sources import AVERAGE, FIT, DataSettings

NETWORKS = {"nequip": "NequIP", "allegro": "Allegro", "mace": "MACE"}
_MODELS = Path(eqfuse.__file__).parent / "models"
_NO_SETTINGS = ("irreps_out", "num_species", "avg_num_neighbors", "backend", "fused")
_NO_SETTINGS += ("radial_accuracy",)  # a training does not choose knots
PAST = "replay"
"""The head of the network's past in a run with several."""
_MAY_BE_ZERO = ("lmax", "hidden_lmax", "radial_layers")


@dataclasses.dataclass
class PotentialSettings:
    """What every potential has besides the fields of the module of its network."""

    avg_num_neighbors: float | None = setting(
        None, "neighbours per atom; null: from the data", POSITIVE
    )
    trainable_scale_shift: bool = setting(False, "train the per-species scale and shift (eV)")
    shift: Literal["mean", "zero"] = setting(
        "mean",
        "energy that an atom has besides what the network computes: the mean of the training "
        "energies, relative to the reference energies, or zero, which is right far from the data",
    )
    zbl: bool = setting(False, "add the repulsion of near nuclei (ZBL)")

    def __post_init__(self):
        check_ranges(self, "model.")
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

    They are the fields of its class that are numbers, texts, true or false, with literal defaults,
    and the docstring is their help. The source is read and not imported: that would import JAX,
    which takes seconds, and for which `--help` does not wait.
    """
    tree = ast.parse((_MODELS / f"{name}.py").read_text(encoding="utf-8"))
    [node] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == NETWORKS[name])
    doc = ast.get_docstring(node)
    attributes = re.split(r"\n\n|\n(?=\w)", doc.partition("Attributes:\n")[2])[0]
    texts = {}
    for names, text in re.findall(r"^  (\w[\w, ]*): (.*(?:\n    .*)*)", attributes, re.M):
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()).rstrip("."))
    fields = [("name", str, name)]
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or (key := item.target.id) in _NO_SETTINGS:
            continue
        kind = ast.unparse(item.annotation)
        if not kind.startswith("tuple"):
            within = NOT_NEGATIVE if key in _MAY_BE_ZERO else POSITIVE
            within = within if kind in ("int", "float") else None
            default = setting(ast.literal_eval(item.value), texts[key], within)
            fields.append((key, eval(kind, {"Literal": Literal}), default))
    made = dataclasses.make_dataclass(NETWORKS[name], fields, bases=(PotentialSettings,))
    made.__doc__ = doc.splitlines()[0]
    return made


MODELS = {name: _settings_of_network(name) for name in NETWORKS}
"""The settings of each `model=`."""


@dataclasses.dataclass(kw_only=True)
class Config:
    """A whole run: the settings of its model, data and training, and its own."""

    model: Any
    data: DataSettings
    training: MoleculeTraining
    preset: str | None = setting(None, "settings that go together, see Presets")
    seed: int = setting(
        0,
        "seed of the initial parameters, the split and the order of the data",
        Range(lambda value: 0 <= value < 2**32, "zero or more, and less than 2^32"),
    )
    backend: str | None = setting(
        None,
        "implementation of the ops: triton, llvm, xla or e3nn, and of single ops: "
        "triton,linear=xla; null: by device",
    )
    dtype: Literal["float32", "float64"] = setting("float32", "dtype of parameters and data")
    precision: Literal["auto", "highest"] = setting(
        "auto",
        "of matmuls in float32; auto computes three products of TF32 on NVIDIA GPUs that have it, "
        "with the errors of float32",
    )
    steps: int | None = setting(None, "stop after this many steps; null: no limit", POSITIVE)
    verbose: bool = setting(
        False, "print layers, what runs each op, and the shapes of batches, too"
    )
    run: str | None = setting(
        None, "folder of the run; null: runs/<date-time>_<model>_<data>", convert=os.path.expanduser
    )
    devices: str = setting(
        "1", "share every batch between a number of devices, all, or distributed; see Options"
    )
    epochs: int | None = setting(
        None,
        "stop after this many epochs; null: 100, unless steps or max_minutes is given",
        POSITIVE,
    )
    max_minutes: float | None = setting(
        None, "stop after this many minutes, or at steps or epochs if these come first", POSITIVE
    )
    loggers: str | None = setting(
        None, "report to tensorboard or wandb, too, or to both: tensorboard,wandb"
    )
    start_from: str | None = setting(
        None, "folder of a run whose trained network to start from; see Options", convert=absolute
    )
    head: str | None = setting(
        None, "with start_from=: which head of a network with several; the run has this one"
    )
    elements: Literal["data"] | None = setting(
        None,
        "with start_from=: keep only the elements of the data; null: those of the network",
    )
    replay: str | None = setting(
        None,
        "with start_from=: frames of the network's past, which are mixed with the data so that it "
        "does not forget: auto (crystals and molecules of its elements, labelled by itself before "
        "the training), or a FILE, or none; null: none",
        convert=lambda text: text if text in ("auto", "none") else absolute(text),
    )
    replay_frames: int = setting(
        64, "frames of replay, the farthest from each other by descriptors", POSITIVE
    )
    replay_weight: float = setting(1.0, "weight of frames of replay in the loss", POSITIVE)
    elastic: float | None = setting(
        None,
        "with start_from=: weight of a penalty on changes of parameters that matter for frames of "
        "the network's past (elastic weights), made as those of replay, but not trained on; 0: "
        "none; null: 30, where the network knows elements that the data have not, without replay, "
        "adapter and heads",
        NOT_NEGATIVE,
    )
    adapter: Literal["lora"] | None = setting(
        None,
        "with start_from=: train two narrow matrices beside each matrix of the network (LoRA), and "
        "add their product at the end; null: all parameters",
    )
    rank: int = setting(8, "columns of the narrow matrices of adapter=lora", POSITIVE)
    resume: str | None = setting(
        None,
        "folder of an interrupted run to continue; see Options. Nothing else is needed",
        convert=os.path.expanduser,
    )
    heads: dict[str, dict] = dataclasses.field(default_factory=dict)
    """By the name of a head: the settings of its data that are not those of `data`."""

    def __post_init__(self):
        check_ranges(self, "")
        self._check_heads()
        fits = re.fullmatch("all|distributed|0*[1-9][0-9]*", self.devices)
        require(fits, "devices", self.devices, "a number of devices, all, or distributed")
        wrong = AVERAGE
        need = f"a file of free atoms, their energies, or {FIT}, with start_from=: its network has "
        need += f"reference energies, and {FIT} moves them"
        if self.start_from is None:
            need = "left out without start_from=: a new network has the elements of its data"
            require(not self.elements, "elements", self.elements, need)
            need = "left out without start_from=: a new network has no past"
            for name in ("replay", "elastic", "adapter", "head"):
                require(not getattr(self, name), name, getattr(self, name), need)
            wrong, need = FIT, f"a file, energies, average or null: {FIT} is for start_from="
        given = self.data.reference_energies
        require(given != wrong, "data.reference_energies", wrong, need)
        need = "left out with elastic=, which holds the parameters that adapters leave as they are"
        require(not (self.elastic and self.adapter), "adapter", self.adapter, need)

    def _check_heads(self):
        if not self.heads:
            need = f"the file to train on: data={self.data.name} data.path=FILE"
            require(self.data.path or self.data.name != "extxyz", "data.path", "null", need)
            return
        own = self.data.path or (self.data.name if self.data.name != "extxyz" else None)
        need = "left out with heads.NAME=FILE: each head has data of its own"
        require(own is None, "data", own, need)
        for name in ("adapter", "elastic"):
            value = getattr(self, name)
            require(not value, name, value, "left out with heads.NAME=FILE")
        for name in self.heads:
            need = "a name of letters, digits, - and _"
            require(re.fullmatch(r"[\w-]+", name), "heads", name, need)
            need = f"another name: with replay=, the network's past is the head {PAST}"
            require(name != PAST or self.replay in (None, "none"), "heads", name, need)
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
            try:
                data = dataclasses.replace(self.data, **own)
                file = start.parent / f"{name}.safetensors"
                begins = {"start_from": str(file)} if name in known else {}
                configs[name] = dataclasses.replace(self, heads={}, data=data, **begins)
            except ConfigError as error:
                raise ConfigError(f"heads.{name}: {error}") from error
        return configs


def known(model: str) -> dict[str, dataclasses.Field]:
    """Return every setting of a run with this network by its full name."""
    nodes = {
        "": Config,
        "model.": MODELS[model],
        "data.": DataSettings,
        "training.": MoleculeTraining,
    }
    return {
        prefix + field.name: field
        for prefix, node in nodes.items()
        for field in dataclasses.fields(node)
        if "help" in field.metadata
    }
