"""What is asked of the peers is the op of e3nn-jax; neither needs a GPU for that."""

import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from eqfuse.bench import op_times, parity, peers
from eqfuse.bench.cases import Case, Channelwise, Contraction
from eqfuse.bench.problem import ORDERS, derivative
from eqfuse.bench.problems import channelwise, contraction, graph_product

TINY = (4, 9)


def test_instructions_for_openequivariance_are_the_product_of_e3nn(rng):
    case = Case("6x0e+3x1o+3x1e", "0e+1o+2e", "0e+1o+1e+2o")
    problem = graph_product(case, *TINY)
    irreps, instructions = peers.uvu_instructions(case)
    x, y, w = (rng.normal(size=shape) for shape in problem.shapes)
    sides = e3nn.Irreps(case.irreps_x), e3nn.Irreps(case.irreps_y), irreps
    graph, messages, start = problem.integers, [], 0
    for i, j, k, mode, weighted in instructions:
        assert (mode, weighted) == ("uvu", True)
        (mul, ir_x), (one, ir_y), (mul_out, ir_out) = sides[0][i], sides[1][j], sides[2][k]
        assert (one, mul_out) == (1, mul)
        a = x[graph.senders][:, sides[0].slices()[i]].reshape(-1, mul, ir_x.dim)
        b, c = y[:, sides[1].slices()[j]], w[:, start : start + mul]
        cg = np.sqrt(ir_out.dim) * e3nn.clebsch_gordan(ir_x.l, ir_y.l, ir_out.l)
        messages.append(np.einsum("eui,ej,ijk,eu->euk", a, b, cg, c).reshape(len(b), -1))
        start += mul
    out = np.zeros((graph.num_nodes, irreps.dim))
    np.add.at(out, graph.receivers, np.concatenate(messages, -1))
    with jax.enable_x64(True):
        expected = jax.jit(problem.function("e3nn"))((x, y, w), graph)
    np.testing.assert_allclose(out, expected, atol=1e-12)


@pytest.mark.parametrize(
    "problem",
    [
        graph_product(Case("6x0e+2x1o+4x1e", "0e+1o", "0e+1o"), *TINY),
        channelwise(Channelwise("3x0e+3x1o", "3x0e+3x1o", "0e+1o"), *TINY),
        contraction(Contraction("0e+1o", "0e+1o"), *TINY),
    ],
    ids=["graph", "channelwise", "contraction"],
)
def test_polynomials_of_cuequivariance_are_the_op(problem):
    pytest.importorskip("cuequivariance_jax", reason="cuEquivariance is not installed")
    side = peers.cuequivariance(problem, "float64", method="naive")
    with parity.precision("float64"):
        arguments = op_times.random_arrays(problem.arguments("double", "float64"))
        for number, order in enumerate(ORDERS, 1):
            given = arguments[:number]
            reference = jax.jit(derivative(problem.function("e3nn"), order))
            expected = reference(given, problem.integers)
            function = jax.jit(derivative(side.function, order))
            found = function(side.arguments(order, given), problem.integers)
            assert op_times.largest_difference(expected, side.results(order, found)) < 1e-12
