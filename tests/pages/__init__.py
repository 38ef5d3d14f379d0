"""The pages of the master, in a real browser."""
