"""The tables of classes and options by mace's version in the documentation, row by row."""

from pathlib import Path

import jax
import numpy as np
import pytest

from eqfuse.convert import ConvertError
from eqfuse.convert.mace import describe
from eqfuse.convert.mace_parameters import parameters
from eqfuse.convert.records import Record
from tests.convert.test_mace_description import of_kind, put

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mace-versions.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.endswith(("| read |", "| refused |"))
]
CLASSES = [(row[0], row[1].strip("`"), row[-1]) for row in ROWS if len(row) == 5]
OPTIONS = {row[0]: row[-1] for row in ROWS if len(row) == 3}
PLACES = {
    "first interaction": "interactions.0",
    "interaction": "interactions.1",
    "readout": "readouts.0",
    "last readout": "readouts.1",
    "radial basis": "radial_embedding.bessel_fn",
    "transform": "radial_embedding.distance_transform",
    "pair repulsion": "pair_repulsion_fn",
    "joint embedding": "joint_embedding",
    "Linear": "interactions.1.linear_up",
    "layer of a radial network": "interactions.0.conv_tp_weights.layer0",
    "radial network": "interactions.0.conv_tp_weights",
    "gate": "interactions.0.equivariant_nonlin",
    "network": None,
}
# Networks that are compared with mace-torch, and that together have all classes that are read.
COMPARED = ("medium", "first_without_residual", "density", "edges", "nonlinear", "nonlinear_cutoff")
ENABLED = of_kind("mace.modules.wrapper_ops.Config", enabled=True)
MESSAGES = {"GenericJointEmbedding": "embedding_specs"}
CHANGES = {
    "`hidden_irreps` of other forms, such as 64x0e+32x1o or with 0o": (
        "products.0.linear.irreps_out",
        "3x0e+2x1o",
        "not of one number of channels",
    ),
    "`correlation` that differs by layer": (
        "products.1.symmetric_contractions.contractions.0.U_matrix_3",
        None,
        "correlation",
    ),
    "`num_interactions` of 1": (None, None, "LinearReadoutBlock"),
    "`gate` tanh, abs, None": (
        "readouts.1.non_linearity.acts.0.f",
        of_kind("torch.abs"),
        r"\(gate\)",
    ),
    "`radial_MLP` of several widths": (
        "interactions.0.conv_tp_weights.layer1.weight",
        np.zeros((6, 7)),
        "hidden layers of the widths",
    ),
    "trained frequencies of `BesselBasis`": (
        "radial_embedding.bessel_fn.bessel_weights",
        np.arange(1.0, 5.0),
        "frequencies that were trained",
    ),
    "`distance_transform=Soft` of 0.3.5 to 0.3.9, of another formula": (
        "radial_embedding.distance_transform",
        of_kind("mace.modules.radial.SoftTransform", a=np.array(0.2), b=np.array(3.0)),
        "SoftTransform of mace 0.3.5 to 0.3.9",
    ),
    "`cueq_config`, enabled": ("interactions.0.cueq_config", ENABLED, "cueq_config"),
    "`oeq_config`, enabled": ("interactions.0.oeq_config", ENABLED, "oeq_config"),
    "`use_so3`": ("use_so3", True, "use_so3"),
    "`embedding_specs`, `use_embedding_readout`": (
        "joint_embedding",
        of_kind("mace.modules.embeddings.GenericJointEmbedding"),
        "embedding_specs",
    ),
}


def kinds_of(record: Record) -> set[str]:
    """Return the names of the classes of a module and of all below it."""
    found = {record.name}
    for child in record.children():
        found |= kinds_of(child)
    return found


@pytest.mark.parametrize(
    ("part", "name"), [(p, n) for p, n, verdict in CLASSES if verdict == "refused"]
)
def test_a_class_that_is_refused_is_named(part, name, network):
    found = network("medium")
    describe(found)  # as it is, it can be
    if part == "network":
        type(found).kind = f"mace.modules.models.{name}"
    else:
        put(found, PLACES[part], of_kind(f"mace.modules.blocks.{name}"))
    with pytest.raises(ConvertError, match=MESSAGES.get(name, name)) as caught:
        describe(found)
    assert "\n" not in str(caught.value)


def test_classes_that_are_read_are_those_of_networks_that_are_compared(network):
    found = set().union(*(kinds_of(network(name)) for name in COMPARED))
    read = {name for _, name, verdict in CLASSES if verdict == "read"}
    assert read - found == {"MACE", "Gate"}


def test_a_network_without_scale_and_shift_is_read(network):
    found = network("medium")
    type(found).kind = "mace.modules.models.MACE"
    del found.state["_modules"]["scale_shift"]
    description = describe(found)
    assert (set(description.scale), set(description.shift)) == ({1.0}, {0.0})


@pytest.mark.parametrize("option", [o for o, verdict in OPTIONS.items() if verdict == "refused"])
def test_an_option_that_is_refused_is_named(option, network):
    path, value, message = CHANGES[option]
    found = network("medium")
    if path is None:
        for name in ("interactions", "products", "readouts"):
            found.get(name).state["_modules"].popitem()
    else:
        put(found, path, value)
    with pytest.raises(ConvertError, match=message):
        describe(found)


def test_the_gate_of_older_releases_is_read(network):
    found = network("nonlinear")
    description = describe(found, "two")
    expected = parameters(found, description)
    for block in found.get("interactions").children():
        gate = block.get("equivariant_nonlin")
        acts = {
            f"act_{name}s": of_kind("e3nn.nn.Activation", acts={"0": of_kind("_", f=f, cst=c)})
            for name, f, c in (
                ("scalar", gate.get("_act_scalar"), gate.get("_scalar_cst")),
                ("gate", gate.get("_act_gate"), gate.get("_gate_cst")),
            )
        }
        put(block, "equivariant_nonlin", of_kind("e3nn.nn._gate.Gate", **acts))
    read = parameters(found, description)
    assert jax.tree.structure(read) == jax.tree.structure(expected)
    pairs = list(zip(jax.tree.leaves(read), jax.tree.leaves(expected), strict=True))
    assert pairs
    assert all(np.array_equal(one, other) for one, other in pairs)
