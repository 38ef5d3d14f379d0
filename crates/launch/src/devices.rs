//! How many workers `--nproc-per-node` means on this machine.
