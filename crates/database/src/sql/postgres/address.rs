//! Where a PostgreSQL database is, and how to connect to it:
//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=…&sslrootcert=…&schema=…`.

use std::path::PathBuf;
use std::time::Duration;

use postgres::config::{Host, SslMode};
use postgres::error::SqlState;
use postgres::{Client, Config, NoTls};

use super::super::error::{Error, reason};
use super::tls::Encryption;

/// How long a server may take to answer at first, and how long it may be silent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(15);
const KEEPALIVE: Duration = Duration::from_secs(5);
/// The schema unless the address names one.
const SCHEMA: &str = "instep";
/// Bytes of the name of a schema, beyond which PostgreSQL cuts it off.
const LONGEST_SCHEMA: usize = 63;
/// Letters of the name of files, which the system allows 255, with what is put behind it.
const LONGEST_NAME: usize = 120;
/// What a server says to whom it will not let in before somebody changes something.
const LASTING: [SqlState; 3] =
    [SqlState::INVALID_CATALOG_NAME, SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION];
/// What goes to the driver as it is; nothing else is taken.
const PASSED_ON: [&str; 3] = ["connect_timeout", "target_session_attrs", "channel_binding"];

/// Why an address cannot be used, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the address of the database: {why}")]
pub struct AddressError {
    why: String,
    hint: &'static str,
}

impl AddressError {
    fn new(why: impl Into<String>, hint: &'static str) -> AddressError {
        AddressError { why: why.into(), hint }
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        self.hint
    }
}

/// Where a PostgreSQL database is. What it shows of itself has no password.
#[derive(Clone)]
pub struct Address {
    config: Config,
    schema: String,
    encryption: Option<Encryption>,
    place: String,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Address").field(&self.place).finish()
    }
}

impl Address {
    /// Whether a text is meant as an address, and not as the name of a file.
    pub fn is_meant(text: &str) -> bool {
        without_scheme(text).is_some()
    }

