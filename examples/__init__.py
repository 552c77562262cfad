"""Programs of users, which use the public interface of eqfuse."""
