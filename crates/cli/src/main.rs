//! The `instep` binary: argument parsing, output, exit codes.
fn main() {}
