//! Whether a master serves a database on this machine, which one, and where.

use std::path::Path;

use crate::server::Addresses;

/// What a master says of itself in the lock beside its database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Presence {
    pub pid: i32,
    /// Where it serves; nothing while it starts.
    pub address: Option<String>,
    /// Where the pages of tasks are.
    pub tasks: Option<String>,
}

impl Presence {
    /// The master that has a database open, if there is one. Its process exists as long as this says so.
    pub fn find(database: &Path) -> Result<Option<Presence>, instep_database::Error> {
        Ok(instep_database::holder(database)?.and_then(|words| Presence::parse(&words)))
    }

    /// A master that is starting.
    pub(crate) fn starting() -> String {
        format!("pid {}", std::process::id())
    }

    /// A master that serves.
    pub(crate) fn serving(addresses: &Addresses) -> String {
        format!("pid {} at {} tasks {}", std::process::id(), addresses.master, addresses.tasks)
    }

    /// Says in people's words which master holds a database that is in use.
    pub(crate) fn name_holder(error: instep_database::Error) -> instep_database::Error {
        match error {
            instep_database::Error::InUse { path, holder } => {
                instep_database::Error::InUse { path, holder: Presence::named(holder) }
            }
            instep_database::Error::InUseHere { place, folder, holder } => {
                instep_database::Error::InUseHere { place, folder, holder: Presence::named(holder) }
            }
            other => other,
        }
    }

    fn named(holder: String) -> String {
        match Presence::parse(&holder).map(|found| (found.pid, found.address)) {
            Some((pid, Some(address))) => format!("pid {pid}, at {address}"),
            Some((pid, None)) => format!("pid {pid}"),
            None => holder,
        }
    }

    /// Reads what one of the two above wrote; nothing if it is only half written.
    fn parse(words: &str) -> Option<Presence> {
        let rest = words.strip_prefix("pid ")?;
        let (pid, address) = rest.split_once(" at ").map_or((rest, None), |(pid, address)| (pid, Some(address)));
        let (address, tasks) = match address.map(|address| address.split_once(" tasks ").unwrap_or((address, ""))) {
            Some((address, tasks)) => (Some(address), Some(tasks).filter(|tasks| !tasks.is_empty())),
            None => (None, None),
        };
        let pid = pid.parse().ok().filter(|pid| *pid > 1)?;
        Some(Presence { pid, address: address.map(str::to_owned), tasks: tasks.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_master_says_is_understood() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert_eq!(Presence::parse(&Presence::starting()), Some(Presence { pid, address: None, tasks: None }));
        let addresses = Addresses { master: "http://[::1]:80".to_owned(), tasks: "http://[::1]:81".to_owned() };
        let (address, tasks) = (Some(addresses.master.clone()), Some(addresses.tasks.clone()));
        let words = Presence::serving(&addresses);
        assert_eq!(Presence::parse(&words), Some(Presence { pid, address: address.clone(), tasks }));
        let path = std::path::PathBuf::from("a.db");
        let in_use = instep_database::Error::InUse { path, holder: words };
        let said = format!("a.db is in use by another master (pid {pid}, at http://[::1]:80)");
        assert_eq!(Presence::name_holder(in_use).to_string(), said);
        // What an earlier version writes.
        let words = format!("pid {pid} at http://[::1]:80");
        assert_eq!(Presence::parse(&words), Some(Presence { pid, address, tasks: None }));
        // A signal to process 0, 1 or -1 would reach others than a master.
        for words in ["", "pid", "pid x", "pid 0", "pid 1", "pid -1 at x", "7 at x"] {
            assert_eq!(Presence::parse(words), None, "{words}");
        }
    }
}
