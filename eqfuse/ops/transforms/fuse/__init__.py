"""Rewrite traced functions: match products on graphs and fused layers in what JAX traces."""
