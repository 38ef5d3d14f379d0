//! Joining what the ranks saved: who has which name, and what contradicts.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::manifest::Entry;
use crate::name::Name;

/// What all ranks saved together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// Every file and folder once.
    pub entries: Vec<Entry>,
    /// For every rank, the names of the files that it brings in: a file that several ranks have alike comes from the
    /// lowest.
    pub brought: Vec<Vec<String>>,
}

/// Joins the lists of all ranks, in the order of ranks. Folders may be shared, and so may files with the same content.
pub fn merge(ranks: &[Vec<Entry>]) -> Result<Merged> {
    let mut known: BTreeMap<Name, (usize, &Entry)> = BTreeMap::new();
    let mut brought = vec![Vec::new(); ranks.len()];
    for (rank, entries) in ranks.iter().enumerate() {
        for entry in entries {
            let name = entry.checked_name()?;
            match known.get(&name) {
                None => {
                    if !entry.is_folder() {
                        brought[rank].push(entry.name.clone());
                    }
                    known.insert(name, (rank, entry));
                }
                Some((_, before)) if before.name == entry.name && before.hash == entry.hash => {}
                Some((first, _)) => {
                    return Err(Error::Conflict { name: name.to_string(), first: *first, second: rank });
                }
            }
        }
    }
    // A file of one rank must not be a folder on the way to a file of another.
    for (name, (rank, _)) in &known {
        for parent in name.parents() {
            if let Some((first, entry)) = Name::parse(parent).ok().and_then(|parent| known.get(&parent))
                && !entry.is_folder()
            {
                return Err(Error::Conflict { name: parent.to_owned(), first: *first, second: *rank });
            }
        }
    }
    Ok(Merged { entries: known.into_values().map(|(_, entry)| entry.clone()).collect(), brought })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, hash: &str) -> Entry {
        Entry { name: name.into(), size: hash.len() as u64, hash: hash.into() }
    }

    #[test]
    fn files_of_all_ranks_come_together() {
        let ranks = [
            vec![entry("a", "1"), entry("folder/", ""), entry("folder/x", "2"), entry("same", "s")],
            vec![entry("b", "3"), entry("folder/", ""), entry("folder/y", "4"), entry("same", "s")],
            vec![],
        ];
        let merged = merge(&ranks).unwrap();
        let names: Vec<&str> = merged.entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "folder/", "folder/x", "folder/y", "same"]);
        assert_eq!(merged.brought, [vec!["a", "folder/x", "same"], vec!["b", "folder/y"], vec![]]);
    }

    #[test]
    fn contradictions_are_refused_by_name_and_ranks() {
        let cases = [
            (entry("x", "1"), entry("x", "2"), "x"),
            (entry("x/", ""), entry("x", "2"), "x"),
            (entry("x", "1"), entry("x/y", "2"), "x"),
        ];
        for (first, second, name) in cases {
            let refused = merge(&[vec![first], vec![entry("z", "0")], vec![second]]).unwrap_err();
            assert_eq!(refused.to_string(), format!("ranks 0 and 2 both save `{name}`, with different content"),);
        }
        assert!(matches!(merge(&[vec![entry("../x", "1")]]), Err(Error::Name(_))));
    }
}
