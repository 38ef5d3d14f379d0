//! What the settings mean together: the [`Options`] of a master, or why there are none.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use instep_api::config::memory_size;
use instep_database::PostgresAddress;
use instep_policy::schedule::{self, Fitting, Rule};

use super::gather::{Settings, SettingsError};
use crate::agreement::{Agreed, SHARED};
use crate::cluster::ClusterOptions;
use crate::encryption::Encryption;
use crate::engines::options::{EngineOptions, read_pools};
use crate::journal::Journal;
use crate::server::Options;
use crate::sites::{host_of_origin, port_of_origin};
use crate::webhooks::WebhookOptions;

impl Settings {
    /// What the settings mean together.
    pub fn options(&self) -> Result<Options, SettingsError> {
        let postgres = self.postgres()?;
        let database = &self.database(postgres.as_ref())?;
        let (port, proxy_port) = (self.text("port"), self.text("proxy_port"));
        if port == proxy_port && port != "0" {
            return Err(SettingsError::new(
                format!("the pages of tasks cannot be served on the master's own port {port}"),
                "they are other people's programs: choose another --proxy-port, or leave it out",
            ));
        }
        let proxy_url = self.text("proxy_url").trim_end_matches('/');
        if self.is_own_address(proxy_url) {
            return Err(SettingsError::new(
                format!("the pages of tasks cannot be served at the master's own address {proxy_url}"),
                "they are other people's programs, which would get at who is logged in there: name another host or port \
                 with --proxy-url, or leave it out",
            ));
        }
        Ok(Options {
            host: self.text("host").to_owned(),
            port: port.parse().unwrap_or_default(),
            proxy_port: proxy_port.parse().ok(),
            proxy_url: Some(proxy_url.to_owned()).filter(|url| !url.is_empty()),
            database: database.clone(),
            advertise: self.advertise(postgres.is_some())?,
            shared_folders: self.shared_folders(database),
            agreed: self.agreed()?,
            postgres,
            allowed_hosts: self.list("allow_hosts").to_vec(),
            session: Duration::from_secs(3600 * self.text("session_hours").parse::<u64>().unwrap_or_default()),
            encryption: self.encryption()?,
            checkpoints: self.checkpoints(database),
            storage_roots: self.list("storage_roots").iter().map(|root| absolute(root.into())).collect(),
            cluster: self.cluster(),
            audit_retention_days: self.text("audit_retention_days").parse().unwrap_or_default(),
            webhooks: WebhookOptions {
                signing_key: Some(self.text("webhooks.signing_key").to_owned()).filter(|key| !key.is_empty()),
                private_addresses: self.text("webhooks.private_addresses") == "true",
            },
            log_retention_days: self.text("log_retention_days").parse().ok(),
            // What is no size was refused before; `none` is none.
            task_log_limit: memory_size(self.text("task_log_limit")),
            user_context_limit: memory_size(self.text("user_context_limit")),
            journal: Journal::default(),
            roles: self.text("roles") == "true",
        })
    }

