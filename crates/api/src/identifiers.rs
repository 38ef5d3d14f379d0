//! Identifiers: whole numbers that count from 1, each kind a type of its own so that they cannot be mixed up.

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
identifier!(WorkspaceId, "a workspace");
identifier!(ProjectId, "a project");
identifier!(ModelId, "a model in the registry");
identifier!(ModelVersionId, "a version of any model; versions of one model are counted by numbers of their own");
identifier!(StorageId, "a place where checkpoints are stored, by its exact configuration");
identifier!(RunId, "one start of a trial: 1 for the first, one more for each time it is resumed");
