//! Bytes from the system's random source, for names and tokens.

use std::fs::File;
use std::io::{self, Read};

/// `N` random bytes.
pub(crate) fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0u8; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
