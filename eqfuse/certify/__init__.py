"""Questions that any potential must answer, and the commands `eqfuse check` and `compare`."""
