"""The ordinary bad day: one rank of a job fails, as a package so that its conftest has a name of its own."""
