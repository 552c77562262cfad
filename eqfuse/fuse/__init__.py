"""Layers of e3nn-jax in the trace of a function become fused ops (`ops.fuse`, `ops.patched`)."""
