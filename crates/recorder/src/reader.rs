//! Reading a file that may be written to at the same time, or hold anything at all.
//!
//! The file is read, not mapped: one that is cut short meanwhile is an error and no signal. It is read three times. A
//! record whose version is the same, and even, in the first and in the last reading was not written to in between, so what
//! the second found is whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use crate::format::{
    self, FILE_BYTES, FILE_WORDS, GROUP_WORDS, GROUPS, Group, HEADER_WORDS, Identity, MAGIC, Operation, RECORD_WORDS,
    RECORDS, Unreadable, group, header, record,
};

/// What a file said at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Snapshot {
    /// Who wrote it.
    pub identity: Identity,
    /// Its groups, also those it has left.
    pub groups: Vec<Group>,
    /// Its last operations, in the order in which they were given.
    pub operations: Vec<Operation>,
    /// Whether the process said that it ends; one that was killed did not.
    pub ended: bool,
    /// Operations that were not recorded because the ring was full of others under way.
    pub lost: u64,
    /// Groups that were not recorded because there were too many.
    pub lost_groups: u64,
    /// Monotonic nanoseconds when the file was made, and what the wall clock said then.
    pub made: (u64, u64),
}

impl Snapshot {
    /// Reads a file.
    pub fn read(path: &Path) -> io::Result<Snapshot> {
        // Of a named pipe or a device nothing is read, and nothing waited for.
        let file =
            File::options().read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits()).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
        }
        let unreadable = |error: Unreadable| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut readings = [vec![0; FILE_BYTES], vec![0; FILE_BYTES], vec![0; FILE_BYTES]];
        for reading in &mut readings {
            file.read_exact_at(reading, 0).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => unreadable(Unreadable::TooShort),
                _ => error,
            })?;
            fence(Ordering::SeqCst);
        }
        let [first, middle, last] = &readings;
        Snapshot::from_readings(first, middle, last).map_err(unreadable)
    }

    /// What three readings, one after the other, say together.
    pub fn from_readings(first: &[u8], middle: &[u8], last: &[u8]) -> Result<Snapshot, Unreadable> {
        let (first, middle, last) = (words(first)?, words(middle)?, words(last)?);
        if middle[header::MAGIC] != MAGIC {
            return Err(Unreadable::NotARecord);
        }
        let whole = |at: usize| first[at] == last[at] && first[at].is_multiple_of(2);
        let groups = (0..GROUPS).filter_map(|index| {
            let at = HEADER_WORDS + index * GROUP_WORDS;
            whole(at + group::VERSION).then(|| format::group_of(index, &middle[at..at + GROUP_WORDS]))?
        });
        let mut operations: Vec<Operation> = (0..RECORDS)
            .filter_map(|index| {
                let at = HEADER_WORDS + GROUPS * GROUP_WORDS + index * RECORD_WORDS;
                whole(at + record::VERSION).then(|| format::operation(&middle[at..at + RECORD_WORDS]))?
            })
            .collect();
        operations.sort_by_key(|operation| (operation.submitted, operation.group, operation.sequence));
        Ok(Snapshot {
            identity: format::identity(&middle),
            groups: groups.collect(),
            operations,
            ended: middle[header::ENDED] != 0,
            lost: middle[header::LOST],
            lost_groups: middle[header::LOST_GROUPS],
            made: (middle[header::MONOTONIC], middle[header::WALL]),
        })
    }

    /// The group that an operation belongs to; none if that has gone, or has got other ranks since.
    pub fn group(&self, operation: &Operation) -> Option<&Group> {
        self.groups.iter().find(|group| (group.index, group.epoch) == (operation.group, operation.epoch))
    }

    /// Operations that have not ended.
    pub fn pending(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(|operation| operation.state.is_pending())
    }
}

fn words(bytes: &[u8]) -> Result<Vec<u64>, Unreadable> {
    if bytes.len() < FILE_BYTES {
        return Err(Unreadable::TooShort);
    }
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
    Ok((0..FILE_WORDS).map(word).collect())
}

#[cfg(test)]
mod tests {
    use super::Snapshot;
    use crate::format::{FILE_BYTES, HEADER_WORDS, MAGIC, Unreadable};
    use proptest::prelude::{any, prop_assert, proptest};

    proptest! {
        #[test]
        fn any_bytes_give_a_snapshot_or_an_error(
            seed in any::<[u8; 32]>(),
            scattered in proptest::collection::vec((0usize..FILE_BYTES, any::<u8>()), 0..400),
            length in 0usize..FILE_BYTES * 2,
        ) {
            let mut bytes: Vec<u8> = seed.iter().cycle().take(length).copied().collect();
            for (at, byte) in scattered {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            if length >= 8 {
                bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            }
            match Snapshot::from_readings(&bytes, &bytes, &bytes) {
                Ok(snapshot) => prop_assert!(snapshot.operations.len() <= 1024 && snapshot.groups.len() <= 64),
                Err(error) => prop_assert!(error == Unreadable::TooShort && length < FILE_BYTES),
            }
        }
    }

    #[test]
    fn a_file_of_another_format_is_refused() {
        let bytes = vec![7; FILE_BYTES];
        assert_eq!(Snapshot::from_readings(&bytes, &bytes, &bytes), Err(Unreadable::NotARecord));
        assert_eq!(Snapshot::from_readings(&bytes[..8], &bytes, &bytes), Err(Unreadable::TooShort));
    }

    #[test]
    fn a_record_that_was_written_to_meanwhile_is_left_out() {
        let mut bytes = vec![0; FILE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        let at = HEADER_WORDS * 8;
        let word = |bytes: &mut Vec<u8>, index: usize, value: u64| {
            bytes[at + index * 8..at + index * 8 + 8].copy_from_slice(&value.to_ne_bytes());
        };
        word(&mut bytes, 0, 4);
        word(&mut bytes, 1, 1);
        assert_eq!(Snapshot::from_readings(&bytes, &bytes, &bytes).unwrap().groups.len(), 1);
        let mut later = bytes.clone();
        word(&mut later, 0, 6);
        assert_eq!(Snapshot::from_readings(&bytes, &bytes, &later).unwrap().groups.len(), 0);
        word(&mut later, 0, 5);
        assert_eq!(Snapshot::from_readings(&later, &later, &later).unwrap().groups.len(), 0);
    }
}
