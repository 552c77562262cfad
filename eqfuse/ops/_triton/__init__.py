"""What happens to a kernel's source text: cached, interpreted, compiled, launched from JAX.

Nothing here is imported with `eqfuse.ops`, and triton only when a kernel is wanted, so that eqfuse
works on a machine without triton.
"""

from eqfuse.ops._cache import cache_folder
from eqfuse.ops._triton.spec import KernelSpec

__all__ = ["KernelSpec", "cache_folder"]
