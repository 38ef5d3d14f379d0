//! Which rendezvous the options mean, and its settings (`--rdzv-conf`): torchrun's rules.

use std::collections::BTreeMap;
use std::time::Duration;

use instep_policy::membership::{MembershipTerms, Quorum};

use super::error::{PlanError, error};
use super::request::Request;
use crate::control::heartbeat::Heartbeat;
use crate::control::text;
use crate::random;
use crate::rendezvous::endpoint::{DEFAULT_DYNAMIC_PORT, DEFAULT_STATIC_PORT, Endpoint};

/// The settings of torchrun and of this rendezvous.
const KNOWN: [&str; 15] = [
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "cas_backoff_max_seconds",
    "read_timeout",
    "is_host",
    "store_type",
    "timeout",
    "rank",
    "membership_changes",
    "settle_time",
    "quorum",
];
/// Those that torchrun knows and that change nothing here.
const WITHOUT_EFFECT: [&str; 3] = ["close_timeout", "heartbeat_timeout", "cas_backoff_max_seconds"];

/// torchrun's settings, for a fixed number of nodes.
const FIXED_HEARTBEAT: Heartbeat = Heartbeat { interval: Duration::from_secs(5), attempts: 3 };
const ELASTIC_HEARTBEAT: Heartbeat = Heartbeat { interval: Duration::from_secs(1), attempts: 5 };
/// Ranks of a silent node move to others within 5 s, and have been killed by their launcher a second before.
const RECOVERY_HEARTBEAT: Heartbeat = Heartbeat { interval: Duration::from_millis(500), attempts: 6 };
/// Until when silence has to be noticed.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(15);

/// How the nodes of a job find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "host and port are those of the endpoint")]
pub enum RendezvousMode {
    /// One node: the store listens on loopback, on any free port.
    Standalone,
    /// `static`: node 0 serves at exactly this address, node ranks are given.
    Static {
        /// The address that workers are told to connect to, as given.
        host: String,
        port: u16,
    },
    /// `c10d`: whoever is at the endpoint serves, node ranks are assigned.
    C10d {
        host: String,
        port: u16,
        /// Whether this node serves, where the user said so.
        is_host: Option<bool>,
    },
}

/// A rendezvous and the id of the job that meets there.
#[derive(Debug)]
pub(super) struct ResolvedRendezvous {
    pub(super) mode: RendezvousMode,
    pub(super) run_id: String,
}

/// torchrun's default resolution: which rendezvous the options mean.
pub(super) fn resolve_rendezvous(
    request: &Request,
    conf: &RendezvousConf,
    max_nodes: usize,
    node_rank: usize,
) -> Result<ResolvedRendezvous, PlanError> {
    let is_static = request.rdzv_backend() == "static";
    let plain = is_static && request.rdzv_endpoint.is_empty() && request.master_port.is_none() && max_nodes == 1;
    if request.standalone || plain {
        return Ok(ResolvedRendezvous { mode: RendezvousMode::Standalone, run_id: random_uuid() });
    }
    let mode = match request.rdzv_backend() {
        "static" => static_rendezvous(request, max_nodes, node_rank),
        "c10d" => c10d_rendezvous(request, conf, max_nodes),
        "etcd" | "etcd-v2" => Err(error(
            format!("--rdzv-backend {} is not supported: instep needs no etcd", request.rdzv_backend()),
            "use --rdzv-backend c10d with --rdzv-endpoint HOST:PORT of the first node",
        )),
        other => Err(error(
            format!("--rdzv-backend \"{other}\" is not known"),
            "use c10d or static; rendezvous plugins of torchrun need torchrun itself",
        )),
    }?;
    check_name("--rdzv-id", request.rdzv_id())?;
    check_name("--role", &request.role)?;
    Ok(ResolvedRendezvous { mode, run_id: request.rdzv_id().to_owned() })
}

/// Nodes compare names, and read them without what cannot be shown.
fn check_name(option: &str, name: &str) -> Result<(), PlanError> {
    let Some(hidden) = name.chars().find(|letter| text::is_hidden(*letter)) else { return Ok(()) };
    Err(error(
        format!("{option} \"{}\" has a character that cannot be shown: {hidden:?}", name.escape_debug()),
        "leave it out; a file with line ends of Windows, for example, leaves a \\r at the end",
    ))
}

