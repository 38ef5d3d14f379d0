//! What is known of a file, and what may be changed of it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::protocol::Reader;

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 1 << 31;

/// Only what is there is meant.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attributes {
    pub size: Option<u64>,
    pub owner: Option<(u32, u32)>,
    pub permissions: Option<u32>,
    /// Of the last reading and the last change, in seconds.
    pub times: Option<(u32, u32)>,
}

impl Attributes {
    pub(super) fn of(metadata: &Metadata) -> Attributes {
        let seconds = |time: i64| u32::try_from(time).unwrap_or(0);
        Attributes {
            size: Some(metadata.size()),
            owner: Some((metadata.uid(), metadata.gid())),
            permissions: Some(metadata.mode()),
            times: Some((seconds(metadata.atime()), seconds(metadata.mtime()))),
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Attributes> {
        let flags = reader.number()?;
        let mut found = Attributes::default();
        if flags & SIZE != 0 {
            found.size = Some(reader.long()?);
        }
        if flags & OWNER != 0 {
            found.owner = Some((reader.number()?, reader.number()?));
        }
        if flags & PERMISSIONS != 0 {
            found.permissions = Some(reader.number()?);
        }
        if flags & TIMES != 0 {
            found.times = Some((reader.number()?, reader.number()?));
        }
        if flags & EXTENDED != 0 {
            for _ in 0..reader.number()? {
                reader.text()?;
                reader.text()?;
            }
        }
        Some(found)
    }

    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let mut flags = 0;
        let mut fields = Vec::new();
        if let Some(size) = self.size {
            flags |= SIZE;
            fields.extend(size.to_be_bytes());
        }
        let pairs = [(OWNER, self.owner), (PERMISSIONS, self.permissions.map(|mode| (mode, 0))), (TIMES, self.times)];
        for (flag, pair) in pairs {
            let Some((first, second)) = pair else { continue };
            flags |= flag;
            fields.extend(first.to_be_bytes());
            if flag != PERMISSIONS {
                fields.extend(second.to_be_bytes());
            }
        }
        bytes.extend(flags.to_be_bytes());
        bytes.extend(fields);
    }

    /// As `ls -l` shows it: what `sftp` prints.
    pub(super) fn line(&self, path: &Path) -> String {
        let mode = self.permissions.unwrap_or_default();
        let kind = match mode & 0o170_000 {
            0o040_000 => 'd',
            0o120_000 => 'l',
            _ => '-',
        };
        let letters = |shift: u32| {
            let bits = mode >> shift;
            [(4, 'r'), (2, 'w'), (1, 'x')].map(|(bit, letter)| if bits & bit != 0 { letter } else { '-' })
        };
        let rights: String = [6, 3, 0].into_iter().flat_map(letters).collect();
        let (user, group) = self.owner.unwrap_or_default();
        format!("{kind}{rights} 1 {user} {group} {} - {}", self.size.unwrap_or_default(), path.display())
    }
}
