//! The settings with which a master was started, in a file beside its database: so that `instep up` can tell somebody who
//! wants others that they do not apply.

use std::collections::BTreeMap;
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
        let _ = std::fs::write(path(database), text);
    }
}

/// What somebody wants otherwise than a master that runs has it: `--host is 127.0.0.1, not 0.0.0.0`. What nobody said,
/// nobody wants.
pub(super) fn changed(wanted: &Settings, database: &Path, presence: &Presence) -> Vec<String> {
    let text = std::fs::read_to_string(path(database)).unwrap_or_default();
    let record = serde_json::from_str(&text).ok().filter(|record: &Record| record.pid == presence.pid);
    let mut running = record.map(|record| record.settings).unwrap_or_default();
    // Where it really serves, also if any free port was to be taken.
    if let Some((_, port)) = presence.address.as_ref().and_then(|address| address.rsplit_once(':')) {
        running.insert("port".to_owned(), port.to_owned());
    }
    let flag = |name: &str| KEYS.iter().find(|key| key.name == name).map_or("", |key| key.flag);
    let said = wanted.rows().into_iter().filter(|(name, _, origin)| *name != "db" && *origin != Origin::Default);
    let any_port = |name: &str, value: &str| name == "port" && value == "0";
    let differs = said.filter_map(|(name, value, _)| {
        let now = running.get(name).filter(|now| **now != value && !any_port(name, &value))?;
        Some(format!("--{} is {}, not {value}", flag(name), if now.is_empty() { "not set" } else { now }))
    });
    differs.collect()
}
