"""Fixtures of the tests of `ops.fuse`: those of the ops."""

from tests.ops.conftest import (  # noqa: F401
    _faults_of_fuse_are_raised,
    _own_cache,
    kernels,
    one_op,
)
