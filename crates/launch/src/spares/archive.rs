//! A zip archive of one file, made in memory: how a Python module is handed to an interpreter without touching a disk.
//!
//! Nothing is compressed, so that the interpreter needs no zlib. Python reads such an archive where a path to it is on
//! `PYTHONPATH`; the path is that of a descriptor, and the file is gone with the last process that has it open.

const LOCAL_HEADER: u32 = 0x0403_4b50;
const CENTRAL_HEADER: u32 = 0x0201_4b50;
const END_OF_DIRECTORY: u32 = 0x0605_4b50;
/// The version of the format that suffices.
const VERSION: u16 = 20;
/// The first of January 1980 in the format's own count: the day does not matter.
const DATE: u16 = 0x21;

/// The archive's bytes. Names and contents of more than 4 GiB do not occur: both are constants of this program.
pub(crate) fn of_one_file(name: &str, contents: &[u8]) -> Vec<u8> {
    let facts = facts(name, contents);
    let mut archive = Vec::with_capacity(contents.len() + 256);
    archive.extend(LOCAL_HEADER.to_le_bytes());
    archive.extend(&facts);
    archive.extend(name.as_bytes());
    archive.extend(contents);

    let directory = length(archive.len());
    archive.extend(CENTRAL_HEADER.to_le_bytes());
    archive.extend(VERSION.to_le_bytes());
    archive.extend(&facts);
    // Comment, disk and internal attributes, then external attributes and the place of the local header.
    archive.extend([0; 6]);
    archive.extend([0; 8]);
    archive.extend(name.as_bytes());
    let directory_length = length(archive.len()) - directory;

    archive.extend(END_OF_DIRECTORY.to_le_bytes());
    archive.extend([0; 4]);
    archive.extend([1, 0, 1, 0]);
    archive.extend(directory_length.to_le_bytes());
    archive.extend(directory.to_le_bytes());
    archive.extend([0; 2]);
    archive
}

/// What both headers say of the file: from the version needed to the length of its name and of extra fields.
fn facts(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut facts = Vec::new();
    // Version, no flags, stored, midnight.
    for number in [VERSION, 0, 0, 0, DATE] {
        facts.extend(number.to_le_bytes());
    }
    for number in [checksum(contents), length(contents.len()), length(contents.len())] {
        facts.extend(number.to_le_bytes());
    }
    facts.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
    facts.extend([0; 2]);
    facts
}

fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// CRC-32 as zip, gzip and Ethernet have it.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::{checksum, of_one_file};

    #[test]
    fn the_checksum_is_crc32() {
        // The value that every description of CRC-32 gives for these nine digits.
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn python_imports_from_the_archive() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("archive");
        std::fs::write(&path, of_one_file("inside.py", b"print(6 * 7)\n")).expect("written");
        let output = std::process::Command::new("python3")
            .args(["-c", "import inside"])
            .env("PYTHONPATH", &path)
            .output()
            .expect("python3 runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n", "{}", String::from_utf8_lossy(&output.stderr));
    }
}
