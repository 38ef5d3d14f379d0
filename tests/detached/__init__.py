"""Detached mode: the unmodified `determined` client, and plain requests, against `instep master`."""
