"""`eqfuse distill`: from one structure and a teacher to a fast, certified potential."""
