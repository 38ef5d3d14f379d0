"""Tests of managed work, as one package so that they can share fixtures with those of detached work."""