fn static_rendezvous(request: &Request, max_nodes: usize, node_rank: usize) -> Result<RendezvousMode, PlanError> {
    let (host, port) = if request.rdzv_endpoint.is_empty() {
        (request.master_addr().to_owned(), request.master_port.unwrap_or(DEFAULT_STATIC_PORT))
    } else {
        let endpoint = parse_endpoint(&request.rdzv_endpoint)?;
        let port = endpoint.port.ok_or_else(|| {
            error(
                format!("--rdzv-endpoint {} has no port", request.rdzv_endpoint),
                format!("the static rendezvous needs one: {}:{DEFAULT_STATIC_PORT}", request.rdzv_endpoint),
            )
        })?;
        (endpoint.host, port)
    };
    if node_rank >= max_nodes {
        return Err(error(
            format!(
                "--node-rank {node_rank} does not exist: --nnodes {} has node ranks 0 to {}",
                request.nnodes(),
                max_nodes - 1
            ),
            "number the nodes from 0",
        ));
    }
    if port == 0 && max_nodes > 1 {
        return Err(error(
            "--master-port 0: the other nodes could not know the port",
            "choose a free port, the same on all nodes",
        ));
    }
    Ok(RendezvousMode::Static { host, port })
}

fn c10d_rendezvous(request: &Request, conf: &RendezvousConf, max_nodes: usize) -> Result<RendezvousMode, PlanError> {
    if conf.get("store_type").is_some_and(|kind| kind != "tcp") {
        return Err(error(
            "--rdzv-conf store_type=file is not supported",
            "leave it out: the launcher serves the store itself",
        ));
    }
    let endpoint = parse_endpoint(&request.rdzv_endpoint)?;
    if max_nodes == 1 {
        return Ok(RendezvousMode::Standalone);
    }
    let port = endpoint.port.unwrap_or(DEFAULT_DYNAMIC_PORT);
    if port == 0 {
        return Err(error(
            format!("--rdzv-endpoint {}: the other nodes could not know the port", request.rdzv_endpoint),
            "choose a free port, the same on all nodes",
        ));
    }
    Ok(RendezvousMode::C10d { host: endpoint.host, port, is_host: conf.boolean("is_host")? })
}

pub(super) fn parse_endpoint(text: &str) -> Result<Endpoint, PlanError> {
    Endpoint::parse(text).map_err(|cause| error(cause.to_string(), "write HOST:PORT or [IPv6]:PORT"))
}

/// How the nodes of a job are to get on with each other.
#[derive(Debug)]
pub(super) struct JobTerms {
    pub(super) terms: MembershipTerms,
    pub(super) connect_timeout: Duration,
    /// In a job of several nodes, by c10d or with `--recover step`.
    pub(super) heartbeat: Option<Heartbeat>,
}

/// What all nodes must agree on, and how long they wait for each other.
pub(super) fn job_terms(
    conf: &RendezvousConf,
    mode: &RendezvousMode,
    (min_nodes, max_nodes): (usize, usize),
    max_restarts: u32,
    step_recovery: bool,
) -> Result<JobTerms, PlanError> {
    let fixed_ranks = matches!(mode, RendezvousMode::Static { .. });
    let join_timeout = if fixed_ranks { conf.seconds("timeout", 900)? } else { conf.seconds("join_timeout", 600)? };
    let defaults = match step_recovery {
        true => RECOVERY_HEARTBEAT,
        false if min_nodes < max_nodes => ELASTIC_HEARTBEAT,
        false => FIXED_HEARTBEAT,
    };
    let heartbeat = match mode {
        RendezvousMode::C10d { .. } => Some(conf.heartbeat(defaults)?),
        // torchrun's nodes, which take no part in recovery, send none.
        RendezvousMode::Static { .. } if step_recovery && max_nodes > 1 => Some(conf.heartbeat(defaults)?),
        RendezvousMode::Standalone | RendezvousMode::Static { .. } => None,
    };
    if let Some(heartbeat) = heartbeat.filter(|_| step_recovery) {
        check_notice_time(heartbeat)?;
    }
    let connect_timeout = if fixed_ranks { join_timeout } else { conf.seconds("read_timeout", 60)? };
    let terms = MembershipTerms {
        // Given ranks leave no room for a smaller job.
        min_nodes: if fixed_ranks { max_nodes } else { min_nodes },
        max_nodes,
        fixed_ranks,
        max_restarts,
        last_call: conf.seconds("last_call_timeout", 30)?,
        join_timeout,
        max_changes: conf.count("membership_changes", 1000)?,
        settle: conf.seconds("settle_time", 1)?,
        rejoin_window: heartbeat.map_or(Duration::from_secs(5), |heartbeat| heartbeat.coordinator_window()),
        fence: heartbeat.map_or(Duration::ZERO, |heartbeat| 4 * heartbeat.interval),
        quorum: conf.quorum()?,
        step_recovery,
    };
    Ok(JobTerms { terms, connect_timeout, heartbeat })
}

/// Sessions that have lost a peer wait 20 s for the launcher to notice that too.
fn check_notice_time(heartbeat: Heartbeat) -> Result<(), PlanError> {
    let noticed = heartbeat.coordinator_window() + heartbeat.interval;
    if noticed <= NOTICE_TIMEOUT {
        return Ok(());
    }
    let message = format!(
        "--rdzv-conf: a silent node would be noticed after {} s, which is too late for --recover step",
        noticed.as_secs_f64()
    );
    let limit = NOTICE_TIMEOUT.as_secs();
    Err(error(message, format!("keep_alive_interval × (keep_alive_max_attempt + 3) must be {limit} s at most")))
}

