//! Ranks of one host: collectives through shared memory.
//!
//! | module | what it is for |
//! |---|---|
//! | `arena` | the shared memory: layout, counters, the abort reason, which ranks of other hosts are late |
//! | `bootstrap` | how the arena of rank 0 reaches the other ranks of the host |
//! | `wait` | waiting for another rank's counter, and noticing that its process ended |
//! | `remote` | reading another process's memory (cross memory attach) |
//! | `transport` | one operation after the other on an arena |
#![expect(unsafe_code, reason = "maps and reads memory of other processes")]

pub(crate) mod arena;
pub(crate) mod bootstrap;
pub(crate) mod remote;
pub(crate) mod transport;
pub(crate) mod wait;
