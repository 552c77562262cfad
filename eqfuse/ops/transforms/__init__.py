"""Transformations of traces: `sequence` makes a function one native call, `rows` a fused op."""
