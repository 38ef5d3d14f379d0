"""Tests with a real Kubernetes, as one package so that they can share its cluster."""
