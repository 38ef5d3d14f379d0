//! The settings of a master as options of the command line, and from where else they come.

use std::path::PathBuf;

use clap::Args;
use instep_master::Options;
use instep_master::settings::{Assignments, FILE_VARIABLE, Settings, SettingsError};

use crate::report::Hinted;

/// Every option but `--config` is a key of the settings file too; what each means without being given is decided there.
#[derive(Debug, Default, Args)]
pub(crate) struct SettingsArguments {
    /// Address to listen on; other than loopback requires a password for every user [default: 127.0.0.1] [env:
    /// INSTEP_MASTER_HOST]
    #[arg(long, global = true, value_name = "HOST")]
    host: Option<String>,
    /// Port to listen on; 0 picks any free port [default: 8080] [env: INSTEP_MASTER_PORT]
    #[arg(long, global = true, value_name = "PORT")]
    port: Option<u16>,
    /// Port for the pages of tasks, such as TensorBoards, which browsers must reach too; 0 picks any free port
    /// [default: the port after --port, or any free port if that is taken] [env: INSTEP_MASTER_PROXY_PORT]
    #[arg(long, global = true, value_name = "PORT")]
    proxy_port: Option<u16>,
    /// Address at which browsers reach --proxy-port, if another server is in front of it, such as
    /// `https://tasks.example.org` [env: INSTEP_MASTER_PROXY_URL]
    #[arg(long, global = true, value_name = "URL")]
    proxy_url: Option<String>,
    /// Database file, created if missing; or a PostgreSQL database, postgres://USER@HOST:PORT/NAME [default:
    /// instep/master.db in your data folder] [env: INSTEP_MASTER_DB]
    #[arg(long, global = true, value_name = "FILE|URL")]
    db: Option<PathBuf>,
    /// File with the password of the PostgreSQL database [default: the variable PGPASSWORD] [env:
    /// INSTEP_MASTER_DB_PASSWORD_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    db_password_file: Option<PathBuf>,
    /// Address at which other masters of the same PostgreSQL database reach this one, such as `http://host1:8080`: one of
    /// them leads, and the others pass requests on to it and take over from it [default: there is one master] [env:
    /// INSTEP_MASTER_ADVERTISE]
    #[arg(long, global = true, value_name = "URL")]
    advertise: Option<String>,
    /// Accept requests for this host name, besides addresses and localhost; may be repeated [env:
    /// INSTEP_MASTER_ALLOW_HOSTS]
    #[arg(long = "allow-host", global = true, value_name = "NAME")]
    allow_hosts: Vec<String>,
    /// Default folder for checkpoints of experiments; agents must reach it at the same path [default:
    /// checkpoints next to the database] [env: INSTEP_MASTER_CHECKPOINTS]
    #[arg(long, global = true, value_name = "FOLDER")]
    checkpoints: Option<PathBuf>,
    /// Folder in which the master may read and delete checkpoints; may be repeated [default: every folder on a
    /// loopback address, otherwise the folder of --checkpoints] [env: INSTEP_MASTER_STORAGE_ROOTS]
    #[arg(long = "storage-root", global = true, value_name = "FOLDER")]
    storage_roots: Vec<PathBuf>,
    /// Seconds that a disconnected agent keeps its work running [default: 25] [env:
    /// INSTEP_MASTER_AGENT_RECONNECT_WAIT]
    #[arg(long, global = true, value_name = "SECONDS")]
    agent_reconnect_wait: Option<u32>,
    /// Scheduler: priority or fair_share [default: priority] [env: INSTEP_MASTER_SCHEDULER]
    #[arg(long, global = true, value_name = "RULE")]
    scheduler: Option<String>,
    /// Preempt running work for more important work [env: INSTEP_MASTER_PREEMPTION]
    #[arg(long, global = true)]
    preemption: bool,
    /// Agent that gets a task: best (fullest that fits) or worst (emptiest) [default: best] [env:
    /// INSTEP_MASTER_FITTING_POLICY]
    #[arg(long, global = true, value_name = "POLICY")]
    fitting_policy: Option<String>,
    /// Pools whose work Slurm or Kubernetes runs, in YAML, as the settings file has them [env: INSTEP_MASTER_RESOURCE_POOLS]
    #[arg(long, global = true, value_name = "YAML")]
    resource_pools: Option<String>,
    /// Hours until a login expires [default: 168] [env: INSTEP_MASTER_SESSION_HOURS]
    #[arg(long, global = true, value_name = "HOURS")]
    session_hours: Option<u32>,
    /// Days that the audit log is kept [default: 90] [env: INSTEP_MASTER_AUDIT_RETENTION_DAYS]
    #[arg(long, global = true, value_name = "DAYS")]
    audit_retention_days: Option<u32>,
    /// Days that logs are kept after their task has ended, unless its configuration says otherwise [default: for ever]
    /// [env: INSTEP_MASTER_LOG_RETENTION_DAYS]
    #[arg(long, global = true, value_name = "DAYS")]
    log_retention_days: Option<u32>,
    /// Key that requests to webhooks are signed with; better in the file or the environment, since others see options
    /// [default: none, requests are not signed] [env: INSTEP_MASTER_WEBHOOKS_SIGNING_KEY]
    #[arg(long, global = true, value_name = "KEY")]
    webhooks_signing_key: Option<String>,
    /// Let webhooks reach private networks and this machine [env: INSTEP_MASTER_WEBHOOKS_PRIVATE_ADDRESSES]
    #[arg(long, global = true)]
    webhooks_private_addresses: bool,
    /// How much the log of one task may take in the database, such as 100MiB, or none; what comes beyond it is dropped
    /// [default: 1GiB] [env: INSTEP_MASTER_TASK_LOG_LIMIT]
    #[arg(long, global = true, value_name = "SIZE")]
    task_log_limit: Option<String>,
    /// How much all the code which one user sent may take in the database, such as 5GiB, or none [default: 20GiB] [env:
    /// INSTEP_MASTER_USER_CONTEXT_LIMIT]
    #[arg(long, global = true, value_name = "SIZE")]
    user_context_limit: Option<String>,
    /// Let roles decide who sees and changes what in which workspace; without, everybody sees everything [env:
    /// INSTEP_MASTER_ROLES]
    #[arg(long, global = true)]
    roles: bool,
    /// Encrypt connections with this certificate and its chain, PEM [env: INSTEP_MASTER_TLS_CERT]
    #[arg(long, global = true, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM [env: INSTEP_MASTER_TLS_KEY]
    #[arg(long, global = true, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Encrypt connections with a self-signed certificate, created once next to the database [env:
    /// INSTEP_MASTER_TLS_SELF_SIGNED]
    #[arg(long, global = true)]
    tls_self_signed: bool,
    /// Log format: text or json [default: text] [env: INSTEP_MASTER_LOG_FORMAT]
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Log level: error, warn, info, or debug, which logs every request [default: info] [env:
    /// INSTEP_MASTER_LOG_LEVEL]
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Settings file, YAML [default: instep/master.yaml in your configuration folder, if it exists] [env:
    /// INSTEP_MASTER_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl SettingsArguments {
    /// Those of a master with this database, or with the one that file and environment say.
    pub(crate) fn with_database(db: Option<PathBuf>) -> SettingsArguments {
        SettingsArguments { db, ..SettingsArguments::default() }
    }

    /// What the settings mean together.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        Ok(self.settings()?.options().map_err(explained)?)
    }

    /// All settings, and where they come from.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let file = self.file()?;
        let file = file.as_ref().map(|(path, text)| (path.clone(), text.as_str()));
        let environment = |name: &str| std::env::var(name).ok();
        Ok(Settings::gather(file, environment, self.said(), user_folder("XDG_DATA_HOME", ".local/share"))
            .map_err(explained)?)
    }

