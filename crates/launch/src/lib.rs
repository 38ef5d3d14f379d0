//! Turns a command line into ranked workers and keeps them alive.
