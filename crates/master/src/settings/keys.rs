//! Everything that can be set: what it is called in the file, the environment and the command line, what counts if nobody
//! says, and what a value may be.

use instep_api::config::memory_size;

use crate::engines::options::read_pools;
use crate::sites::is_origin;

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
    pub(super) default: &'static str,
    pub(super) kind: Kind,
}

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Port,
    Path,
    List,
    Bool,
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
    key("allow_hosts", "allow-host", "INSTEP_MASTER_ALLOW_HOSTS", "", Kind::List),
    key("checkpoints", "checkpoints", "INSTEP_MASTER_CHECKPOINTS", "", Kind::Path),
    key("storage_roots", "storage-root", "INSTEP_MASTER_STORAGE_ROOTS", "", Kind::List),
    key("agent_reconnect_wait", "agent-reconnect-wait", "INSTEP_MASTER_AGENT_RECONNECT_WAIT", "25", Kind::Seconds),
    key(
        "scheduler.type",
        "scheduler",
        "INSTEP_MASTER_SCHEDULER",
        "priority",
        Kind::Choice(&["priority", "fair_share"]),
    ),
    key("scheduler.preemption", "preemption", "INSTEP_MASTER_PREEMPTION", "false", Kind::Bool),
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
        Kind::Bool,
    ),
    key("resource_pools", "resource-pools", "INSTEP_MASTER_RESOURCE_POOLS", "", Kind::Pools),
    key("session_hours", "session-hours", "INSTEP_MASTER_SESSION_HOURS", "168", Kind::Hours),
    key("roles", "roles", "INSTEP_MASTER_ROLES", "false", Kind::Bool),
    key("tls.cert", "tls-cert", "INSTEP_MASTER_TLS_CERT", "", Kind::Path),
    key("tls.key", "tls-key", "INSTEP_MASTER_TLS_KEY", "", Kind::Path),
    key("tls.self_signed", "tls-self-signed", "INSTEP_MASTER_TLS_SELF_SIGNED", "false", Kind::Bool),
    key("log.format", "log-format", "INSTEP_MASTER_LOG_FORMAT", "text", Kind::Choice(&["text", "json"])),
    key("log.level", "log-level", "INSTEP_MASTER_LOG_LEVEL", "info", Kind::Choice(&["error", "warn", "info", "debug"])),
];

/// The words of a list, or the value itself.
pub(super) fn split(key: &Key, text: &str) -> Vec<String> {
    match key.kind {
        Kind::List => text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        Kind::Text | Kind::Port | Kind::Path | Kind::Bool | Kind::Days | Kind::Size | Kind::Hours | Kind::Seconds => {
            vec![text.to_owned()]
        }
        Kind::Origin | Kind::Pools | Kind::Choice(_) => vec![text.to_owned()],
    }
}

pub(super) fn check(key: &Key, value: &str) -> Result<(), String> {
    match key.kind {
        Kind::Port => value.parse::<u16>().map(drop).map_err(|_| format!("`{value}` is not a port, 0 to 65535")),
        Kind::Bool => value.parse::<bool>().map(drop).map_err(|_| format!("`{value}` is neither true nor false")),
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
        Kind::Text | Kind::Path | Kind::List if value.trim().is_empty() => Err("it is empty".to_owned()),
        Kind::Text | Kind::Path | Kind::List => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{KEYS, Key};

    #[test]
    fn names_are_there_once() {
        for (index, key) in KEYS.iter().enumerate() {
            let same = |other: &Key| other.name == key.name || other.flag == key.flag || other.variable == key.variable;
            assert!(!KEYS[..index].iter().any(same), "{}", key.name);
        }
    }
}
