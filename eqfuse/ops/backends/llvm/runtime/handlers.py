"""Handlers that are registered with XLA before their kernels are compiled.

LLVM takes as long for the kernels of a network as JAX and XLA for all else. So a thread compiles
them while JAX goes on, and what XLA knows is one of these handlers. Each has a slot: the address of
its kernel's own handler, or a message where that did not compile. A call that comes before either
waits for it (`eqfuse_enter` in `runtime.py`).
"""

import ctypes
import dataclasses

PAGE = 256
"""Handlers of a module; a process that has more kernels links the module again."""

SLOT_BYTES = 16


def page() -> str:
    """Return the LLVM IR of handlers, with the tables `eqfuse_slots` and `eqfuse_handlers`."""
    handlers = [
        f"define internal ptr @handler{k}(ptr %frame) {{\n"
        f"  %slot = getelementptr i8, ptr @eqfuse_slots, i64 {SLOT_BYTES * k}\n"
        "  %r = call ptr @eqfuse_enter(ptr %frame, ptr %slot)\n"
        "  ret ptr %r\n}\n"
        for k in range(PAGE)
    ]
    names = ", ".join(f"ptr @handler{k}" for k in range(PAGE))
    return "\n".join(
        [
            "declare ptr @eqfuse_enter(ptr, ptr)",
            f"@eqfuse_slots = global [{2 * PAGE} x ptr] zeroinitializer",
            *handlers,
            f"@eqfuse_handlers = constant [{PAGE} x ptr] [{names}]\n",
        ]
    )


@dataclasses.dataclass(frozen=True)
class HandlerSlot:
    """Where a handler finds its kernel.

    Attributes:
      handler: address of the function that XLA calls.
      address: of the slot's two words.
    """

    handler: int
    address: int

    @classmethod
    def all_of(cls, tables: dict[str, int]) -> list["HandlerSlot"]:
        """Return those of a module, by the addresses of its two tables."""
        handlers = (ctypes.c_uint64 * PAGE).from_address(tables["eqfuse_handlers"])
        first = tables["eqfuse_slots"]
        return [cls(handler, first + SLOT_BYTES * k) for k, handler in enumerate(handlers)]

    def fill(self, kernel: int) -> None:
        """Let calls, those that wait too, go on to the handler at this address."""
        ctypes.c_uint64.from_address(self.address).value = kernel

    def fail(self, message: str) -> None:
        """Let calls end with an error that has the reason."""
        text = ctypes.create_string_buffer(message.encode()[:400])
        _messages.append(text)
        ctypes.c_uint64.from_address(self.address + 8).value = ctypes.addressof(text)


_messages: list = []  # for as long as the process lives
