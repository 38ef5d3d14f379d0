//! Names of files in a checkpoint: relative paths that cannot lead out of it.

use std::fmt;
use std::path::PathBuf;

use crate::manifest::{MANIFEST, METADATA};

/// Bytes of a name at most; file systems have about this limit for a path.
const LONGEST: usize = 4000;

/// A relative path of plain parts, with `/` between them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A name that cannot be in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` cannot be the name of a file in a checkpoint: {why}")]
#[expect(missing_docs, reason = "the names say it")]
pub struct NameError {
    pub name: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Name {
    /// Checks a name.
    pub fn parse(text: &str) -> Result<Name, NameError> {
        let refused = |why| Err(NameError { name: text.chars().take(200).collect(), why });
        if text.is_empty() {
            return refused("it is empty");
        }
        if text.len() > LONGEST {
            return refused("it is too long");
        }
        if text.contains('\0') {
            return refused("it contains a NUL byte");
        }
        if text.starts_with('/') {
            return refused("it is outside the checkpoint");
        }
        for part in text.split('/') {
            match part {
                "" => return refused("it has an empty part"),
                "." | ".." => return refused("it contains `.` or `..`"),
                _ => {}
            }
        }
        if text == MANIFEST {
            return refused("this name is reserved for the list of files");
        }
        Ok(Name(text.to_owned()))
    }

    /// Checks a name that a rank gives: metadata is merged and written by one rank.
    pub fn parse_of_rank(text: &str) -> Result<Name, NameError> {
        if text == METADATA {
            return Err(NameError { name: text.to_owned(), why: "this name is reserved for the metadata" });
        }
        Name::parse(text)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The folders that it lies in, outermost first, without the checkpoint itself.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').map(|(at, _)| &self.0[..at])
    }

    /// The name as a path below something.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.split('/').collect()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["a", "a/b", "a b/ü", "...", "..a", "folder/..file", "metadata.json", "a\\b"] {
            assert!(Name::parse(name).is_ok(), "{name}");
        }
        for name in ["", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", "./a", "a\0", MANIFEST] {
            assert!(Name::parse(name).is_err(), "{name}");
        }
        assert!(Name::parse_of_rank(METADATA).is_err());
        assert!(Name::parse_of_rank("deep/metadata.json").is_ok());
        assert!(Name::parse(&"a".repeat(5000)).is_err());
        assert_eq!(Name::parse("a/b/c").unwrap().parents().collect::<Vec<_>>(), ["a", "a/b"]);
    }

    proptest! {
        #[test]
        fn an_accepted_name_stays_below_where_it_is_put(text in "[./a\\\\\u{0}]{0,12}") {
            if let Ok(name) = Name::parse(&text) {
                let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
                prop_assert!(name.path().components().all(plain));
                prop_assert!(Path::new("/root").join(name.path()).starts_with("/root"));
            }
        }
    }
}
