import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.train.flat import ALIGNMENT, Flat

TREE = {"b": jnp.arange(6.0).reshape(2, 3), "a": {"w": jnp.array([7.0])}, "c": jnp.zeros((0, 2))}


def test_there_and_back():
    flat = Flat.of(TREE)
    array = flat.flatten(TREE)
    assert array.shape == (flat.size,)
    assert np.sum(array) == sum(range(6)) + 7  # nothing but the leaves and zeros
    assert all(size * 4 % ALIGNMENT == 0 for size in flat.sizes)
    jax.tree.map(np.testing.assert_array_equal, flat.unflatten(array), TREE)


def test_the_gradient_is_the_flat_gradient():
    flat = Flat.of(TREE)

    def f(tree):
        return jnp.sum(jnp.sin(tree["b"])) * tree["a"]["w"][0]

    got = jax.grad(lambda array: f(flat.unflatten(array)))(flat.flatten(TREE))
    np.testing.assert_array_equal(got, flat.flatten(jax.grad(f)(TREE)))


def test_leaves_of_several_dtypes_are_refused():
    with pytest.raises(ValueError, match="leaves of one dtype"):
        Flat.of({"a": jnp.zeros(1), "b": jnp.zeros(1, jnp.int32)})