    /// The settings for people or for programs.
    pub(crate) fn shown(&self, json: bool) -> anyhow::Result<String> {
        let rows = self.settings()?.rows();
        if json {
            let values = rows.iter().map(|(name, value, origin)| {
                ((*name).to_owned(), serde_json::json!({"value": value, "origin": origin.to_string()}))
            });
            return Ok(format!("{:#}\n", serde_json::Value::Object(values.collect())));
        }
        let width = |column: fn(&(&str, String, String)) -> usize, rows: &[(&str, String, String)]| {
            rows.iter().map(column).max().unwrap_or_default()
        };
        let said = |value: String| if value.is_empty() { "not set".to_owned() } else { value };
        let rows: Vec<_> =
            rows.into_iter().map(|(name, value, origin)| (name, said(value), origin.to_string())).collect();
        let (names, values) = (width(|row| row.0.len(), &rows), width(|row| row.1.len(), &rows));
        let line =
            |(name, value, origin): &(&str, String, String)| format!("{name:names$}  {value:values$}  {origin}\n");
        Ok(rows.iter().map(line).collect())
    }

    /// The options as they must be given again to mean the same.
    pub(crate) fn words(&self) -> Vec<String> {
        let flag = |name: &str| instep_master::settings::KEYS.iter().find(|key| key.name == name).map(|key| key.flag);
        let mut words = Vec::new();
        for (name, values) in self.said() {
            for value in values {
                let flag = flag(name).unwrap_or(name);
                // Those that take no value.
                let bare = ["tls.self_signed", "scheduler.preemption", "roles"].contains(&name);
                let word = if bare { format!("--{flag}") } else { format!("--{flag}={value}") };
                words.push(word);
            }
        }
        words.extend(self.config.as_ref().map(|path| format!("--config={}", path.display())));
        words
    }

