//! The master's settings: one table of keys, gathered from defaults, a YAML file, the environment and the command line.
//!
//! Later sources win. Every value remembers where it came from, so that `instep master config show` can say so and an
//! error names the place to change. [`Settings`] is what was said, [`Options`] what it means.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use instep_api::config::memory_size;
use instep_database::PostgresAddress;
use instep_policy::schedule::{self, Fitting, Rule};
use serde_json::Value;

use crate::agreement::{Agreed, SHARED};
use crate::cluster::ClusterOptions;
use crate::encryption::Encryption;
use crate::engines::options::{EngineOptions, read_pools};
use crate::journal::Journal;
use crate::server::Options;
use crate::sites::{host_of_origin, is_origin, port_of_origin};
use crate::webhooks::WebhookOptions;

/// One thing that can be set.
#[derive(Debug)]
pub struct Key {
    /// As the file spells it; a dot is a level.
    pub name: &'static str,
    /// As the command line spells it, without the dashes.
    pub flag: &'static str,
    /// As the environment spells it.
    pub variable: &'static str,
    /// What counts if nobody says; several words of a list are separated by commas.
    default: &'static str,
    kind: Kind,
}

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Port,
    Path,
    Words,
    Truth,
    /// A number of days.
    Days,
    /// A number of bytes, such as `1GiB`, or `none`.
    Size,
    /// Where a server is for browsers: `https://name:8443`.
    Origin,
    /// A number of hours.
    Hours,
    /// A number of seconds.
    Seconds,
    /// Pools whose work an engine runs, in YAML.
    Pools,
    /// One of these.
    Choice(&'static [&'static str]),
}

const fn key(name: &'static str, flag: &'static str, variable: &'static str, default: &'static str, kind: Kind) -> Key {
    Key { name, flag, variable, default, kind }
}

/// Everything that can be set.
pub const KEYS: &[Key] = &[
    key("host", "host", "INSTEP_MASTER_HOST", "127.0.0.1", Kind::Text),
    key("port", "port", "INSTEP_MASTER_PORT", "8080", Kind::Port),
    key("proxy_port", "proxy-port", "INSTEP_MASTER_PROXY_PORT", "", Kind::Port),
    key("proxy_url", "proxy-url", "INSTEP_MASTER_PROXY_URL", "", Kind::Origin),
    key("db", "db", "INSTEP_MASTER_DB", "", Kind::Path),
    key("db_password_file", "db-password-file", "INSTEP_MASTER_DB_PASSWORD_FILE", "", Kind::Path),
    key("advertise", "advertise", "INSTEP_MASTER_ADVERTISE", "", Kind::Origin),
    key("allow_hosts", "allow-host", "INSTEP_MASTER_ALLOW_HOSTS", "", Kind::Words),
    key("checkpoints", "checkpoints", "INSTEP_MASTER_CHECKPOINTS", "", Kind::Path),
    key("storage_roots", "storage-root", "INSTEP_MASTER_STORAGE_ROOTS", "", Kind::Words),
    key("agent_reconnect_wait", "agent-reconnect-wait", "INSTEP_MASTER_AGENT_RECONNECT_WAIT", "25", Kind::Seconds),
    key(
        "scheduler.type",
        "scheduler",
        "INSTEP_MASTER_SCHEDULER",
        "priority",
        Kind::Choice(&["priority", "fair_share"]),
    ),
    key("scheduler.preemption", "preemption", "INSTEP_MASTER_PREEMPTION", "false", Kind::Truth),
    key(
        "scheduler.fitting_policy",
        "fitting-policy",
        "INSTEP_MASTER_FITTING_POLICY",
        "best",
        Kind::Choice(&["best", "worst"]),
    ),
    key("audit_retention_days", "audit-retention-days", "INSTEP_MASTER_AUDIT_RETENTION_DAYS", "90", Kind::Days),
    key("log_retention_days", "log-retention-days", "INSTEP_MASTER_LOG_RETENTION_DAYS", "", Kind::Days),
    key("task_log_limit", "task-log-limit", "INSTEP_MASTER_TASK_LOG_LIMIT", "1GiB", Kind::Size),
    key("user_context_limit", "user-context-limit", "INSTEP_MASTER_USER_CONTEXT_LIMIT", "20GiB", Kind::Size),
    key("webhooks.signing_key", "webhooks-signing-key", "INSTEP_MASTER_WEBHOOKS_SIGNING_KEY", "", Kind::Text),
    key(
        "webhooks.private_addresses",
        "webhooks-private-addresses",
        "INSTEP_MASTER_WEBHOOKS_PRIVATE_ADDRESSES",
        "false",
        Kind::Truth,
    ),
    key("resource_pools", "resource-pools", "INSTEP_MASTER_RESOURCE_POOLS", "", Kind::Pools),
    key("session_hours", "session-hours", "INSTEP_MASTER_SESSION_HOURS", "168", Kind::Hours),
    key("roles", "roles", "INSTEP_MASTER_ROLES", "false", Kind::Truth),
    key("tls.cert", "tls-cert", "INSTEP_MASTER_TLS_CERT", "", Kind::Path),
    key("tls.key", "tls-key", "INSTEP_MASTER_TLS_KEY", "", Kind::Path),
    key("tls.self_signed", "tls-self-signed", "INSTEP_MASTER_TLS_SELF_SIGNED", "false", Kind::Truth),
    key("log.format", "log-format", "INSTEP_MASTER_LOG_FORMAT", "text", Kind::Choice(&["text", "json"])),
    key("log.level", "log-level", "INSTEP_MASTER_LOG_LEVEL", "info", Kind::Choice(&["error", "warn", "info", "debug"])),
];

