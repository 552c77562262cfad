"""Parts of random e3nn-jax networks, each of them written in all the ways that users have."""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np


class Parameters:
    """Arrays by name. Without values, the shapes that are asked for are noted, and are zeros."""

    def __init__(self, values=None):
        self.values, self.shapes = values, {}

    def __call__(self, name: str, *shape: int):
        self.shapes[name] = shape
        return jnp.zeros(shape) if self.values is None else self.values[name]

    def tree(self, name: str, shapes):
        leaves, structure = jax.tree.flatten(shapes)
        leaves = [self(f"{name} {n}", *leaf.shape) for n, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, leaves)


clipped = jax.custom_vjp(lambda a: 1.5 * a)
clipped.defvjp(lambda a: (1.5 * a, None), lambda _, ct: (1.5 * jnp.clip(ct, -3, 3),))


def each(function, x, rows: int, irreps=None):
    """Return an IrrepsArray of a function of its chunks, and of the place of each."""
    chunks = [c if c is None else function(c, n) for n, c in enumerate(x.chunks)]
    return e3nn.from_chunks(irreps or x.irreps, chunks, (rows,), x.dtype)


OPTIONS = {  # of flax's Linear
    "bias": {"biases": True},
    "path": {"path_normalization": "path", "gradient_normalization": "path"},
    "species": {"num_indexed_weights": 3},
}


def linear(kind: str, x, out, parameters: Parameters, name: str, force: bool = False):
    """Return a Linear of a framework or e3nn's functional one, to those irreps that x has."""
    out = e3nn.Irreps(out)
    out = out if force else out.filter(keep=x.irreps) or x.irreps
    key = jax.random.key(0)
    if kind == "none":
        return x
    if kind == "einsum":
        weights = [parameters(f"{name} {n}", mul, 2) for n, (mul, _) in enumerate(x.irreps)]
        irreps = [(2, ir) for _, ir in x.irreps]
        return each(lambda c, n: jnp.einsum("eui,uv->evi", c, weights[n]), x, len(x.array), irreps)
    if kind == "functional":
        module = e3nn.FunctionalLinear(x.irreps, out)
        shapes = [jax.ShapeDtypeStruct(i.path_shape, x.dtype) for i in module.instructions]
        return e3nn.utils.vmap(functools.partial(module, parameters.tree(name, shapes)))(x)
    if kind == "equinox":
        import equinox

        irreps = {"irreps_out": out, "irreps_in": x.irreps.regroup()}
        module = e3nn.equinox.Linear(**irreps, key=key, input_dtype=x.dtype)
        arrays, others = equinox.partition(module, equinox.is_array)
        return equinox.combine(parameters.tree(name, arrays), others)(x)
    if kind == "haiku":
        import haiku

        module = haiku.without_apply_rng(
            haiku.transform(lambda x: e3nn.haiku.Linear(out, force_irreps_out=force)(x))
        )
    else:
        module = e3nn.flax.Linear(out, force_irreps_out=force, **OPTIONS.get(kind, {}))
    rows = (jnp.arange(len(x.array)) % 3, x) if kind == "species" else (x,)
    shapes = jax.eval_shape(module.init, key, *rows)
    return module.apply(parameters.tree(name, shapes), *rows)