/// The settings of `--rdzv-conf`.
#[derive(Debug)]
pub(super) struct RendezvousConf(BTreeMap<String, String>);

impl RendezvousConf {
    /// `k=v,k=v`, by torchrun's rules.
    pub(super) fn parse(text: &str) -> Result<RendezvousConf, PlanError> {
        let invalid = || {
            error(
                format!("--rdzv-conf \"{text}\" is not a list of settings"),
                "use comma-separated KEY=VALUE pairs: --rdzv-conf join_timeout=600,read_timeout=60",
            )
        };
        let pairs = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(invalid)?;
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() || value.is_empty() { Err(invalid()) } else { Ok((key.to_owned(), value.to_owned())) }
        });
        Ok(RendezvousConf(pairs.collect::<Result<_, _>>()?))
    }

    /// Says which settings change nothing.
    pub(super) fn warnings(&self) -> Vec<String> {
        let without_effect = self.0.keys().filter(|key| WITHOUT_EFFECT.contains(&key.as_str())).map(|key| {
            format!("--rdzv-conf {key} has no effect: a connection that ends is noticed at once in any case")
        });
        let unknown = self
            .0
            .keys()
            .filter(|key| !KNOWN.contains(&key.as_str()))
            .map(|key| format!("--rdzv-conf {key} is not a setting of this rendezvous and has no effect"));
        without_effect.chain(unknown).collect()
    }

    /// Says which settings are those of the other rendezvous.
    pub(super) fn misplaced(&self, mode: &RendezvousMode) -> Vec<String> {
        let (name, misplaced, hint): (_, &[&str], _) = match mode {
            RendezvousMode::Standalone => return Vec::new(),
            RendezvousMode::C10d { .. } => ("c10d", &["timeout"], "use join_timeout and read_timeout"),
            RendezvousMode::Static { .. } => ("static", &["join_timeout", "read_timeout"], "use timeout"),
        };
        let misplaced = misplaced.iter().filter(|key| self.has(key));
        misplaced.map(|key| format!("--rdzv-conf {key} has no effect with --rdzv-backend {name}: {hint}")).collect()
    }

    /// Whether the user has set it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Sets what the user has not set.
    pub(super) fn set_default(&mut self, key: &str, value: &str) {
        self.0.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn seconds(&self, key: &str, default: u64) -> Result<Duration, PlanError> {
        self.duration(key, Duration::from_secs(default))
    }

    fn duration(&self, key: &str, default: Duration) -> Result<Duration, PlanError> {
        let Some(text) = self.get(key) else { return Ok(default) };
        let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
            error(
                format!("--rdzv-conf {key}={text}: not a number of seconds above 0"),
                format!("for example {key}={}", default.as_secs_f64()),
            )
        })
    }

    fn count(&self, key: &str, default: u32) -> Result<u32, PlanError> {
        let Some(text) = self.get(key) else { return Ok(default) };
        text.parse().map_err(|_| {
            error(format!("--rdzv-conf {key}={text}: not a whole number"), format!("for example {key}={default}"))
        })
    }

    fn quorum(&self) -> Result<Quorum, PlanError> {
        match self.get("quorum") {
            None | Some("majority") => Ok(Quorum::Majority),
            Some("min") => Ok(Quorum::Minimum),
            Some(other) => Err(error(
                format!("--rdzv-conf quorum={other}: neither majority nor min"),
                "for example quorum=majority",
            )),
        }
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, PlanError> {
        let Some(text) = self.get(key) else { return Ok(None) };
        match text.to_lowercase().as_str() {
            "1" | "true" | "t" | "yes" | "y" => Ok(Some(true)),
            "0" | "false" | "f" | "no" | "n" => Ok(Some(false)),
            _ => Err(error(
                format!("--rdzv-conf {key}={text}: neither true nor false"),
                format!("for example {key}=true"),
            )),
        }
    }

    /// How silence is noticed: torchrun's settings.
    fn heartbeat(&self, defaults: Heartbeat) -> Result<Heartbeat, PlanError> {
        let interval = self.duration("keep_alive_interval", defaults.interval)?;
        let attempts = self.count("keep_alive_max_attempt", defaults.attempts)?;
        if attempts == 0 {
            let hint = "use 1 to drop a node after one silent interval";
            return Err(error("--rdzv-conf keep_alive_max_attempt=0: every node would be lost", hint));
        }
        Ok(Heartbeat { interval, attempts })
    }
}

fn random_uuid() -> String {
    // A job id has to be unlikely to repeat, nothing more: a failed read leaves a valid one.
    let mut bytes = random::bytes::<16>().unwrap_or_default();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
