"""Tests with a real Slurm, as one package so that they can share its cluster."""
