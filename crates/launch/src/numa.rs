//! Which CPUs are near a worker's GPU.
