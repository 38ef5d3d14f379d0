//! What this machine has: CPUs, accelerators, NUMA nodes, and the Python interpreter that runs workers.

pub mod devices;
pub mod interpreter;
pub mod numa;
pub mod nvidia;
