"""The error for data that cannot be used."""


class DataError(ValueError):
    """Input data, or a request made of it, that cannot be used; the message says what to do."""


class FlownApartError(DataError):
    """Atoms so far apart that no neighbour list can be made."""
