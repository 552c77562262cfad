"""What converted networks are said to be, and what is refused by name."""

import itertools

import jax
import numpy as np
import pytest

from eqfuse.convert import ConvertError
from eqfuse.convert.e3nn_torch import irreps_of
from eqfuse.convert.mace import describe
from eqfuse.convert.mace_parameters import head_of, order_of, parameters
from eqfuse.convert.records import Record


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


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "interactions.1",
            of_kind("mace.modules.blocks.RealAgnosticAttResidualInteractionBlock"),
            "RealAgnosticAttResidualInteractionBlock",
        ),
        ("joint_embedding", of_kind("mace.modules.X"), "charge or spin"),
        ("interactions.0.conv_tp_weights", of_kind("mace.modules.radial.RadialMLP"), "RadialMLP"),
        ("interactions.0.cueq_config", of_kind("mace.Config", enabled=True), "cueq_config"),
        ("interactions.1.oeq_config", of_kind("mace.Config", enabled=True), "oeq_config"),
        ("interactions.0.linear_up", of_kind("cuequivariance_torch.Linear"), "cuequivariance"),
        ("products.0.symmetric_contractions", of_kind("cuet.SymmetricContraction"), "cuet"),
        ("use_so3", True, "use_so3"),
        ("use_last_readout_only", True, "not a readout for each layer"),
        ("interactions.1.conv_tp.irreps_in1", "2x1o+3x0e", "not each once and in order"),
        ("interactions.0.conv_tp.irreps_in1", "2x0e", "not each once and in order"),
        ("radial_embedding.bessel_fn", of_kind("mace.GaussianBasis"), "GaussianBasis"),
        ("radial_embedding.bessel_fn.bessel_weights", np.arange(1.0, 5.0), "were trained"),
        ("radial_embedding.distance_transform", of_kind("mace.NewTransform"), "NewTransform"),
        ("readouts.0", of_kind("mace.LinearDipoleReadoutBlock"), "LinearDipoleReadoutBlock"),
        ("readouts.1", of_kind("mace.GeneralNonLinearBiasReadoutBlock"), "GeneralNonLinearBias"),
        ("readouts.1.non_linearity.acts.0.f", of_kind("torch.tanh"), "another activation"),
        ("interactions.1.avg_num_neighbors", 5.0, "avg_num_neighbors"),
        ("pair_repulsion_fn", of_kind("mace.Other"), "of the kind mace.Other|of the kind Other"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(path, value, message, network):
    found = network("medium")
    describe(found)  # as it is, it can be
    put(found, path, value)
    with pytest.raises(ConvertError, match=message) as caught:
        describe(found)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("interactions.1.equivariant_nonlin._act_gate", of_kind("torch.tanh"), "silu and tanh"),
        ("interactions.0.linear_res", of_kind("cuequivariance_torch.Linear"), "cuequivariance"),
        ("interactions.0.density_fn.net.2", of_kind("torch.nn.ReLU"), "a radial network of .*ReLU"),
        ("interactions.0", of_kind("mace.RealAgnosticInteractionBlock"), "linear"),
        ("joint_embedding", of_kind("mace.modules.X"), "charge or spin"),
    ],
)
def test_what_nonlinear_interactions_have_and_we_have_not_is_refused(path, value, message, network):
    found = network("nonlinear")
    parameters(found, describe(found, "two"))  # as it is, it can be
    put(found, path, value)
    with pytest.raises(ConvertError, match=message):
        parameters(found, describe(found, "two"))


def test_fields_of_newer_networks_are_those_of_the_file(network):
    fields = describe(network("edges")).fields
    assert fields["edge_irreps"] == "2x0e+1x1o+1x2e"
    assert fields["first_edge_irreps"]
    assert fields["last_readout_only"]
    assert not fields["apply_cutoff"]
    assert (fields["distance_transform"], fields["soft_steepness"]) == ("soft", 4.0)
    fields = describe(network("nonlinear"), "one").fields
    assert fields["nonlinear"]
    assert fields["agnostic_product"]
    assert fields["readout_biases"]
    assert not fields["first_edge_irreps"]


def test_networks_of_other_quantities_are_refused(network):
    found = network("small")
    type(found).kind = "mace.modules.models.AtomicDipolesMACE"
    with pytest.raises(ConvertError, match="AtomicDipolesMACE; only MACE and ScaleShiftMACE"):
        describe(found)


def test_a_head_is_asked_for_where_there_are_several(network):
    found = network("two_heads")
    with pytest.raises(ConvertError, match="heads one, two; give one of them by --head"):
        describe(found)
    with pytest.raises(ConvertError, match="there is no three"):
        describe(found, "three")
    one, two = (describe(found, name) for name in ("one", "two"))
    assert [head_of(found, name) for name in ("one", "two")] == [(0, 2), (1, 2)]
    assert one.scale != two.scale
    assert one.references != two.references


def test_fields_are_those_of_the_file(network):
    fields = describe(network("density")).fields
    assert fields["density_normalization"]
    assert fields["species_linear"]
    assert not fields["first_skip"]
    assert fields["distance_transform"] == "agnesi"
    assert (fields["layers"], fields["channels"], fields["lmax"]) == (2, 3, 2)
    assert (fields["hidden_lmax"], fields["correlation"], fields["radial_layers"]) == (1, 3, 3)
    assert fields["cutoff"] == 4.5


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
