"""The tensor data plane of one host: shared memory that survives its users, and typed errors where it does not."""
