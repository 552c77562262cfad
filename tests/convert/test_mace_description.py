"""What networks of mace are converted to, and what is refused by name, row by row of its page."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest

from eqfuse.convert import ConvertError, convert
from eqfuse.convert.e3nn_torch import irreps_of
from eqfuse.convert.mace import describe
from eqfuse.convert.mace_parameters import head_of, order_of, parameters
from eqfuse.convert.records import Record
from tests.convert.conftest import SEVERAL_HEADS


def of_kind(kind, **state):
    record = type("Record", (Record,), {"kind": kind})()
    record.state = state
    return record


def put(network, path, value):
    """Set an attribute, or replace a submodule; in files each is a record."""
    *parents, name = path.split(".")
    owner = network.get(".".join(parents)) if parents else network
    for part in ("_modules", "_buffers", "_parameters"):
        if name in owner.state[part]:
            owner.state[part][name] = value
            return
    owner.state[name] = value


PAGE = Path(__file__).parents[2] / "eqfuse" / "convert" / "mace-versions.md"
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


def with_one_layer(network):
    for name in ("interactions", "products", "readouts"):
        network.get(name).state["_modules"].popitem()


# Networks that are compared with mace-torch, and that together have all classes that are read.
COMPARED = ("medium", "first_without_residual", "density", "edges", "nonlinear", "nonlinear_cutoff")
ENABLED = of_kind("mace.modules.wrapper_ops.Config", enabled=True)
MESSAGES = {"GenericJointEmbedding": "charge or spin .embedding_specs."}
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
    "`num_interactions` of 1": (None, with_one_layer, "LinearReadoutBlock"),
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


def class_of(name: str):
    """Return a change of the class of a network."""
    return lambda network: setattr(type(network), "kind", f"mace.modules.models.{name}")


# Parts of which the page says nothing.
PARTS = [
    ("interactions.0.conv_tp_weights", of_kind("mace.modules.radial.RadialMLP"), "RadialMLP"),
    ("interactions.0.linear_up", of_kind("cuequivariance_torch.Linear"), "cuequivariance"),
    ("products.0.symmetric_contractions", of_kind("cuet.SymmetricContraction"), "cuet"),
    ("use_last_readout_only", True, "not a readout for each layer"),
    ("interactions.1.conv_tp.irreps_in1", "2x1o+3x0e", "not each once and in order"),
    ("interactions.0.conv_tp.irreps_in1", "2x0e", "not each once and in order"),
    ("radial_embedding.distance_transform", of_kind("mace.NewTransform"), "NewTransform"),
    ("interactions.1.avg_num_neighbors", 5.0, "avg_num_neighbors"),
    ("pair_repulsion_fn", of_kind("mace.Other"), "of the kind mace.Other|of the kind Other"),
]
OF_NONLINEAR = [
    ("interactions.1.equivariant_nonlin._act_gate", of_kind("torch.tanh"), "silu and tanh"),
    ("interactions.0.linear_res", of_kind("cuequivariance_torch.Linear"), "cuequivariance"),
    ("interactions.0.density_fn.net.2", of_kind("torch.nn.ReLU"), "a radial network of .*ReLU"),
    ("interactions.0", of_kind("mace.RealAgnosticInteractionBlock"), "linear"),
]


def refusals():
    """Yield a network that can be read, a place in it, what is put there, and the message."""
    for part, name, verdict in CLASSES:
        if verdict == "refused":
            block = of_kind(f"mace.modules.blocks.{name}")
            value = class_of(name) if part == "network" else block
            row = "medium", PLACES[part], value, MESSAGES.get(name, name)
            yield pytest.param(*row, id=f"{part} {name}")
    for option, verdict in OPTIONS.items():
        if verdict == "refused":
            yield pytest.param("medium", *CHANGES[option], id=option)
    for name, rows in (("medium", PARTS), ("nonlinear", OF_NONLINEAR)):
        yield from (pytest.param(name, *row, id=f"{row[0]} of {name}") for row in rows)


@pytest.mark.parametrize(("name", "path", "value", "message"), [*refusals()])
def test_what_is_refused_is_named(name, path, value, message, network):
    found, head = network(name), "two" if name in SEVERAL_HEADS else None
    parameters(found, describe(found, head))  # as it is, it can be
    if path is None:
        value(found)
    else:
        put(found, path, value)
    with pytest.raises(ConvertError, match=message) as caught:
        parameters(found, describe(found, head))
    assert "\n" not in str(caught.value)


def test_classes_that_are_read_are_those_of_networks_that_are_compared(network):
    found = set().union(*(kinds_of(network(name)) for name in COMPARED))
    read = {name for _, name, verdict in CLASSES if verdict == "read"}
    assert read - found == {"MACE", "MACELES", "Gate"}  # see test_latent_charges


def test_a_network_without_scale_and_shift_is_read(network):
    found = network("medium")
    type(found).kind = "mace.modules.models.MACE"
    del found.state["_modules"]["scale_shift"]
    description = describe(found)
    assert (set(description.scale), set(description.shift)) == ({1.0}, {0.0})


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
    jax.tree.map(np.testing.assert_array_equal, read, expected)
    assert jax.tree.leaves(read)


def test_a_head_is_one_of_those_of_the_file(network, model_file, tmp_path):
    found = network("two_heads")
    with pytest.raises(ConvertError, match="has the heads one, two, and no 'three'"):
        convert("mace", model_file("two_heads"), tmp_path / "run", choice="three")
    with pytest.raises(ValueError, match="None is not in list"):
        describe(found)
    one, two = (describe(found, name) for name in ("one", "two"))
    assert [head_of(found, name) for name in ("one", "two")] == [(0, 2), (1, 2)]
    assert one.scale != two.scale
    assert one.references != two.references


def test_elements_are_sorted(network):
    found = describe(network("small"))
    assert list(found.references) == [1, 6, 8]
    assert order_of(network("small")) == [2, 1, 0]


def test_files_of_old_versions_lack_newer_attributes(network):
    """Read a file of mace 0.3.0, which has one head without a name and nothing of these."""
    found = network("small")
    before = describe(found)
    newer = ("heads", "use_so3", "use_agnostic_product", "use_last_readout_only", "edge_irreps")
    for name in (*newer, "apply_cutoff", "use_reduced_cg", "lammps_mliap", "use_edge_irreps_first"):
        found.state.pop(name, None)
    for block in found.get("interactions").children():
        for name in ("cueq_config", "oeq_config", "edge_irreps", "radial_MLP"):
            block.state.pop(name, None)
    found.get("radial_embedding").state.pop("apply_cutoff")
    assert describe(found) == before


def simplified(linear):
    """Merge what lies side by side in the irreps that a Linear reads, as mace up to 0.3.8 does."""
    before = irreps_of(linear.get("irreps_in"))
    starts = [k for k in range(len(before)) if k == 0 or before[k].ir != before[k - 1].ir]
    groups = [range(a, b) for a, b in itertools.pairwise([*starts, len(before)])]
    instructions = {i.args[0]: i.args for i in linear.get("instructions")}
    merged = []
    for number, group in enumerate(groups):
        parts = [instructions[k] for k in group if k in instructions]
        if parts:
            rows = sum(part[2][0] for part in parts)
            record = of_kind("e3nn.Instruction")
            record.args = (number, parts[0][1], (rows, parts[0][2][1]), parts[0][3])
            merged.append(record)
    linear.state["instructions"] = merged
    linear.state["irreps_in"] = str(before.simplify())


def test_simplified_irreps_of_a_linear_change_nothing(network):
    found, simple = network("medium"), network("medium")
    count = len(irreps_of(simple.get("interactions.1.linear.irreps_in")))
    for block in simple.get("interactions").children():
        simplified(block.get("linear"))
    assert len(irreps_of(simple.get("interactions.1.linear.irreps_in"))) < count
    description = describe(found)
    assert describe(simple) == description
    expected, result = (parameters(n, description) for n in (found, simple))
    jax.tree.map(np.testing.assert_array_equal, result, expected)
    # the test sees rows that are taken from another place
    weight = simple.get("interactions.1.linear.weight")
    put(simple, "interactions.1.linear.weight", np.roll(weight, 1))
    wrong = parameters(simple, description)["layer_1"]["linear_basis"]
    right = expected["layer_1"]["linear_basis"]
    assert any((wrong[name] != right[name]).any() for name in right)


def test_files_of_2022_have_lists_of_numbers_and_no_number_of_layers(network):
    found = network("small")
    before = describe(found)
    scalar = of_kind("numpy.core.multiarray.scalar")
    numbers = []
    for z in found.get("atomic_numbers"):
        dtype, data = of_kind("numpy.dtype"), of_kind("_codecs.encode")
        dtype.args = ("<i8",)
        data.args = (int(z).to_bytes(8, "little").decode("latin1"), "latin1")
        record = type(scalar)()
        record.args = (dtype, data)
        numbers.append(record)
    del found.state["_buffers"]["atomic_numbers"]
    found.state["atomic_numbers"] = numbers
    found.state["_buffers"].pop("num_interactions")
    assert describe(found) == before
