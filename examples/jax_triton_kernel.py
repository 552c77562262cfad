"""A generated kernel, changed by hand, and run through jax-triton.

python examples/jax_triton_kernel.py

The kernels of eqfuse are ordinary Triton kernels. This one multiplies features by directions and
sums over the edges of each node; the change puts silu around the weights of the edges, which is
then no pass of its own over them. Needs triton and, to launch it, jax-triton 0.4 (Python 3.12,
JAX 0.11): pip install "jax-triton>=0.4.1".
"""

import inspect

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from eqfuse import ops
from eqfuse.ops.backends.triton import form
from eqfuse.ops.backends.triton.compile import compile_options, load
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.ir import products

X, Y = e3nn.Irreps("64x1o"), e3nn.Irreps("1o")


def generated():
    """Return the kernel of a product on a graph; `scripts/show.py` prints such a text."""
    product = products.tensor_product(X, Y, ("0e",), "component", weighted=True, on_graph=True)
    [kernel] = form.kernels(product.form, "float32")
    return kernel


def changed(spec: KernelSpec) -> KernelSpec:
    """Return the kernel with silu around the weights: one line more after the one that loads."""
    load_weights = "        w_0_0 = tl.load(w_row + 0 + lane)\n"
    assert load_weights in spec.source
    source = spec.source.replace(
        load_weights, load_weights + "        w_0_0 = w_0_0 * tl.sigmoid(w_0_0)\n"
    )
    source = source.replace(f"def {spec.name}(", "def KERNEL(")  # it gets a name of its own
    return KernelSpec.build(
        "silu_weights", source, spec.input_types, spec.output_types, spec.scalars, spec.num_warps
    )


def let_jax_triton_work():
    """Replace a rule of jax-triton 0.4.1 that JAX 0.12 calls with an argument more."""
    from jax_triton.triton_lib import triton_kernel_call_p

    rule = partial_eval.dce_rules.get(triton_kernel_call_p)
    if jax.__version_info__ >= (0, 12) and rule and len(inspect.signature(rule).parameters) == 2:
        partial_eval.dce_rules[triton_kernel_call_p] = lambda used, live, equation: rule(
            used, equation
        )


def product(x, y, weights, edges, compute_capability=None):
    """Return the sums [num_nodes, 64] by the changed kernel; not differentiable.

    Args:
      x: features of the nodes, [num_nodes, 192], 64x1o.
      y: directions of the edges, [num_edges, 3], 1o.
      weights: [num_edges, 64], before silu.
      edges: an `eqfuse.ops.Edges`.
      compute_capability: 90 for an H100, to lower for one that is absent.
    """
    import jax_triton

    kernel = generated()
    spec = changed(kernel.spec)
    return jax_triton.triton_call(
        *operands(kernel, x, y, weights, edges),
        x.shape[0],
        kernel=load(spec),
        out_type=jax.ShapeDtypeStruct((x.shape[0], 64), jnp.float32),
        grid=kernel.grid(weights.shape[0], x.shape[0]),
        name=spec.name,
        compute_capability=compute_capability,
        # warps of a program, and a version of PTX that drivers of CUDA 12 take
        backend_options=compile_options(spec, "sm_90"),
    )


def operands(kernel, x, y, weights, edges):
    """Return the arrays of the kernel: those of the form, then those that walk the graph.

    Behind them it takes the number of nodes, within which it reads.
    """
    return x, y, weights, *(getattr(edges, name) for name in kernel.index_arrays)


def expected(x, y, weights, edges):
    """Return the same by the op that was not changed."""
    x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
    weights = jax.nn.silu(weights)
    return ops.graph_tensor_product(x, y, weights, edges, filter_ir_out="0e", backend="xla").array


def example(num_nodes=5, num_edges=12):
    """Return random arguments of `product`."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(num_nodes, size=(2, num_edges))
    edges = ops.Edges.from_arrays(senders, receivers, num_nodes)
    shapes = (num_nodes, X.dim), (num_edges, Y.dim), (num_edges, 64)
    return *(rng.normal(size=shape).astype(np.float32) for shape in shapes), edges


def main():
    """Run the kernel on a GPU, or print its text."""
    if jax.default_backend() != "gpu":
        print(changed(generated().spec).source)
        return
    let_jax_triton_work()
    arguments = example()
    difference = np.abs(jax.jit(product)(*arguments) - expected(*arguments)).max()
    print(f"{changed(generated().spec).name}: largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