    /// Where other masters reach this one, if it may have others.
    fn advertise(&self, in_postgres: bool) -> Result<Option<String>, SettingsError> {
        let own = self.text("advertise").trim_end_matches('/');
        if own.is_empty() {
            return Ok(None);
        }
        let refused = |what: &str, hint: &str| Err(SettingsError::new(what, hint));
        if !in_postgres {
            return refused(
                "--advertise is for several masters of one database, and a file has one master alone",
                "put the database into PostgreSQL, with `instep master copy` if there is one; or leave out --advertise",
            );
        }
        if self.text("port") == "0" {
            return refused(
                "--advertise says where other masters reach this one, and --port 0 is another port after each start",
                "choose a --port",
            );
        }
        if host_of_origin(own).parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()) {
            return refused(
                &format!("--advertise says {own}, which is every machine's own address"),
                "give this machine's name, or an address at which the other masters reach it",
            );
        }
        if own.starts_with("https://") != self.encryption()?.is_some() {
            return refused(
                &format!("--advertise says {own}, which is not how this master serves"),
                "it begins with https:// if the master encrypts connections itself, else with http://: masters ask each \
                 other directly, without a server in between",
            );
        }
        Ok(Some(own.to_owned()))
    }

    /// What all masters of one database must have set alike.
    fn agreed(&self) -> Result<Agreed, SettingsError> {
        let mut agreed = Agreed::default();
        for name in SHARED {
            agreed.note(name, &self.list(name).join(","));
        }
        agreed.note("encryption", if self.encryption()?.is_some() { "on" } else { "off" });
        Ok(agreed)
    }

    /// The folders of checkpoints that somebody has named: every machine of several must see them.
    fn shared_folders(&self, database: &Path) -> Vec<PathBuf> {
        let named = !self.text("checkpoints").is_empty();
        let roots = self.list("storage_roots").iter().map(|root| absolute(root.into()));
        named.then(|| self.checkpoints(database)).into_iter().chain(roots).collect()
    }

    /// What the settings mean for another database. The password of one that is not configured stands in a file of its
    /// own, or where PostgreSQL's own programs find it.
    pub fn options_for(&self, db: &str, password_file: Option<&str>) -> Result<Options, SettingsError> {
        if PostgresAddress::has_password(db) {
            return Err(SettingsError::new(
                format!(
                    "{}: it says a password, which everybody on this machine sees in the list of processes",
                    PostgresAddress::masked(db)
                ),
                "leave it out, and name a file that holds it with --from-password-file or --to-password-file",
            ));
        }
        let configured = if db == self.text("db") { self.text("db_password_file") } else { "" };
        let file = password_file.unwrap_or(configured).to_owned();
        self.with([("db", db.to_owned()), ("db_password_file", file)]).options()
    }

    /// Where the database is, if it is in PostgreSQL.
    fn postgres(&self) -> Result<Option<PostgresAddress>, SettingsError> {
        let text = self.text("db");
        if !PostgresAddress::is_meant(text) {
            if text.contains("://") {
                return Err(SettingsError::new(
                    format!("the database cannot be at {}", PostgresAddress::masked(text)),
                    "name a file, or a PostgreSQL database: postgres://USER@HOST:PORT/DATABASE",
                ));
            }
            return match self.text("db_password_file") {
                "" => Ok(None),
                _ => Err(SettingsError::new(
                    "a database file has no password",
                    "leave out --db-password-file, or name a PostgreSQL database with --db postgres://...",
                )),
            };
        }
        let file =
            Some(self.text("db_password_file")).filter(|path| !path.is_empty()).map(read_password).transpose()?;
        let password = file.as_deref().or(self.password.as_deref());
        let address = PostgresAddress::parse(text, password);
        address.map(Some).map_err(|error| SettingsError::new(error.to_string(), error.hint()))
    }

    /// The database file; of a database in PostgreSQL, what its files on this machine are named after.
    fn database(&self, postgres: Option<&PostgresAddress>) -> Result<PathBuf, SettingsError> {
        match (postgres, &self.data_folder) {
            (Some(address), Some(folder)) => Ok(folder.join("instep").join(format!("{}.db", address.file_name()))),
            (Some(_), None) => {
                Err(SettingsError::new("this user has no home directory", "set XDG_DATA_HOME to a writable folder"))
            }
            (None, _) if self.text("db").is_empty() => {
                Err(SettingsError::new("this user has no home directory", "set a database file with --db"))
            }
            (None, _) if Path::new(self.text("db")).is_dir() => {
                let folder = Path::new(self.text("db"));
                Err(SettingsError::new(
                    format!("the database {} is a folder", folder.display()),
                    format!("name a file in it: --db {}", folder.join("instep.db").display()),
                ))
            }
            (None, _) => Ok(PathBuf::from(self.text("db"))),
        }
    }

    /// Whether an origin is one at which browsers find the master itself.
    fn is_own_address(&self, origin: &str) -> bool {
        let own = ["localhost", "127.0.0.1", "::1", self.text("host")];
        let mut own = own.into_iter().chain(self.list("allow_hosts").iter().map(String::as_str));
        let host = host_of_origin(origin);
        let port = port_of_origin(origin).map(|port| port.to_string());
        port.as_deref() == Some(self.text("port"))
            && own.any(|name| name.trim_matches(['[', ']']).eq_ignore_ascii_case(host))
    }

    /// Where checkpoints go: beside the database, unless somebody says.
    fn checkpoints(&self, database: &Path) -> PathBuf {
        let said = PathBuf::from(self.text("checkpoints"));
        let beside = || database.with_file_name("checkpoints");
        absolute(if said.as_os_str().is_empty() { beside() } else { said })
    }

    fn cluster(&self) -> ClusterOptions {
        let preemption = self.text("scheduler.preemption") == "true";
        let rule = match self.text("scheduler.type") {
            "fair_share" => Rule::FairShare,
            _ => Rule::Priority { preemption },
        };
        let fitting = if self.text("scheduler.fitting_policy") == "worst" { Fitting::Worst } else { Fitting::Best };
        let window = self.text("agent_reconnect_wait").parse().unwrap_or_default();
        ClusterOptions {
            scheduling: schedule::Settings { rule, fitting, ..schedule::Settings::default() },
            engines: EngineOptions {
                // What is none was refused before.
                pools: read_pools(self.text("resource_pools")).unwrap_or_default(),
                ..EngineOptions::default()
            },
            ..ClusterOptions::with_window(Duration::from_secs(window))
        }
    }

    /// How the log is written: whether as JSON, and from which level on.
    pub fn log(&self) -> (bool, &str) {
        (self.text("log.format") == "json", self.text("log.level"))
    }

    fn encryption(&self) -> Result<Option<Encryption>, SettingsError> {
        let file = |name| Some(PathBuf::from(self.text(name))).filter(|path| !path.as_os_str().is_empty());
        match (file("tls.cert"), file("tls.key"), self.text("tls.self_signed") == "true") {
            (None, None, false) => Ok(None),
            (None, None, true) => Ok(Some(Encryption::SelfSigned)),
            (Some(certificate), Some(key), false) => Ok(Some(Encryption::Files { certificate, key })),
            (Some(_), _, true) | (_, Some(_), true) => Err(SettingsError::new(
                "a self-signed certificate conflicts with a given one",
                "leave out --tls-self-signed, or --tls-cert and --tls-key",
            )),
            (Some(_), None, false) | (None, Some(_), false) => Err(SettingsError::new(
                "the certificate or its private key is missing",
                "give both --tls-cert and --tls-key",
            )),
        }
    }
}

/// The password in a file, which nobody else may read.
fn read_password(path: &str) -> Result<String, SettingsError> {
    let unreadable = |error: std::io::Error| {
        SettingsError::new(format!("cannot read the password in {path}: {error}"), "name another --db-password-file")
    };
    let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode();
    if mode & 0o077 != 0 {
        let what = format!("others than its owner may read the password in {path}");
        return Err(SettingsError::new(what, format!("chmod 600 {path}")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(SettingsError::new(
            format!("there is no password in {path}"),
            "write it into the file, as its only line",
        )),
        password => Ok(password.to_owned()),
    }
}

/// A folder as other programs, which are elsewhere, can be told it.
fn absolute(folder: PathBuf) -> PathBuf {
    std::path::absolute(&folder).unwrap_or(folder)
}