    fn said(&self) -> Assignments {
        let mut said = Assignments::new();
        said.extend(self.host.clone().map(|host| ("host", vec![host])));
        said.extend(self.port.map(|port| ("port", vec![port.to_string()])));
        said.extend(self.proxy_port.map(|port| ("proxy_port", vec![port.to_string()])));
        said.extend(self.proxy_url.clone().map(|url| ("proxy_url", vec![url])));
        said.extend(self.db.as_ref().map(|path| ("db", vec![path.to_string_lossy().into_owned()])));
        let file = self.db_password_file.as_ref().map(|path| path.to_string_lossy().into_owned());
        said.extend(file.map(|path| ("db_password_file", vec![path])));
        said.extend(self.advertise.clone().map(|url| ("advertise", vec![url])));
        if !self.allow_hosts.is_empty() {
            said.push(("allow_hosts", self.allow_hosts.clone()));
        }
        let folder = self.checkpoints.as_ref().map(|path| path.to_string_lossy().into_owned());
        said.extend(folder.map(|path| ("checkpoints", vec![path])));
        if !self.storage_roots.is_empty() {
            let roots = self.storage_roots.iter().map(|path| path.to_string_lossy().into_owned()).collect();
            said.push(("storage_roots", roots));
        }
        let wait = self.agent_reconnect_wait.map(|seconds| seconds.to_string());
        said.extend(wait.map(|seconds| ("agent_reconnect_wait", vec![seconds])));
        said.extend(self.scheduler.clone().map(|rule| ("scheduler.type", vec![rule])));
        if self.preemption {
            said.push(("scheduler.preemption", vec!["true".to_owned()]));
        }
        said.extend(self.fitting_policy.clone().map(|policy| ("scheduler.fitting_policy", vec![policy])));
        said.extend(self.audit_retention_days.map(|days| ("audit_retention_days", vec![days.to_string()])));
        said.extend(self.webhooks_signing_key.clone().map(|key| ("webhooks.signing_key", vec![key])));
        if self.webhooks_private_addresses {
            said.push(("webhooks.private_addresses", vec!["true".to_owned()]));
        }
        said.extend(self.log_retention_days.map(|days| ("log_retention_days", vec![days.to_string()])));
        said.extend(self.task_log_limit.clone().map(|size| ("task_log_limit", vec![size])));
        said.extend(self.user_context_limit.clone().map(|size| ("user_context_limit", vec![size])));
        said.extend(self.resource_pools.clone().map(|pools| ("resource_pools", vec![pools])));
        said.extend(self.session_hours.map(|hours| ("session_hours", vec![hours.to_string()])));
        if self.roles {
            said.push(("roles", vec!["true".to_owned()]));
        }
        said.extend(self.tls_cert.as_ref().map(|path| ("tls.cert", vec![path.to_string_lossy().into_owned()])));
        said.extend(self.tls_key.as_ref().map(|path| ("tls.key", vec![path.to_string_lossy().into_owned()])));
        if self.tls_self_signed {
            said.push(("tls.self_signed", vec!["true".to_owned()]));
        }
        said.extend(self.log_format.clone().map(|format| ("log.format", vec![format])));
        said.extend(self.log_level.clone().map(|level| ("log.level", vec![level])));
        said
    }

    /// The settings file and its text. One that was named must be there.
    fn file(&self) -> anyhow::Result<Option<(PathBuf, String)>> {
        let named = self.config.clone();
        let named =
            named.or_else(|| std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from));
        let Some(path) =
            named.clone().or_else(|| Some(user_folder("XDG_CONFIG_HOME", ".config")?.join("instep/master.yaml")))
        else {
            return Ok(None);
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some((path, text))),
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let what = format!("cannot read the settings file {}: {error}", path.display());
                Err(Hinted::new(what, "name another with --config, or leave it out").into())
            }
        }
    }
}

/// A folder of the user's, by its variable or below the home folder.
fn user_folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(std::env::home_dir()?.join(below_home)))
}

pub(super) fn explained(error: SettingsError) -> Hinted {
    Hinted::new(error.to_string(), error.hint())
}
