"""The settings of a network: the fields of its module, and those of a potential."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Literal

import eqfuse
from eqfuse.train.settings.schema import NOT_NEGATIVE, POSITIVE, check_ranges, require, setting

_MODELS = Path(eqfuse.__file__).parent / "models"
_FROM_DATA = ("irreps_out", "num_species", "avg_num_neighbors", "backend", "fused")
_MAY_BE_ZERO = ("lmax", "hidden_lmax", "radial_layers")


@dataclasses.dataclass
class PotentialSettings:
    """What a potential adds to the settings of its network."""

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
        """Return the fields of the module, without those of `Potential`.

        Args:
          avg_num_neighbors: of the data, where none is given.
        """
        fields = dataclasses.asdict(self)
        for name in ("name", "trainable_scale_shift", "shift", "zbl"):
            del fields[name]
        if self.avg_num_neighbors is None:
            fields["avg_num_neighbors"] = avg_num_neighbors
        return fields


def settings_of_network(name: str, network: str) -> type:
    """Return the settings of a network as a dataclass.

    They are the fields of its class that are numbers, texts, true or false, and the docstring is
    their help. The source is read and not imported: that would import JAX, which takes seconds, and
    for which `--help` does not wait.

    Args:
      name: of the model, and of its file.
      network: name of the class, whose fields have literal defaults.
    """
    tree = ast.parse((_MODELS / f"{name}.py").read_text(encoding="utf-8"))
    [node] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == network)
    doc = ast.get_docstring(node)
    attributes = re.split(r"\n\n|\n(?=\w)", doc.partition("Attributes:\n")[2])[0]
    texts = {}
    for names, text in re.findall(r"^  (\w[\w, ]*): (.*(?:\n    .*)*)", attributes, re.M):
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()).rstrip("."))
    fields = [("name", str, name)]
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or (key := item.target.id) in _FROM_DATA:
            continue
        kind = ast.unparse(item.annotation)
        if not kind.startswith("tuple"):
            within = NOT_NEGATIVE if key in _MAY_BE_ZERO else POSITIVE
            within = within if kind in ("int", "float") else None
            default = setting(ast.literal_eval(item.value), texts[key], within)
            fields.append((key, eval(kind, {"Literal": Literal}), default))
    made = dataclasses.make_dataclass(network, fields, bases=(PotentialSettings,))
    made.__doc__ = doc.splitlines()[0]
    return made