/// The variable that names the file.
pub const FILE_VARIABLE: &str = "INSTEP_MASTER_CONFIG";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file.
    File(PathBuf),
    /// This variable.
    Environment(&'static str),
    /// This option, without its dashes.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => formatter.write_str("default"),
            Origin::File(path) => write!(formatter, "{}", path.display()),
            Origin::Environment(variable) => write!(formatter, "{variable}"),
            Origin::Flag(flag) => write!(formatter, "--{flag}"),
        }
    }
}

/// A setting that cannot be used: what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SettingsError {
    what: String,
    hint: String,
}

impl SettingsError {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> SettingsError {
        SettingsError { what: what.into(), hint: hint.into() }
    }

    /// What to do next.
    pub fn hint(&self) -> &str {
        &self.hint
    }
}

/// What was said, before it is asked whether it makes sense together.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, (Vec<String>, Origin)>,
    /// Where the user's programs keep their data, if the user has a home.
    data_folder: Option<PathBuf>,
    /// The password of the database, as PostgreSQL's own programs find it.
    password: Option<String>,
}

impl fmt::Debug for Settings {
    /// Without the passwords.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.rows()).finish()
    }
}

/// What somebody said for keys, by name; a list of one for everything but lists.
pub type Assignments = Vec<(&'static str, Vec<String>)>;

impl Settings {
    /// Gathers all sources. `file` is its path and text, `environment` gives variables, `flags` what the command line
    /// says, `data_folder` where the database is made unless somebody says.
    pub fn gather(
        file: Option<(PathBuf, &str)>,
        environment: impl Fn(&str) -> Option<String>,
        flags: Assignments,
        data_folder: Option<PathBuf>,
    ) -> Result<Settings, SettingsError> {
        let password = environment("PGPASSWORD").filter(|text| !text.is_empty());
        let mut settings = Settings { values: BTreeMap::new(), data_folder: data_folder.clone(), password };
        for key in KEYS {
            settings.values.insert(key.name, (split(key, key.default), Origin::Default));
        }
        if let Some(folder) = data_folder {
            let path = folder.join("instep/master.db").to_string_lossy().into_owned();
            settings.values.insert("db", (vec![path], Origin::Default));
        }
        if let Some((path, text)) = file {
            for (key, values) in read_file(&path, text)? {
                settings.set(key, values, Origin::File(path.clone()))?;
            }
        }
        for key in KEYS {
            if let Some(text) = environment(key.variable).filter(|text| !text.is_empty()) {
                settings.set(key, split(key, &text), Origin::Environment(key.variable))?;
            }
        }
        for (name, values) in flags {
            let key = KEYS.iter().find(|key| key.name == name).expect("the command line names keys of the table");
            if name == "db" && values.iter().any(|value| PostgresAddress::has_password(value)) {
                return Err(SettingsError::new(
                    format!(
                        "--{}: it says a password, which everybody on this machine sees in the list of processes",
                        key.flag
                    ),
                    "leave it out, and name a file that holds it with --db-password-file",
                ));
            }
            settings.set(key, values, Origin::Flag(key.flag))?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &'static Key, values: Vec<String>, origin: Origin) -> Result<(), SettingsError> {
        let spelled = match &origin {
            Origin::File(path) => format!("`{}` in {}", key.name, path.display()),
            other => other.to_string(),
        };
        for value in &values {
            check(key, value).map_err(|why| {
                SettingsError::new(
                    format!("{spelled}: {why}"),
                    "`instep master --help` lists the settings and what each may be",
                )
            })?;
        }
        self.values.insert(key.name, (values, origin));
        Ok(())
    }

    /// All keys with their values and where these came from, in the order of the table. Passwords are masked.
    pub fn rows(&self) -> Vec<(&'static str, String, Origin)> {
        let row = |key: &Key| {
            let (values, origin) = &self.values[key.name];
            let shown: Vec<String> = values.iter().map(|value| PostgresAddress::masked(value)).collect();
            (key.name, shown.join(", "), origin.clone())
        };
        KEYS.iter().map(row).collect()
    }

    /// Where a value came from.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.values.get(name).map(|(_, origin)| origin)
    }

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
            allowed_hosts: self.values["allow_hosts"].0.clone(),
            session: Duration::from_secs(3600 * self.text("session_hours").parse::<u64>().unwrap_or_default()),
            encryption: self.encryption()?,
            checkpoints: self.checkpoints(database),
            storage_roots: self.values["storage_roots"].0.iter().map(|root| absolute(root.into())).collect(),
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
            agreed.note(name, &self.values[name].0.join(","));
        }
        agreed.note("encryption", if self.encryption()?.is_some() { "on" } else { "off" });
        Ok(agreed)
    }

    /// The folders of checkpoints that somebody has named: every machine of several must see them.
    fn shared_folders(&self, database: &Path) -> Vec<PathBuf> {
        let named = !self.text("checkpoints").is_empty();
        let roots = self.values["storage_roots"].0.iter().map(|root| absolute(root.into()));
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
        let mut other = self.clone();
        for (name, value) in [("db", db.to_owned()), ("db_password_file", file)] {
            other.values.insert(name, (vec![value], Origin::Default));
        }
        other.options()
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
            (None, _) => Ok(PathBuf::from(self.text("db"))),
        }
    }

    /// Whether an origin is one at which browsers find the master itself.
    fn is_own_address(&self, origin: &str) -> bool {
        let own = ["localhost", "127.0.0.1", "::1", self.text("host")];
        let mut own = own.into_iter().chain(self.values["allow_hosts"].0.iter().map(String::as_str));
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

    fn text(&self, name: &str) -> &str {
        self.values[name].0.first().map_or("", String::as_str)
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

/// The words of a list, or the value itself.
fn split(key: &Key, text: &str) -> Vec<String> {
    match key.kind {
        Kind::Words => text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        Kind::Text | Kind::Port | Kind::Path | Kind::Truth | Kind::Days | Kind::Size | Kind::Hours | Kind::Seconds => {
            vec![text.to_owned()]
        }
        Kind::Origin | Kind::Pools | Kind::Choice(_) => vec![text.to_owned()],
    }
}

fn check(key: &Key, value: &str) -> Result<(), String> {
    match key.kind {
        Kind::Port => value.parse::<u16>().map(drop).map_err(|_| format!("`{value}` is not a port, 0 to 65535")),
        Kind::Truth => value.parse::<bool>().map(drop).map_err(|_| format!("`{value}` is neither true nor false")),
        Kind::Origin if is_origin(value) => Ok(()),
        Kind::Origin => {
            Err(format!("`{value}` is not an address such as https://tasks.example.org:8443, without a path"))
        }
        Kind::Seconds => match value.parse::<u32>() {
            // Agents send a ping every second, at most: some have to fit in.
            Ok(3..=86_400) => Ok(()),
            _ => Err(format!("`{value}` is not a number of seconds, 3 to 86400")),
        },
        Kind::Days => match value.parse::<u32>() {
            Ok(1..=36_500) => Ok(()),
            _ => Err(format!("`{value}` is not a number of days, 1 to 36500")),
        },
        Kind::Size if value == "none" || memory_size(value).is_some_and(|bytes| bytes > 0) => Ok(()),
        Kind::Size => Err(format!("`{value}` is neither a size such as 1GiB nor none")),
        // A hundred years, so that no time overflows.
        Kind::Hours => match value.parse::<u32>() {
            Ok(1..=876_000) => Ok(()),
            _ => Err(format!("`{value}` is not a number of hours, 1 to 876000")),
        },
        Kind::Pools => read_pools(value).map(drop),
        Kind::Choice(choices) if choices.contains(&value) => Ok(()),
        Kind::Choice(choices) => Err(format!("`{value}` is not one of {}", choices.join(", "))),
        Kind::Text | Kind::Path | Kind::Words if value.trim().is_empty() => Err("it is empty".to_owned()),
        Kind::Text | Kind::Path | Kind::Words => Ok(()),
    }
}

/// The keys that a file sets.
fn read_file(path: &Path, text: &str) -> Result<Vec<(&'static Key, Vec<String>)>, SettingsError> {
    let shown = path.display();
    let hint = "it is YAML, such as `port: 8081`; `instep master config show` lists the keys";
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| SettingsError::new(format!("cannot read {shown}: {error}"), hint))?;
    let mut found = Vec::new();
    match value {
        // A file of comments.
        Value::Null => {}
        Value::Object(fields) => collect("", &fields, &mut found, path)?,
        _ => return Err(SettingsError::new(format!("cannot read {shown}: it is not a map of keys"), hint)),
    }
    Ok(found)
}

fn collect(
    above: &str,
    fields: &serde_json::Map<String, Value>,
    found: &mut Vec<(&'static Key, Vec<String>)>,
    path: &Path,
) -> Result<(), SettingsError> {
    for (field, value) in fields {
        let name = if above.is_empty() { field.clone() } else { format!("{above}.{field}") };
        let is_level = KEYS.iter().any(|key| key.name.strip_prefix(&name).is_some_and(|rest| rest.starts_with('.')));
        let key = KEYS.iter().find(|key| key.name == name);
        match (key, value) {
            (_, Value::Null) if key.is_some() || is_level => {}
            (Some(key), Value::Array(words)) if key.kind == Kind::Words => {
                let words = words.iter().map(scalar).collect::<Option<Vec<_>>>();
                found.push((key, words.ok_or_else(|| wrong_kind(&name, "a list of words", path))?));
            }
            (Some(key), value @ Value::Array(_)) if key.kind == Kind::Pools => {
                found.push((key, vec![value.to_string()]));
            }
            (Some(key), value) => {
                let text = scalar(value).ok_or_else(|| wrong_kind(&name, "a single value", path))?;
                found.push((key, split(key, &text)));
            }
            (None, Value::Object(fields)) if is_level => collect(&name, fields, found, path)?,
            (None, _) if is_level => return Err(wrong_kind(&name, "a map of keys", path)),
            (None, _) => return Err(unknown(&name, path)),
        }
    }
    Ok(())
}

fn wrong_kind(name: &str, wanted: &str, path: &Path) -> SettingsError {
    let what = format!("`{name}` in {} must be {wanted}", path.display());
    SettingsError::new(what, "`instep master config show` lists the keys with their values")
}

fn unknown(name: &str, path: &Path) -> SettingsError {
    let near = KEYS
        .iter()
        .map(|key| (strsim::jaro_winkler(name, key.name), key.name))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    let hint = match near {
        Some((_, near)) => format!("did you mean `{near}`?"),
        None => format!("the keys are {}", KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")),
    };
    SettingsError::new(format!("unknown key `{name}` in {}", path.display()), hint)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(file: &str, variables: &[(&str, &str)], flags: Assignments) -> Result<Settings, SettingsError> {
        let environment = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
        Settings::gather(Some(("m.yaml".into(), file)), environment, flags, Some("/data".into()))
    }

    #[test]
    fn later_sources_win_and_every_value_knows_its_own() {
        let file = "port: 1\nhost: 127.0.0.2\nallow_hosts: [a, b]\n";
        let variables = [("INSTEP_MASTER_PORT", "2"), ("INSTEP_MASTER_ALLOW_HOSTS", "c, d"), ("INSTEP_MASTER_DB", "")];
        let settings = gather(file, &variables, vec![("port", vec!["3".into()])]).unwrap();
        let shown: Vec<String> =
            settings.rows().iter().map(|(name, value, origin)| format!("{name}={value} ({origin})")).collect();
        for expected in [
            "host=127.0.0.2 (m.yaml)",
            "port=3 (--port)",
            "db=/data/instep/master.db (default)",
            "allow_hosts=c, d (INSTEP_MASTER_ALLOW_HOSTS)",
        ] {
            assert!(shown.iter().any(|line| line == expected), "{expected} in {shown:?}");
        }
        let options = settings.options().unwrap();
        assert_eq!((options.port, options.allowed_hosts.len()), (3, 2));
    }

    #[test]
    fn wrong_settings_are_explained_with_their_place() {
        let cases = [
            ("prot: 1", "unknown key `prot` in m.yaml", "did you mean `port`?"),
            ("zzz: 1", "unknown key `zzz`", "the keys are host"),
            ("port: 70000", "`port` in m.yaml: `70000` is not a port", "instep master --help"),
            ("port: [1]", "`port` in m.yaml must be a single value", ""),
            ("allow_hosts: {a: 1}", "`allow_hosts` in m.yaml must be a single value", ""),
            ("tls: {crt: x}", "unknown key `tls.crt` in m.yaml", "did you mean `tls.cert`?"),
            ("tls: 1", "`tls` in m.yaml must be a map of keys", ""),
            ("log: {format: xml}", "`log.format` in m.yaml: `xml` is not one of text, json", ""),
            ("session_hours: 0", "`0` is not a number of hours", ""),
            ("proxy_url: example.org", "`proxy_url` in m.yaml: `example.org` is not an address such as https://", ""),
            ("[1]", "not a map", "YAML"),
            ("a: [", "cannot read m.yaml", "YAML"),
        ];
        for (file, what, hint) in cases {
            let error = gather(file, &[], vec![]).unwrap_err();
            assert!(
                error.to_string().contains(what) && error.hint().contains(hint),
                "{file}: {error} {}",
                error.hint()
            );
        }
        let error = gather("", &[("INSTEP_MASTER_PORT", "x")], vec![]).unwrap_err();
        assert_eq!(error.to_string(), "INSTEP_MASTER_PORT: `x` is not a port, 0 to 65535");
        assert!(gather("# nothing\n", &[], vec![]).is_ok() && gather("port:\n", &[], vec![]).is_ok());
    }

    #[test]
    fn a_database_is_a_file_or_in_postgresql() {
        for (db, what) in [
            ("postgresql+psycopg2://ann:s3cret@db/x", "at postgresql+psycopg2://ann:********@db/x"),
            ("mysql://db/x", "at mysql://db/x"),
            ("POSTGRES://ann:a?s3cret@db/x", "@"),
        ] {
            let error = gather("", &[("INSTEP_MASTER_DB", db)], vec![]).unwrap().options().unwrap_err();
            let told = error.to_string();
            assert!(told.contains(what) && !told.contains("s3cret") && !error.hint().is_empty(), "{told}");
        }
        let options = gather("db: Postgres://ann@db/x", &[], vec![]).unwrap().options().unwrap();
        assert_eq!(options.shown_database(), "ann@db:5432/x, schema instep");
        let refused = gather("", &[], vec![("db", vec!["POSTGRES://ann:s3cret@db/x".into()])]).unwrap_err();
        assert!(refused.to_string().contains("list of processes") && !refused.to_string().contains("s3cret"));
    }

    #[test]
    fn several_masters_need_a_server_and_an_address_that_stays() {
        let options = |file: &str| gather(file, &[], vec![]).unwrap().options();
        let db = "db: postgres://ann@db/x\n";
        let file = format!("{db}advertise: http://a:8080/\ncheckpoints: /c\nstorage_roots: [/d]");
        let options_of_several = options(&file).unwrap();
        assert_eq!(options_of_several.advertise.as_deref(), Some("http://a:8080"));
        assert_eq!(options_of_several.shared_folders, [PathBuf::from("/c"), PathBuf::from("/d")]);
        assert_eq!(options(db).unwrap().advertise, None);
        for (file, what) in [
            ("advertise: http://a:8080".to_owned(), "a file has one master"),
            (format!("{db}advertise: http://a:8080\nport: 0"), "another port after each start"),
            (format!("{db}advertise: http://0.0.0.0:8080"), "every machine's own address"),
            (format!("{db}advertise: 'http://[::]:8080'"), "every machine's own address"),
            (format!("{db}advertise: https://a:8080"), "not how this master serves"),
            (format!("{db}advertise: http://a:8080\ntls: {{self_signed: true}}"), "not how this master serves"),
        ] {
            let error = options(&file).unwrap_err();
            assert!(error.to_string().contains(what) && !error.hint().is_empty(), "{file}: {error}");
        }
        assert!(gather("advertise: a:8080", &[], vec![]).is_err());
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let options = |file| gather(file, &[], vec![]).unwrap().options();
        assert_eq!(options("").unwrap().encryption, None);
        assert_eq!(options("tls: {self_signed: true}").unwrap().encryption, Some(Encryption::SelfSigned));
        let files = Encryption::Files { certificate: "c".into(), key: "k".into() };
        assert_eq!(options("tls: {cert: c, key: k}").unwrap().encryption, Some(files));
        for wrong in ["tls: {cert: c}", "tls: {key: k}", "tls: {cert: c, key: k, self_signed: true}"] {
            assert!(options(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_pages_of_tasks_have_a_port_of_their_own() {
        let options = |file: &str| gather(file, &[], vec![]).unwrap().options();
        assert_eq!(options("").unwrap().proxy_port, None);
        assert_eq!(options("proxy_port: 0\nport: 0").unwrap().proxy_port, Some(0));
        assert_eq!(
            options("proxy_url: https://tasks.example.org/").unwrap().proxy_url.unwrap(),
            "https://tasks.example.org"
        );
        let error = options("proxy_port: 8080").unwrap_err();
        assert!(error.to_string().contains("own port 8080") && error.hint().contains("--proxy-port"), "{error}");
        let hosts = "port: 443\nallow_hosts: [m.example.org]\nproxy_url: ";
        for (before, url) in [
            ("proxy_url: ", "http://127.0.0.1:8080"),
            ("proxy_url: ", "http://LOCALHOST:8080/"),
            ("host: 10.0.0.1\nproxy_url: ", "http://10.0.0.1:8080"),
            (hosts, "https://m.example.org"),
        ] {
            let error = options(&format!("{before}{url}")).unwrap_err();
            let said = error.to_string().contains("own address http") && error.hint().contains("--proxy-url");
            assert!(said, "{url}: {error} {}", error.hint());
        }
        for other in ["https://t.example.org", "https://m.example.org:8443"] {
            assert!(options(&format!("{hosts}{other}")).is_ok(), "{other}");
        }
    }

    #[test]
    fn names_are_there_once() {
        for (index, key) in KEYS.iter().enumerate() {
            let same = |other: &Key| other.name == key.name || other.flag == key.flag || other.variable == key.variable;
            assert!(!KEYS[..index].iter().any(same), "{}", key.name);
        }
    }
}
