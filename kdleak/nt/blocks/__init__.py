"""The blocks of a pool tag in the memory of a dump."""
