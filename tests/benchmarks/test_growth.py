"""The kernels that a model needs do not grow with its layers, and operands are copied once."""

import re

import jax
import pytest

from benchmarks import small
from benchmarks.cpu_cases import random_graph, step_on
from benchmarks.growth_point import triton_kernels

# With one parity the irreps are the same from the second layer to the last but one.
MODELS = {
    "nequip": {"parity": False, "radial_layers": 1},
    "mace": {"correlation": 2},
    "allegro": {"parity": False, "latent_dim": 8},
}


def step_of(name, layers):
    graph = random_graph(60)
    return step_on(graph, name, channels=4, lmax=1, layers=layers, **MODELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_three_and_six_layers_have_the_same_triton_kernels(name):
    few, many = (triton_kernels(step_of(name, layers)) for layers in (3, 6))
    assert len(few) > 10
    assert few == many


@pytest.mark.slow
def test_three_and_six_layers_have_the_same_number_of_native_kernels():
    kernels = []
    for layers in (3, 6):
        step = step_of("mace", layers)
        text = jax.jit(step.function("llvm")).lower(*step.args).as_text()
        calls = re.findall(r"custom_call @(eqfuse\w+)", text)
        kernels.append((len(set(calls)), len(calls)))
    assert 10 < kernels[0][0] == kernels[1][0]
    assert kernels[0][1] < kernels[1][1]


def test_an_operand_in_another_layout_costs_one_pass_and_its_own_size():
    results = small.copies("llvm", small._here)
    assert len(results) == 10
    for result in results:
        as_it_should_be = result["case"] in ("graph", "rows")
        read_where_it_is = as_it_should_be or "one row" in result["case"]
        assert len(result["besides"]) == (not read_where_it_is), result
        assert bool(result["operand_bytes"]) == (not as_it_should_be)
        # XLA may place the operand in what the op itself has left.
        most = 0 if read_where_it_is else result["operand_bytes"]
        assert as_it_should_be or 0 <= result["scratch_bytes"] <= most, result
