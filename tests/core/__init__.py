"""Our own Core API against our own master."""
