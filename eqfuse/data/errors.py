"""The error for data that cannot be used."""


class DataError(ValueError):
    """An error for data, or a request made of them, that cannot be used; it says what to do."""


class FlownApartError(DataError):
    """An error for atoms so far apart that no neighbour list can be made."""
