//! A PostgreSQL server as a source. Everything is read in one transaction, which sees one state of the database and may
//! change nothing.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::Duration;

use postgres::config::Host;
use postgres::error::SqlState;
use postgres::{Client, Config, NoTls};

use crate::error::{Error, Result};
use crate::source::{Marker, Source, Table, Visit};
use crate::text::Layout;

/// How long a server may take to answer at first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What to do when a server has gone away.
const CONTINUE: &str = "run the command again: it continues where it stopped";

/// A connection with an open transaction.
pub struct Server {
    client: Client,
    place: String,
    counts: Option<BTreeMap<String, u64>>,
}

impl Server {
    /// Connects to `postgres://USER:PASSWORD@HOST:PORT/DATABASE`. `password` counts where the address has none.
    pub fn connect(address: &str, password: Option<&str>) -> Result<Server> {
        let unreadable = |error: postgres::Error| Error::Address { why: reason(&error) };
        let mut config: Config = address.parse().map_err(unreadable)?;
        if config.get_password().is_none()
            && let Some(password) = password
        {
            config.password(password);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.application_name("instep import");
        let place = place_of(&config);
        let mut client = config.connect(NoTls).map_err(|error| refused(&place, &error))?;
        let began = client.batch_execute(
            "SET TIME ZONE 'UTC'; SET DateStyle TO ISO; SET IntervalStyle TO postgres; SET bytea_output TO hex; \
             SET extra_float_digits TO 3; SET client_encoding TO 'UTF8'; SET statement_timeout TO 0; \
             BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        );
        began.map_err(|error| stopped(&place, &error))?;
        Ok(Server { client, place, counts: None })
    }

    fn failed(&self) -> impl Fn(postgres::Error) -> Error + use<> {
        let place = self.place.clone();
        move |error| stopped(&place, &error)
    }
}

/// How people call a server and a database of it; never with the password.
fn place_of(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    format!("{user}{host}:{port}/{}", config.get_dbname().unwrap_or_default())
}

/// What went wrong, with its causes.
fn reason(error: &postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.message().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = next.to_string();
        cause = next.source();
    }
    text
}

fn stopped(place: &str, error: &postgres::Error) -> Error {
    let hint = if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        "connect as the user that Determined's master connects as, or one that may read every table"
    } else {
        CONTINUE
    };
    Error::Server { place: place.to_owned(), why: reason(error), hint }
}

fn refused(place: &str, error: &postgres::Error) -> Error {
    let code = error.code();
    let hint = if code == Some(&SqlState::INVALID_PASSWORD) {
        "check user and password; the password may also come from the variable PGPASSWORD"
    } else if code == Some(&SqlState::INVALID_CATALOG_NAME) {
        "check the name of the database: Determined's master.yaml says it (`db`, `name`)"
    } else if code == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) {
        "check the user; if the server wants encryption, dump the database with `pg_dump` and import the file with --dump"
    } else if code.is_some() {
        "see what the server says; or dump the database with `pg_dump` and import the file with --dump"
    } else if reason(error).contains("password missing") {
        "put the password into the address or into the variable PGPASSWORD"
    } else {
        "check that the server runs and can be reached from here: host, port, firewall"
    };
    Error::Connect { place: place.to_owned(), why: reason(error), hint }
}

impl Source for Server {
    fn place(&self) -> &str {
        &self.place
    }

    fn counts(&mut self) -> Result<BTreeMap<String, u64>> {
        if let Some(counts) = &self.counts {
            return Ok(counts.clone());
        }
        let failed = self.failed();
        let tables = "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                      WHERE n.nspname = 'public' AND c.relkind = 'r'";
        let mut counts = BTreeMap::new();
        for row in self.client.query(tables, &[]).map_err(&failed)? {
            let name: String = row.get(0);
            let sql = format!("SELECT count(*) FROM public.\"{}\"", name.replace('"', "\"\""));
            let count: i64 = self.client.query_one(&sql, &[]).map_err(&failed)?.get(0);
            counts.insert(name, count.unsigned_abs());
        }
        self.counts = Some(counts.clone());
        Ok(counts)
    }

    fn read(&mut self, table: &Table, after: Option<Marker>, visit: Visit<'_>) -> Result<()> {
        if !self.counts()?.contains_key(table.name) {
            return Ok(());
        }
        let failed = self.failed();
        let place = self.place.clone();
        let columns: Vec<String> = table.columns.iter().map(|name| format!("\"{name}\"")).collect();
        let mut sql = format!("COPY (SELECT {} FROM public.\"{}\"", columns.join(", "), table.name);
        if let Some(order) = table.order {
            if let Some(Marker(last)) = after {
                sql += &format!(" WHERE \"{order}\" > {last}");
            }
            sql += &format!(" ORDER BY \"{order}\"");
        }
        sql += ") TO STDOUT";
        let layout = Layout::exact(table.name, table.columns);
        let mut reader = self.client.copy_out(&sql).map_err(&failed)?;
        let (mut line, mut number) = (Vec::new(), 0u64);
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line).map_err(|error| Error::Server {
                place: place.clone(),
                why: error.to_string(),
                hint: CONTINUE,
            })?;
            if length == 0 {
                return Ok(());
            }
            number += 1;
            let row = layout.row(line.strip_suffix(b"\n").unwrap_or(&line), number)?;
            let marker = match table.order {
                Some(order) => row.integer(order)?,
                None => number.cast_signed(),
            };
            visit(&row, Marker(marker))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_never_shows_the_password() {
        let config: Config = "postgres://ann:secret@db.example:6000/determined".parse().unwrap();
        assert_eq!(place_of(&config), "ann@db.example:6000/determined");
        let bad = Server::connect("postgres://ann:secret@host:notaport/x", None).err().unwrap();
        assert!(!bad.to_string().contains("secret"), "{bad}");
        assert!(bad.hint().contains("postgres://USER"), "{}", bad.hint());
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let refused = Server::connect(&format!("postgres://ann@127.0.0.1:{port}/x"), None).err().unwrap();
        assert!(refused.to_string().contains(&format!("ann@127.0.0.1:{port}/x")), "{refused}");
        assert!(refused.hint().contains("can be reached"), "{}", refused.hint());
    }
}