    /// Reads an address. `password` counts where it has none.
    pub fn parse(text: &str, password: Option<&str>) -> Result<Address, AddressError> {
        let form = "write it as postgres://USER@HOST:PORT/DATABASE";
        let rest = without_scheme(text).ok_or_else(|| AddressError::new("it is none of PostgreSQL", form))?;
        let (plain, options) = rest.split_once('?').unwrap_or((rest, ""));
        // Nothing of such a text is shown: what looks like a host or an option may be the end of a password.
        if options.contains('@') || plain.matches('@').count() > 1 {
            let hint = "write special characters in a user, a password or an option as codes: %40 for @, %3F for ?; or \
                        leave the password out and name a file that holds it with --db-password-file";
            return Err(AddressError::new("there is an @ in it that does not stand between password and host", hint));
        }
        let (mut passed_on, mut mode, mut roots, mut schema) = (String::new(), None, None, SCHEMA.to_owned());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "sslmode" => mode = Some(value.to_owned()),
                "sslrootcert" => roots = Some(PathBuf::from(decoded(value))),
                "schema" => schema = decoded(value),
                "channel_binding" if value == "require" => {
                    let hint = "say sslmode=verify-full instead, which makes sure of the server by its certificate";
                    return Err(AddressError::new("channel_binding=require is not supported", hint));
                }
                name if PASSED_ON.contains(&name) => passed_on += &format!("&{option}"),
                "password" | "user" => {
                    return Err(AddressError::new(format!("`{name}` belongs before the host"), form));
                }
                other => {
                    let hint = "it may say sslmode, sslrootcert, schema, connect_timeout and target_session_attrs";
                    return Err(AddressError::new(format!("there is no option `{other}`"), hint));
                }
            }
        }
        if schema.is_empty() || schema.len() > LONGEST_SCHEMA || schema.starts_with("pg_") || schema.contains('\0') {
            let hint = "a schema has a name of up to 63 bytes, which does not begin with pg_";
            return Err(AddressError::new(format!("`{schema}` cannot be the name of a schema"), hint));
        }
        let read = format!("postgres://{plain}?{}", passed_on.trim_start_matches('&')).parse::<Config>();
        let mut config = read.map_err(|error| AddressError::new(reason(&error), form))?;
        if config.get_hosts().is_empty() {
            return Err(AddressError::new("it names no host", form));
        }
        if config.get_dbname().is_none_or(str::is_empty) {
            return Err(AddressError::new("it names no database", form));
        }
        if let (None, Some(password)) = (config.get_password(), password) {
            config.password(password);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config
            .tcp_user_timeout(SILENCE)
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE)
            .keepalives_retries(2);
        config.application_name("instep master");
        let encryption = encryption(&mut config, mode.as_deref(), roots.as_deref())?;
        let place = place_of(&config, &schema);
        Ok(Address { config, schema, encryption, place })
    }

    /// The same for one of several masters, whose sessions are called otherwise: another one may end them.
    pub(crate) fn of_several(mut self) -> Address {
        self.config.application_name(super::standby::OF_SEVERAL);
        self
    }

    /// How people call it: `user@host:port/database, schema instep`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// A name for files on this machine that belong to this database. It begins with what people recognise, and ends
    /// with a digest, because several databases may look the same there.
    pub fn file_name(&self) -> String {
        let allowed = |letter: char| {
            if letter.is_ascii_alphanumeric() || "._".contains(letter) { letter } else { '-' }
        };
        let (host, port) = host_and_port(&self.config);
        let name = self.config.get_dbname().unwrap_or_default();
        let digest = digest(&[&host, &port.to_string(), name, &self.schema]);
        let readable = format!("postgres-{host}-{port}-{name}-{}", self.schema);
        let readable: String = readable.chars().map(allowed).take(LONGEST_NAME).collect();
        format!("{readable}-{digest:08x}")
    }

    /// How long the server is waited for at first: as long as each of its hosts may take to be reached, and as long
    /// again for what it says then.
    pub(super) fn timeout(&self) -> Duration {
        let each = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        each.saturating_mul(u32::try_from(self.config.get_hosts().len()).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// An address, of whatever it is, as it may be shown: its password is masked, wherever it stands. Other text stays
    /// as it is.
    pub fn masked(text: &str) -> String {
        let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        // A password with a slash in it is none, but it is somebody's: all before the last @ is looked at.
        let end = match rest.rfind('@').filter(|at| *at > end) {
            Some(at) => rest[at..].find(['/', '?']).map_or(rest.len(), |more| at + more),
            None => end,
        };
        let (authority, tail) = rest.split_at(end);
        let authority = match authority.rsplit_once('@') {
            Some((who, host)) => {
                format!("{}@{host}", who.split_once(':').map_or(who.to_owned(), |(user, _)| format!("{user}:********")))
            }
            None => authority.to_owned(),
        };
        let tail = match tail.split_once("password=") {
            Some((before, value)) => {
                let after = value.find('&').map_or("", |at| &value[at..]);
                format!("{before}password=********{after}")
            }
            None => tail.to_owned(),
        };
        format!("{scheme}://{authority}{tail}")
    }

    /// Whether an address says the password.
    pub fn has_password(text: &str) -> bool {
        Address::masked(text) != text
    }

    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    pub(super) fn connect(&self) -> Result<Client, Error> {
        let connected = match &self.encryption {
            Some(encryption) => self.config.connect(encryption.clone()),
            None => self.config.connect(NoTls),
        };
        connected.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &postgres::Error) -> Error {
        let (code, why) = (error.code(), reason(error));
        let hint = if code == Some(&SqlState::INVALID_PASSWORD) || why.contains("password missing") {
            "give the right password: in a file that --db-password-file names, or in the variable PGPASSWORD"
        } else if code == Some(&SqlState::INVALID_CATALOG_NAME) {
            "make the database (`createdb NAME`), or name another one"
        } else if code == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) {
            "check the user, and what the server's pg_hba.conf says of it; `?sslmode=require` encrypts"
        } else if code == Some(&SqlState::TOO_MANY_CONNECTIONS) {
            "the master needs 5 connections: raise max_connections of the server, or the user's CONNECTION LIMIT"
        } else if code.is_some() {
            "see what the server says, and its log"
        } else if why.contains("server does not support TLS") {
            "turn TLS on at the server, or say `?sslmode=disable` if the network between is yours"
        } else if why.contains("certificate") {
            "name the certificate of who signed the server's with `?sslmode=verify-full&sslrootcert=FILE`, and connect \
             to the name that it is for"
        } else {
            "check that the server runs and can be reached from here: host, port, firewall"
        };
        let lasting = code.is_some_and(|code| LASTING.contains(code));
        Error::Refused { place: self.place.clone(), why, hint, lasting }
    }
}

