//! Turns a command line into ranked workers and keeps them alive.

pub mod devices;
pub mod fold;
pub mod interpreter;
pub mod numa;