def in_chunks(kind: str, x, parameters: Parameters, name: str):
    """Return features as an activation or `concatenate` leaves them, with chunks of their own."""
    if kind == "gate":
        if "0e" not in x.irreps:
            x = e3nn.concatenate([e3nn.norm(x, squared=True), x])
        others = x.irreps.filter(drop=["0e", "0o"])
        gates = e3nn.Irreps(f"3x0e+{others.num_irreps}x0e")
        return e3nn.gate(linear("flax", x, gates + others, parameters, name))
    acts = [jnp.tanh if ir.l == 0 else None for _, ir in x.irreps]
    ways = {
        "scalars": lambda: e3nn.scalar_activation(x, acts),
        "norms": lambda: e3nn.norm_activation(x, [jnp.tanh] * len(x.irreps)),
        "concatenate": lambda: e3nn.concatenate([2 * x.slice_by_mul[:1], x.slice_by_mul[1:]]),
        "scale": lambda: x * jnp.cos(x.array[:, :1]),
        "sort": x.sort,
        "simplify": x.simplify,
        "regroup": x.regroup,
        "axis": lambda: x.mul_to_axis(int(np.gcd.reduce([m for m, _ in x.irreps]))).axis_to_mul(),
        "square": lambda: e3nn.concatenate([x, e3nn.tensor_square(x.slice_by_mul[:2])]),
        "batch_norm": lambda: x * jax.lax.rsqrt(e3nn.norm(x, squared=True).array.mean(0) + 1),
        "slice": lambda: x.slice_by_mul[: x.irreps.num_irreps // 2 + 1],
    }
    return ways[kind]() if kind in ways else x


def gathered(kind: str, x, index):
    """Return rows of an IrrepsArray by an index in one of the ways of JAX."""
    a = x.array
    ways = {
        "[]": lambda: x[index],
        "array": lambda: a[index],
        "slice": lambda: x[index, :],
        "take": lambda: jnp.take(a, index, axis=0),
        "fill": lambda: jnp.take(a, index, axis=0, mode="fill", fill_value=0.0),
        "get": lambda: a.at[index].get(),
        "get-fill": lambda: a.at[index].get(mode="fill", fill_value=0.0),
        "get-clip": lambda: a.at[index].get(mode="clip"),
        "promise": lambda: a.at[index].get(mode="promise_in_bounds"),
        "onehot": lambda: jax.nn.one_hot(index, x.shape[0], dtype=a.dtype) @ a,
        "vmap": lambda: jax.vmap(lambda i: x[i])(index),
        "slices": lambda: jax.vmap(lambda i: jax.lax.dynamic_index_in_dim(a, i, 0, False))(index),
        "chunks": lambda: each(lambda c, _: c[index], x, len(index)),
    }
    rows = ways[kind]() if kind in ways else jnp.take(a, index, axis=0, mode=kind)
    return rows if isinstance(rows, e3nn.IrrepsArray) else e3nn.IrrepsArray(x.irreps, rows)


def attention(m, r, nodes: int, lengths):
    """Return sums of messages by a softmax over those of each receiver."""
    logits = lengths[:, 0] + m.array[:, 0] / 10
    largest = jax.ops.segment_max(jax.lax.stop_gradient(logits), r, nodes)
    weights = jnp.exp(logits - jnp.where(jnp.isfinite(largest), largest, 0.0)[r])
    weights = weights / (jax.ops.segment_sum(weights, r, nodes)[r] + 1e-9)
    return e3nn.scatter_sum(m * weights[:, None], dst=r, output_size=nodes)


def summed(kind: str, m, r, nodes: int, lengths):
    """Return sums of the rows of an IrrepsArray to nodes, in one of the ways of JAX."""
    zeros = jnp.zeros((nodes, m.irreps.dim), m.dtype)
    hot = functools.partial(jax.nn.one_hot, r, nodes, dtype=m.dtype)
    order, by = jnp.argsort(r), {"dst": r, "output_size": nodes}
    near = (r == jnp.arange(nodes)[:, None])[..., None]
    ways = {
        "scatter_sum": lambda: e3nn.scatter_sum(m, **by),
        "nel": lambda: e3nn.scatter_sum(m, nel=jnp.bincount(r, length=nodes)),
        "mean": lambda: e3nn.scatter_mean(m, **by),
        "mapped": lambda: e3nn.scatter_sum(m, dst=r, map_back=True)[:nodes],
        "index_add": lambda: e3nn.index_add(r, m, out_dim=nodes),
        "segment_sum": lambda: jax.ops.segment_sum(m.array, r, nodes),
        "at.add": lambda: e3nn.IrrepsArray(m.irreps, zeros).at[r].add(m),
        "drop": lambda: zeros.at[r].add(m.array, mode="drop"),
        "ones": lambda: (zeros + 1).at[r].add(m.array, mode="clip"),
        "argsort": lambda: jax.ops.segment_sum(m.array[order], r[order], nodes, True),
        "wide": lambda: jax.ops.segment_sum(m.array.astype(float), r, nodes).astype(m.dtype),
        "chunks": lambda: each(lambda c, _: jax.ops.segment_sum(c, r, nodes), m, nodes),
        "max": lambda: e3nn.concatenate(
            [e3nn.scatter_max(e3nn.norm(m), initial=0.0, **by), e3nn.scatter_sum(m, **by)]
        ),
        "softmax": lambda: attention(m, r, nodes, lengths),
        "onehot": lambda: hot().T @ m.array,
        "dense": lambda: jnp.sum(jnp.where(near, m.array, 0.0), axis=1),
    }
    n = ways[kind]()
    return n if isinstance(n, e3nn.IrrepsArray) else e3nn.IrrepsArray(m.irreps, n)


def product(kind: str, m, y, keep):
    """Return a product of rows of features and of spherical harmonics."""
    if kind == "elementwise":
        scalars = jnp.cos(y.array[:, :1]) * jnp.arange(1, m.irreps.num_irreps + 1, dtype=m.dtype)
        return e3nn.elementwise_tensor_product(
            m, e3nn.IrrepsArray(f"{scalars.shape[1]}x0e", scalars)
        )
    if kind in ("none", "square"):
        return m if kind == "none" else e3nn.elementwise_tensor_product(m, m)
    if not e3nn.tensor_product(m.irreps, y.irreps, filter_ir_out=keep).dim:
        keep = None
    multiply = functools.partial(e3nn.tensor_product, filter_ir_out=keep)
    channels = int(np.gcd.reduce([mul for mul, _ in m.irreps]))
    if kind == "axis" and channels > 1:
        return multiply(m.mul_to_axis(channels), y[:, None]).axis_to_mul()
    vectors = e3nn.IrrepsArray("1o", y.array[:, -3:])
    blocks = [m.slice_by_chunk[n : n + 1] for n in range(len(m.irreps))]
    ways = {
        "swapped": lambda: multiply(y, m),
        "vmap": lambda: jax.vmap(multiply)(m, y),
        "e3nn_vmap": lambda: e3nn.utils.vmap(multiply)(m, y),
        "norm": lambda: multiply(m, y, irrep_normalization="norm", regroup_output=False),
        "harmonics": lambda: e3nn.tensor_product_with_spherical_harmonics(m, vectors, 1),
        "twice": lambda: multiply(e3nn.tensor_product(m, vectors, filter_ir_out=keep), y),
        "chunks": lambda: e3nn.concatenate([multiply(block, y) for block in blocks]),
    }
    return ways.get(kind, lambda: multiply(m, y))()


def weighted(kind: str, m, s, lengths, y, parameters: Parameters, name: str):
    """Return messages times a weight for each edge, irrep, or both."""
    count = m.irreps.num_irreps
    if kind in ("where", "clipped"):
        a = clipped(m.array) if kind == "clipped" else jnp.where(lengths < 2.0, m.array, 0.0)
        return e3nn.IrrepsArray(m.irreps, a)

    def mlp(act):
        hidden = act(lengths * parameters(f"{name} first", 1, 4))
        return hidden @ parameters(f"{name} last", 4, count)

    ways = {
        "mlp": lambda: mlp(jnp.tanh),
        "relu": lambda: mlp(jax.nn.relu),
        "bessel": lambda: e3nn.bessel(lengths[:, 0], 4, 3.0) @ parameters(name, 4, count),
        "edge": lambda: lengths,
        "exp": lambda: jnp.exp(-y.array[:, :1]),
        "shared": lambda: parameters(name, count),
        "constant": lambda: jnp.asarray(np.linspace(-1, 1, count), m.dtype),
        "stopped": lambda: jax.lax.stop_gradient(jnp.cos(lengths)),
        "species": lambda: parameters(name, 3, count)[s % 3],
    }
    if kind != "chunks":
        return m if kind == "none" else m * ways[kind]()
    weights = mlp(jnp.tanh)
    start = np.cumsum([0, *(mul for mul, _ in m.irreps)])
    return each(lambda c, n: c * weights[:, start[n] : start[n + 1], None], m, len(m.array))


def layer(of: dict, x, lengths, y, ends, mask, parameters: Parameters, name: str):
    """Return features of nodes after a sum of messages."""
    s, r = ends
    x = in_chunks(of["chunks"], x, parameters, f"{name} chunks")
    h = linear(of["up"], x, of["out"], parameters, f"{name} up")
    m = gathered(of["gather"], h, s)
    if of["ends"] != "sender":
        other = gathered(of["gather"], h, r)
        m = m - other if of["ends"] == "difference" else m + 0.5 * other
    keep = None if of["filter"] == "all" else [ir for _, ir in of["out"] + h.irreps]
    t = product(of["product"], m, y, keep)
    if of["beside"] != "none":
        t = e3nn.concatenate([e3nn.norm(m) if of["beside"] == "norms" else m, t])
        t = t.regroup() if of["beside"] == "regroup" else t
    t = weighted(of["weights"], t, s, lengths, y, parameters, f"{name} weights")
    if mask is not None:
        t = t * mask[:, None]
    if of["message"] == "Linear":
        t = linear("flax", t, of["out"], parameters, f"{name} message")
    t = in_chunks(of["message"], t, parameters, "")
    n = summed(of["sum"], t, r, x.shape[0], lengths)
    n = n / 1.7 if of["scale"] == "average" else n
    n = n * jnp.sin(x.array[:, :1]) if of["scale"] == "nodes" else n
    if of["scale"] == "counts":
        n = n * jax.lax.rsqrt(1 + jax.ops.segment_sum(jnp.ones_like(lengths), r, x.shape[0]))
    n = linear(of["down"], n, of["out"], parameters, f"{name} down")
    if of["skip"] == "add":
        n = n + linear("flax", x, n.irreps, parameters, f"{name} skip", force=True)
    return e3nn.concatenate([n, x]) if of["skip"] == "concatenate" else n


def readout(kind: str, n, parameters: Parameters):
    """Return a tuple of what a network is asked for, of its nodes."""
    s = n.filter(keep="0e") if "0e" in n.irreps else n
    groups = jnp.arange(n.shape[0]) % 2
    hidden = parameters("hidden", s.irreps.dim, 4) if kind == "mlp" else None
    ways = {
        "nodes": lambda: n.array,
        "sum": lambda: s.array.sum(),
        "mean": lambda: jnp.mean(s.array),
        "rows": lambda: n.array.sum(0),
        "axis": lambda: jnp.sum(s.array, axis=1),
        "squares": lambda: jnp.sum(n.array**2),
        "hand": lambda: jnp.sum(s.array @ parameters("hand", s.irreps.dim)),
        "vdot": lambda: jnp.vdot(n.array, jnp.ones_like(n.array)),
        "dot": lambda: e3nn.dot(n, n).array.sum(),
        "norm": lambda: e3nn.norm(n, squared=True).array.sum(),
        "max": lambda: jnp.max(s.array),
        "segments": lambda: e3nn.scatter_sum(s, dst=groups, output_size=2).array,
        "nel": lambda: e3nn.scatter_sum(s, nel=jnp.array([2, n.shape[0] - 2])).array,
        "mlp": lambda: jnp.sum(jnp.tanh(s.array @ hidden), axis=-1).sum(),
        "Linear": lambda: linear("flax", n, "0e+1o", parameters, "readout").array.sum(axis=0),
        "two": lambda: (jnp.sum(s.array), n.array),
        "dict": lambda: ({"energy": jnp.sum(s.array), "nodes": n},),
        "logsumexp": lambda: jax.nn.logsumexp(n.array),
        "covariance": lambda: n.array.T @ n.array,
        "product": lambda: e3nn.mean(e3nn.tensor_product(n, n, filter_ir_out="0e"), axis=0).array,
    }
    out = ways[kind]()
    return out if isinstance(out, tuple) else (out,)