/// Sets how connections are encrypted: as libpq does it, but required on the way to another machine unless the address
/// says otherwise, and with the certificate verified whenever it is said what to verify it with.
fn encryption(
    config: &mut Config,
    mode: Option<&str>,
    roots: Option<&std::path::Path>,
) -> Result<Option<Encryption>, AddressError> {
    let hint = "sslmode is one of disable, prefer, require, verify-full";
    let sockets = config.get_hosts().iter().filter(|host| matches!(host, Host::Unix(_))).count();
    let here = config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        Host::Unix(_) => true,
    });
    let mode = mode.unwrap_or(match (here, roots) {
        (_, Some(_)) => "verify-full",
        (true, None) => "prefer",
        (false, None) => "require",
    });
    let (driver, encryption) = match (mode, roots) {
        ("disable" | "prefer", Some(_)) => {
            let what = format!("sslrootcert is useless with sslmode={mode}, which verifies nothing");
            return Err(AddressError::new(what, "say sslmode=verify-full, or leave one of the two out"));
        }
        ("disable", None) => (SslMode::Disable, None),
        ("prefer", None) => (SslMode::Prefer, Some(Encryption::unverified())),
        ("require", None) => (SslMode::Require, Some(Encryption::unverified())),
        ("require" | "verify-full", _) => (SslMode::Require, Some(Encryption::verified(roots))),
        ("verify-ca", _) => return Err(AddressError::new("sslmode=verify-ca is not known", "say verify-full")),
        (other, _) => return Err(AddressError::new(format!("sslmode={other} is not known"), hint)),
    };
    // PostgreSQL encrypts nothing on a socket of the machine, where nobody listens.
    let (driver, encryption) = match sockets {
        0 => (driver, encryption),
        all if all == config.get_hosts().len() => (SslMode::Disable, None),
        _ => {
            let what = "it names a socket of this machine beside hosts";
            return Err(AddressError::new(what, "name either the folder of the socket, or hosts"));
        }
    };
    config.ssl_mode(driver);
    let hint = "sslrootcert names a file of certificates in PEM";
    encryption.transpose().map_err(|why| AddressError::new(why, hint))
}

/// What follows `postgres://`, however that is written; nothing if a text does not begin so.
fn without_scheme(text: &str) -> Option<&str> {
    let (scheme, rest) = text.split_once("://")?;
    ["postgres", "postgresql"].iter().any(|known| scheme.eq_ignore_ascii_case(known)).then_some(rest)
}

