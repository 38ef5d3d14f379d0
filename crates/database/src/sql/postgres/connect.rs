//! One try to connect: the session is made one of ours, and a server that cannot be used is refused with the reason.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use postgres::{Client, SimpleQueryMessage};

use super::super::error::{Error, Result, reason};
use super::address::Address;
use super::dialect::quoted;

/// The oldest version that this works with, as the server writes it.
const OLDEST: u32 = 130_000;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Writer,
    Reader,
    /// Looks at what is there, and changes nothing of it.
    Visitor,
}

/// A try to connect, on a thread of its own: the driver has a deadline for the network alone, and would wait for ever
/// for a server that takes a connection and says nothing. The thread ends when the server answers or is gone; until
/// then its connection makes no other.
pub(super) struct Attempt(mpsc::Receiver<Result<Client>>);

impl Attempt {
    pub(super) fn begin(address: &Arc<Address>, role: Role) -> Result<Attempt> {
        let (answer, attempt) = mpsc::sync_channel(1);
        let place = address.place().to_owned();
        let address = Arc::clone(address);
        let work = move || {
            // Whoever began it may have given up.
            let _ = answer.send(connect(&address, role));
        };
        let begun = std::thread::Builder::new().name("instep-db-conn".to_owned()).spawn(work);
        begun.map(|_| Attempt(attempt)).map_err(|error| Error::Refused {
            place,
            why: error.to_string(),
            hint: "the system's limits may be too low for this user",
            lasting: false,
        })
    }

    /// The connection; nothing if there is no answer in time.
    pub(super) fn wait(&self, address: &Address, timeout: Duration) -> Option<Result<Client>> {
        match self.0.recv_timeout(timeout) {
            Ok(outcome) => Some(outcome),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            // A panic of the driver was its own message.
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(silent(address))),
        }
    }
}

/// Says that there was no answer.
pub(super) fn silent(address: &Address) -> Error {
    Error::Refused {
        place: address.place().to_owned(),
        why: "the server does not answer".to_owned(),
        hint: "check that it is PostgreSQL that serves there, and that it is neither stopped nor overloaded",
        lasting: false,
    }
}

/// Connects, and makes the session one of ours.
fn connect(address: &Address, role: Role) -> Result<Client> {
    let mut client = address.connect()?;
    let refused = |why: String, hint| Error::Refused { place: address.place().to_owned(), why, hint, lasting: false };
    // A master whose machine is gone loses its lock when the server notices: soon. What is acknowledged is on the
    // server's disk, unless somebody asked for more than that.
    let mut script = format!(
        "SET search_path TO {}; SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
         SET tcp_keepalives_count = 3; SET lock_timeout = '10s'; SET statement_timeout = '60s'; \
         SET idle_in_transaction_session_timeout = 0; \
         SET standard_conforming_strings = on; SELECT set_config('synchronous_commit', 'on', FALSE) \
         WHERE current_setting('synchronous_commit') IN ('off', 'local'); \
         SELECT set_config('tcp_user_timeout', '25000', FALSE) \
         WHERE current_setting('server_version_num')::INTEGER >= {OLDEST}; ",
        quoted(address.schema())
    );
    if role == Role::Reader {
        script += "SET default_transaction_read_only = on; ";
    }
    script += "SELECT current_setting('server_version_num'), current_setting('server_encoding'), \
               pg_is_in_recovery()::text, current_setting('server_version')";
    let hint = "see what the server says, and its log";
    let answers = client.simple_query(&script).map_err(|error| refused(reason(&error), hint))?;
    let rows = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) if row.len() == 4 => {
            Some([0, 1, 2, 3].map(|column| row.get(column).unwrap_or("")))
        }
        _ => None,
    });
    let [number, encoding, standby, version] = rows.last().unwrap_or_default();
    match unfit(number, encoding, standby, version) {
        Some((why, hint)) => Err(refused(why, hint)),
        None => Ok(client),
    }
}

/// Why a server cannot be used, and what to do: by its version, encoding, and whether it only follows another.
fn unfit(number: &str, encoding: &str, standby: &str, version: &str) -> Option<(String, &'static str)> {
    if number.parse::<u32>().is_ok_and(|number| number < OLDEST) {
        return Some((format!("its version is {version}"), "use PostgreSQL 13 or later"));
    }
    if encoding != "UTF8" {
        let hint = "make a database with `CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0`, and name that";
        return Some((format!("its encoding is {encoding}, and not UTF8"), hint));
    }
    (standby == "true").then(|| {
        let hint = "name the primary; or several hosts with `?target_session_attrs=read-write`, which finds it";
        ("it is a standby, which takes no changes".to_owned(), hint)
    })
}

#[cfg(test)]
mod tests {
    use super::unfit;

    #[test]
    fn a_server_that_cannot_be_used_is_refused_with_the_reason() {
        assert_eq!(unfit("130000", "UTF8", "false", "13.0"), None);
        for (number, encoding, standby, word) in [
            ("120017", "UTF8", "false", "version is 12.17"),
            ("150002", "SQL_ASCII", "false", "SQL_ASCII"),
            ("150002", "UTF8", "true", "standby"),
        ] {
            let (why, _) = unfit(number, encoding, standby, "12.17").unwrap();
            assert!(why.contains(word), "{why}");
        }
    }
}
