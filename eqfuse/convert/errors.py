"""The error of a file that cannot be converted."""


class ConvertError(ValueError):
    """An error for a file or network that cannot be converted; the message is for the user."""
