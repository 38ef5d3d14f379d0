//! The files to which what runs in the background writes its log.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// What was written to a log since it had that length.
pub(super) fn read_from(log: &Path, start: u64) -> String {
    let mut text = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(start))?;
        file.read_to_end(&mut text)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => format!("the master exited at once, and its log cannot be read: {error}\n"),
    }
}
