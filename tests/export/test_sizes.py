"""Programs of many sizes, few of which are traced."""

import jax
import jax.numpy as jnp
import pytest

from eqfuse.export.sizes import portable_artifact, programs_of, stablehlo_of

SIZES = [(n, 7 * n, 40 * n) for n in (3, 8, 10, 13, 17, 22, 40)]
PROGRAM = (
    "@main(%arg40: tensor<{0}xi32>, %40: tensor<3x{2}xf32>, loc40) -> tensor<{1}xi32> {{\n"
    "  %c_8 = dense<{2}> : tensor<i32>  dense<0x40> dense<-40> dense<[40, 80]> <{3}x13xf32>\n"
    "  %80 = slice %arg8 [0:{4}, 0:3] 1.3 0.40 {{mul = 40 : i32}} call @name_320(%13, %c_8)\n}}"
)


def program(size, kind="") -> str:
    owned, ghosts, edges = size
    nodes = owned + ghosts
    return PROGRAM.format(owned, nodes, edges, nodes + 1, owned + 1) + kind


def test_programs_between_two_that_agree_are_not_traced():
    """Also where a size is a number that all programs have, as 8, 13 and 40 are."""
    traced = []

    def lower(size) -> str:
        traced.append(size)
        return program(size)

    sizes = [(n, 7 * n, 40 * n) for n in (6, 8, 10, 13, 17, 40, 44)]
    assert programs_of(sizes, lower) == [program(size) for size in sizes]
    assert traced == [sizes[0], sizes[-1]]
    assert programs_of(SIZES, program) == [program(size) for size in SIZES]
    assert programs_of(SIZES[:1], program) == [program(SIZES[0])]


@pytest.mark.parametrize("changes", [(10,), (22,), (8, 17), (40,)])
def test_programs_of_which_kernels_change_with_size(changes):
    def lower(size) -> str:
        return program(size, f"kernel {sum(size[0] >= n for n in changes)}")

    assert programs_of(SIZES, lower) == [lower(size) for size in SIZES]


def test_programs_with_other_numbers_of_a_size_are_all_traced():
    def lower(size) -> str:
        return program(size, f"grid<{-(-size[2] // 128)}>")

    assert programs_of(SIZES, lower) == [lower(size) for size in SIZES]


def test_functions_that_stablehlo_lacks_are_in_artifacts():
    """JAX lowers squares, as in flax.linen.LayerNorm, and erf to CHLO, which has no artifact."""
    lowered = jax.jit(lambda x: jnp.square(x) + jax.scipy.special.erf(x)).lower(jnp.ones(4))
    assert "chlo." in lowered.as_text()
    text = stablehlo_of(lowered)
    assert "chlo." not in text
    assert portable_artifact(text).startswith(b"ML")
