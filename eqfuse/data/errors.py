"""The error for data that cannot be used, and numbers in its messages."""


class DataError(ValueError):
    """An error for data, or a request made of them, that cannot be used; it says what to do."""


class FlownApartError(DataError):
    """An error for atoms so far apart that no neighbour list can be made."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number and what is counted: "1 frame has", "2 frames have".

    Args:
      count: how many there are.
      one: what follows 1.
      many: what follows other numbers; None for `one` with an s.
    """
    return f"{count} {one if count == 1 else many or one + 's'}"
