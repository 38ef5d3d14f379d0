"""Trainings that lose ranks and go on, as a package so that its conftest has a name of its own."""
