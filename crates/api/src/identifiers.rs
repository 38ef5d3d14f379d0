//! Identifiers, each kind a type of its own so that they cannot be mixed up: whole numbers that count from 1, and the
//! UUIDs of checkpoints.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wire::whole_number;

macro_rules! identifier {
    ($name:ident, $what:literal) => {
        #[doc = concat!("Identifies ", $what, "; counts from 1.")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map($name)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_i64(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                whole_number(deserializer).map($name)
            }
        }
    };
}

identifier!(ExperimentId, "an experiment");
identifier!(TrialId, "a trial, which is also a run in Determined's newer words");
identifier!(UserId, "a user");
identifier!(GroupId, "a group of users");
identifier!(WorkspaceId, "a workspace");
identifier!(ProjectId, "a project");
identifier!(ModelId, "a model in the registry");
identifier!(ModelVersionId, "a version of any model; versions of one model are counted by numbers of their own");
identifier!(StorageId, "a place where checkpoints are stored, by its exact configuration");
identifier!(RunId, "one start of a trial: 1 for the first, one more for each time it is resumed");

/// The name of a checkpoint: a UUID in its usual form, which is also a safe name of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckpointUuid(String);

/// The text is not a UUID, and so not the name of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAUuid(pub String);

impl CheckpointUuid {
    /// The UUID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CheckpointUuid {
    type Err = NotAUuid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shape = |(index, byte): (usize, u8)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        };
        let is_uuid = text.len() == 36 && text.bytes().enumerate().all(shape);
        if is_uuid { Ok(CheckpointUuid(text.to_owned())) } else { Err(NotAUuid(text.to_owned())) }
    }
}

impl fmt::Display for CheckpointUuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for NotAUuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` is not a UUID", self.0)
    }
}

impl std::error::Error for NotAUuid {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uuids_in_their_usual_form_name_checkpoints() {
        let uuid = "01234567-89ab-cdef-0123-456789ABCDEF";
        assert_eq!(uuid.parse::<CheckpointUuid>().unwrap().as_str(), uuid);
        for text in ["", "..", "0123", "01234567-89ab-cdef-0123-456789abcde/", "0123456789abcdef0123456789abcdef0123"] {
            assert_eq!(text.parse::<CheckpointUuid>(), Err(NotAUuid(text.to_owned())));
        }
    }
}
