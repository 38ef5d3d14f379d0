"""Interfaces that follow another project's, under its names."""
