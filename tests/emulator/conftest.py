"""The folder of compiled kernels is apart from that of the user, as for the ops."""

from tests.ops.conftest import _own_cache  # noqa: F401
