"""Rewrite traced functions: find products on graphs and fused layers in what JAX traces."""
