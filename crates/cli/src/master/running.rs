//! The settings with which a master was started, in a file beside its database: so that `instep up` can tell somebody who
//! wants others that they do not apply.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use instep_master::Presence;
use instep_master::settings::{KEYS, Origin, Settings};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Of the master that wrote it.
    pid: i32,
    settings: BTreeMap<String, String>,
}

fn path(database: &Path) -> PathBuf {
    database.with_extension("settings.json")
}

/// Writes down the settings of the master that this process is. If it cannot, nobody can compare with them, no more.
pub(super) fn record(settings: &Settings, database: &Path) {
    let settings = settings.rows().into_iter().map(|(name, value, _)| (name.to_owned(), value)).collect();
    let record = Record { pid: std::process::id().cast_signed(), settings };
    if let Ok(text) = serde_json::to_string(&record) {
        let _ = write(&path(database), text.as_bytes());
    }
}

/// Writes a file for its owner alone, through no link: what stands at this name may be somebody else's wish.
fn write(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let no_link = nix::libc::O_NOFOLLOW;
    // Truncated only once it is known to be a file of its own.
    let mut file =
        File::options().write(true).create(true).truncate(false).mode(0o600).custom_flags(no_link).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.nlink() > 1 {
        return Err(std::io::Error::other("it is not a file of its own"));
    }
    file.set_len(0)?;
    file.write_all(content)
}

/// How the settings that somebody wants and those of a master that runs differ.
#[derive(Debug)]
pub(super) struct Difference {
    /// Wanted otherwise: `--host is 127.0.0.1, not 0.0.0.0`. What nobody said, nobody wants.
    pub(super) changed: Vec<String>,
    /// What the master was started with, and nobody says now: `--checkpoints /data`.
    pub(super) unsaid: Vec<String>,
}

impl Difference {
    /// Between what is wanted and what the master of a database has.
    pub(super) fn of(wanted: &Settings, database: &Path, presence: &Presence) -> Difference {
        let text = std::fs::read_to_string(path(database)).unwrap_or_default();
        let record = serde_json::from_str(&text).ok().filter(|record: &Record| record.pid == presence.pid);
        let mut running = record.map(|record| record.settings).unwrap_or_default();
        let flag = |name: &str| KEYS.iter().find(|key| key.name == name).map_or("", |key| key.flag);
        let rows: Vec<_> = wanted.rows().into_iter().filter(|(name, _, _)| *name != "db").collect();
        let unsaid = rows.iter().filter(|(_, _, origin)| *origin == Origin::Default).filter_map(|(name, value, _)| {
            let now = running.get(*name).filter(|now| *now != value && !now.is_empty())?;
            Some(format!("--{} {now}", flag(name)))
        });
        let unsaid = unsaid.collect();
        // Where it really serves, also if any free port was to be taken.
        for (name, address) in [("port", &presence.address), ("proxy_port", &presence.tasks)] {
            if let Some((_, port)) = address.as_ref().and_then(|address| address.rsplit_once(':')) {
                running.insert(name.to_owned(), port.to_owned());
            }
        }
        let any_port = |name: &str, value: &str| ["port", "proxy_port"].contains(&name) && value == "0";
        let said = rows.into_iter().filter(|(_, _, origin)| *origin != Origin::Default);
        let changed = said.filter_map(|(name, value, _)| {
            let now = running.get(name).filter(|now| **now != value && !any_port(name, &value))?;
            Some(format!("--{} is {}, not {value}", flag(name), if now.is_empty() { "not set" } else { now }))
        });
        Difference { changed: changed.collect(), unsaid }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn settings_are_written_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own.json"), folder.path().join("other"));
        write(&own, b"a longer text").unwrap();
        write(&own, b"short").unwrap();
        assert_eq!(fs::read_to_string(&own).unwrap(), "short");
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&other, "untouched").unwrap();
        for hard in [true, false] {
            fs::remove_file(&own).unwrap();
            if hard { fs::hard_link(&other, &own) } else { symlink(&other, &own) }.unwrap();
            write(&own, b"written").unwrap_err();
            assert_eq!(fs::read_to_string(&other).unwrap(), "untouched");
        }
    }
}
