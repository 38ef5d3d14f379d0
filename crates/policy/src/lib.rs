//! Every decision instep takes, as pure functions: no I/O, no clock, no randomness of its own.
