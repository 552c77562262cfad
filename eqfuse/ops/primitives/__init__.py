"""JAX primitives of the algebra: derivatives, batching, sharding, lowering."""
