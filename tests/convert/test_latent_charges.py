"""MACELES of mace: the charges of its second readouts, and the constants of its file.

mace-torch makes none here, since its `les` has another licence: readouts of charges are written
into networks that it made.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest

from eqfuse.convert import ConvertError
from eqfuse.convert.conversion import check_parameters, potential_and_variables
from eqfuse.convert.mace import describe
from eqfuse.convert.mace_parameters import parameters
from eqfuse.data import Shape, collate, neighbor_list
from eqfuse.data.samples import Sample
from tests.convert.test_mace_description import of_kind, put


def with_charges(read, factor=1.0, **options):
    """Make a MACELES of a network, whose charges are its scalars of energies, times a factor."""
    network, other = read("medium"), read("medium")
    modules = network.state["_modules"]
    sum_of_charges = {"sigma": 1.5, "dl": 2.5, "norm_factor": 90.0474}
    sum_of_charges["remove_self_interaction"] = False
    ewald = of_kind("les.module.ewald.Ewald", **sum_of_charges)
    modules["les"] = of_kind("les.les.Les", _modules={"ewald": ewald}, use_atomwise=False)
    modules["les_readouts"] = other.state["_modules"]["readouts"]
    for name in ("0.linear", "1.linear_2"):
        weight = network.get(f"les_readouts.{name}.weight")
        put(network, f"les_readouts.{name}.weight", factor * np.asarray(weight))
    # the other way round, which changes nothing
    first = np.asarray(network.get("les_readouts.1.linear_1.weight"))
    size = network.get("les_readouts.1.linear_2.weight").size
    put(network, "les_readouts.1.linear_1.weight", first.reshape(-1, size)[:, ::-1].ravel())
    second = np.asarray(network.get("les_readouts.1.linear_2.weight"))
    put(network, "les_readouts.1.linear_2.weight", second[::-1])
    network.state |= options
    type(network).kind = "mace.modules.extensions.MACELES"
    return network


def converted(network):
    described = describe(network)
    return dataclasses.replace(described, params=parameters(network, described))


def scalars_of(converted):
    """Return what the network of a file predicts for the atoms of a small molecule."""
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(6, 3)) * 1.5
    lists = neighbor_list(positions, np.zeros((3, 3)), np.zeros(3, bool), 4.5)
    index = rng.integers(0, len(converted.references), 6).astype(np.int32)
    sample = Sample(positions, index, *lists, np.zeros((3, 3)), 0.0, None)
    graph = collate([sample], Shape(7, len(lists[0]), 2), "float64").graph
    potential, variables = potential_and_variables(converted)
    with jax.enable_x64(True):
        operands = graph.vectors, graph.species, graph.edges
        found = jax.jit(potential.apply)(variables, *operands)
    return jax.device_get(found)


def test_charges_are_those_of_the_second_readouts(network):
    """Energies are those of the same network without charges, and charges the readouts'."""
    found = converted(with_charges(network, factor=-0.3))
    check_parameters(found)
    energies, charges = scalars_of(found)
    expected = scalars_of(converted(network("medium")))
    np.testing.assert_allclose(energies, expected, rtol=1e-10)
    scalars = (expected - found.shift[0]) / found.scale[0]
    assert np.ptp(scalars) > 0.01
    np.testing.assert_allclose(charges[:, 0], -0.3 * scalars, rtol=1e-10, atol=1e-12)


def test_constants_are_those_of_the_file(network):
    les = describe(with_charges(network)).long_range
    assert (les.sigma, les.constant, les.remove_self, les.hard) == (1.5, 90.0474, False, True)
    assert les.cutoff == pytest.approx(2 * math.pi / 2.5)
    assert (les.scale, les.charges) == (1.0, 1)  # of files from before there was a factor
    newer = with_charges(network, les_output_scale=0.1)
    assert describe(newer).long_range.scale == 0.1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda n: put(n, "use_dipoles", True), "use_dipoles"),
        (lambda n: n.get("les").state.update(use_atomwise=True), "use_atomwise"),
        (lambda n: put(n, "les.ewald", of_kind("les.module.ewald.Other")), "Other"),
        (
            lambda n: n.state["_modules"].update(les_kappa_readouts=n.get("les_readouts")),
            "les_kappa_readouts",
        ),
        (lambda n: n.state["_modules"].pop("les"), "without its sum of charges"),
    ],
)
def test_dipoles_and_fields_are_refused_by_name(network, change, named):
    changed = with_charges(network)
    change(changed)
    with pytest.raises(ConvertError, match=named):
        describe(changed)