/// A number for texts (FNV-1a), the same in every version: names of files are made of it.
fn digest(texts: &[&str]) -> u32 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0x811c_9dc5, |digest, byte| (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn host_and_port(config: &Config) -> (String, u16) {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    (host, config.get_ports().first().copied().unwrap_or(5432))
}

fn place_of(config: &Config, schema: &str) -> String {
    let (host, port) = host_and_port(config);
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    format!("{user}{host}:{port}/{}, schema {schema}", config.get_dbname().unwrap_or_default())
}

/// A part of an address with `%20` and the like as they are meant.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let coded = tail.first_chunk::<2>().filter(|_| *first == b'%');
        let digits = coded.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_says_where_and_never_the_password() {
        let address = Address::parse("postgres://ann:secret@db.example:6000/team?schema=a%20b", None).unwrap();
        assert_eq!(address.place(), "ann@db.example:6000/team, schema a b");
        assert!(address.file_name().starts_with("postgres-db.example-6000-team-a-b-"), "{}", address.file_name());
        assert!(!format!("{address:?}").contains("secret"));
        let address = Address::parse("postgresql://ann@localhost/team", Some("word")).unwrap();
        assert_eq!(address.config.get_password(), Some(&b"word"[..]));
        assert_eq!(address.place(), "ann@localhost:5432/team, schema instep");
    }

    #[test]
    fn every_database_has_files_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for text in
            ["db/team_a", "db/team-a", "db/team.a", "db/team%20a", "db/team?schema=a", "db/t?schema=eam-a", "b:1/x"]
        {
            let address = Address::parse(&format!("postgres://ann@{text}"), None).unwrap();
            assert!(names.insert(address.file_name()), "{text}: {}", address.file_name());
        }
        let long = Address::parse(&format!("postgres://ann@{}/x", "h".repeat(250)), None).unwrap();
        assert!(long.file_name().len() <= 130, "{}", long.file_name());
        let known = Address::parse("Postgres://ann@db/x", None).unwrap();
        assert_eq!(known.file_name(), "postgres-db-5432-x-instep-2d7dd9e6", "it stays what it is");
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_hint() {
        for (text, word) in [
            ("postgres://", "host"),
            ("postgres://ann@/x", "host"),
            ("postgres://ann@db", "database"),
            ("postgres://ann@db:port/x", "port"),
            ("postgres://ann@db/x?sslmode=verify-ca", "verify-ca"),
            ("postgres://ann@db/x?sslmode=maybe", "maybe"),
            ("postgres://ann@db/x?sslrootcert=/nowhere", "/nowhere"),
            ("postgres://ann@db/x?schema=pg_x", "pg_x"),
            ("postgres://ann@db/x?options=-c", "options"),
            ("postgres://ann@db/x?password=secret", "password"),
            ("postgres://ann:a?secret@db/x", "@"),
            ("postgres://ann:a@secret@db/x", "@"),
            ("postgresql+psycopg2://ann:secret@db/x", "none of PostgreSQL"),
            ("postgres://ann@db/x?hostaddr=10.0.0.1", "hostaddr"),
            ("postgres://ann@db/x?channel_binding=require", "channel_binding=require"),
            ("postgres://ann@db/x?sslmode=require&sslrootcert=/nowhere", "/nowhere"),
            ("postgres://ann@db/x?sslmode=prefer&sslrootcert=/nowhere", "sslmode=prefer"),
            ("postgres://ann@db/x?sslmode=disable&sslrootcert=/nowhere", "sslmode=disable"),
            ("postgres://ann@%2Frun,db/x", "socket"),
        ] {
            let error = Address::parse(text, None).unwrap_err();
            assert!(error.to_string().contains(word), "{text}: {error}");
            assert!(!error.to_string().contains("secret") && !error.hint().is_empty());
        }
    }

    #[test]
    fn other_machines_are_reached_encrypted() {
        for (text, mode, encrypts) in [
            ("postgres://ann@localhost/x", SslMode::Prefer, true),
            ("postgres://ann@[::1]/x", SslMode::Prefer, true),
            ("postgres://ann@db/x", SslMode::Require, true),
            ("postgres://ann@db/x?sslmode=disable", SslMode::Disable, false),
            ("postgres://ann@db/x?sslmode=verify-full", SslMode::Require, true),
            ("postgres://ann@%2Frun%2Fpostgresql/x", SslMode::Disable, false),
            ("postgres://ann@%2Frun%2Fpostgresql/x?sslmode=require", SslMode::Disable, false),
        ] {
            let address = Address::parse(text, None).unwrap();
            assert_eq!((address.config.get_ssl_mode(), address.encryption.is_some()), (mode, encrypts), "{text}");
        }
    }

    #[test]
    fn passwords_are_masked() {
        for (text, shown) in [
            ("/var/lib/a:b@c.db", "/var/lib/a:b@c.db"),
            ("postgres://ann@db/x", "postgres://ann@db/x"),
            ("postgres://ann:s3:cr@et@db:1/x?schema=y", "postgres://ann:********@db:1/x?schema=y"),
            ("postgres://ann:a/b@db/x", "postgres://ann:********@db/x"),
            ("postgresql://db/x?password=a&schema=y", "postgresql://db/x?password=********&schema=y"),
            ("POSTGRES://ann:a?b@db/x", "POSTGRES://ann:********@db/x"),
            ("postgresql+psycopg2://ann:a@db/x", "postgresql+psycopg2://ann:********@db/x"),
        ] {
            assert_eq!(Address::masked(text), shown);
            assert_eq!(Address::has_password(text), text != shown);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "postgres://[a:@/?&=%0-9\\[\\]é]{0,40}") {
            let _ = Address::parse(&text, None);
            let _ = Address::masked(&text);
        }

        #[test]
        fn no_part_of_a_password_is_shown(password in "[a:/?#%&=@]{0,4}S3CRET[a:/?#%&=@]{0,4}S3CRET[a:/?#%&=@]{0,4}") {
            let text = format!("postgres://ann:{password}@db:5432/x?schema=y");
            let shown = match Address::parse(&text, None) {
                Ok(address) => format!("{address:?} {} {}", address.place(), address.file_name()),
                Err(error) => format!("{error} {}", error.hint()),
            };
            for shown in [shown, Address::masked(&text)] {
                prop_assert!(!shown.contains("S3CRET"), "{}", shown);
            }
        }
    }
}
