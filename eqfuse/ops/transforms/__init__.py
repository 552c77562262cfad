"""Transformations of traces: `fuse` finds ops in them, `sequence` makes them one call."""
