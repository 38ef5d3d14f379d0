//! From what the user typed ([`Request`]) to what it means ([`Plan`]): validation happens here, once.
//!
//! The rules and defaults are torchrun's; where it raises an assertion deep inside, this says what is wrong and what
//! to do. Nothing is started here, so that `--dry-run` shows exactly what a run would do.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use instep_policy::membership::{Quorum, Terms};
use nix::sys::signal::Signal;

use crate::devices::{self, WorkersPerNode};
use crate::drill::{DrillError, DrillSettings};
use crate::endpoint::{self, DEFAULT_DYNAMIC_PORT, DEFAULT_STATIC_PORT, Endpoint};
use crate::environment::{self, JobFacts};
use crate::interpreter::{self, Interpreter};
use crate::link::Pulse;
use crate::logs::{LogBase, LogPolicy, StreamMask};
use crate::numa::{self, NumaBinding, Topology};
use crate::nvidia;
use crate::preload;
use crate::random;

/// torchrun's grace period between SIGTERM and SIGKILL when a peer has failed.
const GRACE_PERIOD: Duration = Duration::from_secs(30);
/// When the ranks are asked why nothing moves, where the option is not given.
const HANG_AFTER: Duration = Duration::from_secs(60);

/// The options of `instep run`, as typed.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "each field is the option of the same name")]
pub struct Request {
    pub nnodes: String,
    pub nproc_per_node: String,
    pub rdzv_backend: String,
    pub rdzv_endpoint: String,
    pub rdzv_id: String,
    pub rdzv_conf: String,
    pub standalone: bool,
    pub max_restarts: i64,
    pub role: String,
    pub module: bool,
    pub no_python: bool,
    pub run_path: bool,
    pub log_dir: Option<PathBuf>,
    pub redirects: String,
    pub tee: String,
    pub log_line_prefix_template: String,
    pub local_ranks_filter: String,
    pub duplicate_stdout_filters: String,
    pub duplicate_stderr_filters: String,
    pub node_rank: i64,
    pub master_addr: String,
    pub master_port: Option<u16>,
    pub local_addr: Option<String>,
    pub numa_binding: Option<NumaBinding>,
    pub signals_to_handle: String,
    pub shutdown_timeout: Option<i64>,
    pub virtual_local_rank: bool,
    pub logs_specs: Option<String>,
    pub event_log_handler: String,
    pub python: Option<PathBuf>,
    pub preload: Option<String>,
    pub replace_gloo: bool,
    pub drill: Option<String>,
    pub fold: bool,
    pub events: Option<PathBuf>,
    pub hang_after: Option<f64>,
    pub pass_local_rank: bool,
    pub script: OsString,
    pub script_arguments: Vec<OsString>,
}

/// How the nodes of a job find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    /// One node: the store listens on loopback, on any free port.
    Alone,
    /// `static`: node 0 serves at exactly this address, node ranks are given.
    Fixed {
        /// As given, and passed to the workers.
        host: String,
        /// As given, and passed to the workers.
        port: u16,
    },
    /// `c10d`: whoever is at the endpoint serves, node ranks are assigned.
    Dynamic {
        /// The endpoint's host.
        host: String,
        /// The endpoint's port.
        port: u16,
        /// Whether this node serves, where the user said so.
        is_host: Option<bool>,
    },
}

/// What a run will do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Program and arguments of a worker, before macros are filled in.
    pub command: Vec<OsString>,
    /// The script or module, as shown to people.
    pub program_name: String,
    /// The script, where it is a file that Python will open.
    pub script: Option<PathBuf>,
    /// The interpreter; with `--no-python` there may be none.
    pub interpreter: Option<Interpreter>,
    /// The workers are started by the interpreter; false with `--no-python`.
    pub runs_python: bool,
    /// Modules that spare interpreters import ahead; without any there are no spares.
    pub preload: Vec<String>,
    /// What is to be killed on purpose.
    pub drill: Option<DrillSettings>,
    /// How the nodes meet.
    pub meeting: Meeting,
    /// What all nodes must agree on.
    pub terms: Terms,
    /// What the workers' environment is built from.
    pub job: JobFacts,
    /// `--node-rank`.
    pub node_rank: usize,
    /// `--local-addr`, else this machine's name.
    pub address: String,
    /// `--local-addr` as given.
    pub local_address: Option<String>,
    /// How long to try to reach the endpoint.
    pub connect_timeout: Duration,
    /// How silent nodes are noticed, in a c10d job of several.
    pub pulse: Option<Pulse>,
    /// After how long an operation of the backend counts as stuck, and a report is shown; none: never.
    pub hang_after: Option<Duration>,
    /// Where events go as lines of JSON.
    pub events: Option<PathBuf>,
    /// Worker rank 0 serves the store instead of the launcher.
    pub worker_serves_store: bool,
    /// Where output goes.
    pub logs: LogPolicy,
    /// The CPUs each worker of this node is bound to, by local rank; none without `--numa-binding`.
    pub worker_cpus: Vec<BTreeSet<usize>>,
    /// Signals that end the job and are passed on to the workers.
    pub signals: Vec<Signal>,
    /// Between SIGTERM and SIGKILL when a peer has failed.
    pub grace_period: Duration,
    /// Between a passed-on signal and SIGKILL.
    pub shutdown_timeout: Duration,
    /// What the user should know before the start.
    pub warnings: Vec<String>,
}

/// A command line that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PlanError {
    /// What is wrong, and where.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

fn error(message: impl Into<String>, hint: impl Into<String>) -> PlanError {
    PlanError { message: message.into(), hint: hint.into() }
}

/// An error text that carries its own `hint:` line.
fn split_hint(text: &str) -> PlanError {
    let (message, hint) = text.split_once("\nhint: ").unwrap_or((text, "run `instep doctor` to check this machine"));
    error(message, hint)
}

/// Works out what a request means on this machine.
pub fn resolve(request: Request, environment: impl Fn(&str) -> Option<OsString> + Copy) -> Result<Plan, PlanError> {
    let text = |name: &str| environment(name).and_then(|value| value.into_string().ok());
    let mut warnings = Vec::new();

    let (min_nodes, mut max_nodes) = parse_nodes(&request.nnodes)?;
    if request.standalone {
        if min_nodes > 1 {
            return Err(error(
                format!("--standalone runs on one node, but --nnodes is {}", request.nnodes),
                "leave out --standalone and give --rdzv-backend c10d with --rdzv-endpoint HOST:PORT of the first node",
            ));
        }
        max_nodes = 1;
    }
    let max_restarts = u32::try_from(request.max_restarts)
        .map_err(|_| error(format!("--max-restarts {} is negative", request.max_restarts), "0 disables restarts"))?;
    let node_rank = usize::try_from(request.node_rank)
        .map_err(|_| error(format!("--node-rank {} is negative", request.node_rank), "node ranks count from 0"))?;
    let conf = parse_conf(&request.rdzv_conf)?;

    let needs_python = !request.no_python;
    let interpreter = find_interpreter(&request, needs_python, environment)?;
    let python = interpreter.as_ref().map(|found| found.path.clone()).unwrap_or_else(|| PathBuf::from("python3"));
    let workers = request
        .nproc_per_node
        .parse::<WorkersPerNode>()
        .and_then(|wanted| devices::count_workers(&wanted, &python))
        .map_err(|cause| split_hint(&cause.to_string()))?;
    let default_threads = (workers > 1 && environment(environment::OMP_NUM_THREADS).is_none()).then_some(1);

    let (meeting, run_id) = meet(&request, &conf, max_nodes, node_rank, &mut warnings)?;
    let seconds = |key: &str, default: u64| conf_seconds(&conf, key, default);
    let fixed_ranks = matches!(meeting, Meeting::Fixed { .. });
    let join_timeout = if fixed_ranks { seconds("timeout", 900)? } else { seconds("join_timeout", 600)? };
    let pulse = pulse(&conf, &meeting, min_nodes < max_nodes)?;
    let reunion = pulse.map_or(Duration::from_secs(5), |pulse| pulse.coordinator_window());
    let connect_timeout = if fixed_ranks { join_timeout } else { seconds("read_timeout", 60)? };

    if default_threads.is_some() {
        let name = environment::OMP_NUM_THREADS;
        warnings.push(format!("{name}=1 for each of the {workers} workers; set it to change that"));
    }
    warn_about_plugins(&request, &mut warnings);
    let replaces_gloo = replaces_gloo(&request, text(environment::REPLACE))?;
    if replaces_gloo {
        let without_autoload = text(environment::AUTOLOAD).is_some_and(|value| value != "1");
        warn_about_replacement(interpreter.as_ref().filter(|_| needs_python), without_autoload, &mut warnings);
    }
    let signals = parse_signals(&request.signals_to_handle, &mut warnings);
    let command = worker_command(&request, &python)?;
    let shutdown_seconds = match (request.shutdown_timeout, text(environment::SHUTDOWN_TIMEOUT)) {
        (Some(seconds), _) => u64::try_from(seconds)
            .map_err(|_| error(format!("--shutdown-timeout {seconds} is negative"), "use 0 to kill at once"))?,
        (None, Some(given)) => given.parse().map_err(|_| {
            let name = environment::SHUTDOWN_TIMEOUT;
            error(format!("{name}=\"{given}\" is not a number of seconds"), format!("unset {name}, or set it to 30"))
        })?,
        (None, None) => GRACE_PERIOD.as_secs(),
    };
    Ok(Plan {
        command,
        script: (needs_python && !request.module).then(|| PathBuf::from(&request.script)),
        program_name: request.script.to_string_lossy().into_owned(),
        interpreter,
        runs_python: needs_python,
        preload: preload(&request, max_nodes, &mut warnings)?,
        drill: drill(&request)?,
        terms: Terms {
            // Given ranks leave no room for a smaller job.
            min_nodes: if fixed_ranks { max_nodes } else { min_nodes },
            max_nodes,
            fixed_ranks,
            max_restarts,
            last_call: seconds("last_call_timeout", 30)?,
            join_timeout,
            max_changes: conf_count(&conf, "membership_changes", 1000)?,
            settle: seconds("settle_time", 1)?,
            reunion,
            fence: pulse.map_or(Duration::ZERO, |pulse| 4 * pulse.interval),
            quorum: conf_quorum(&conf)?,
        },
        job: JobFacts {
            run_id,
            role: request.role.clone(),
            workers,
            max_restarts,
            signals_to_handle: request.signals_to_handle.clone(),
            virtual_local_rank: request.virtual_local_rank,
            default_threads,
            replaces_gloo,
        },
        node_rank,
        address: request.local_addr.clone().unwrap_or_else(endpoint::host_name),
        local_address: request.local_addr.clone(),
        connect_timeout,
        pulse,
        hang_after: hang_after(request.hang_after)?,
        events: request.events.clone(),
        worker_serves_store: !fixed_ranks && text(environment::DISABLE_SHARED_STORE).as_deref() == Some("1"),
        logs: log_policy(&request, text(environment::LOG_LINE_PREFIX_TEMPLATE))?,
        worker_cpus: match request.numa_binding {
            Some(binding) => bind_workers(binding, workers)?,
            None => Vec::new(),
        },
        signals,
        grace_period: GRACE_PERIOD,
        shutdown_timeout: Duration::from_secs(shutdown_seconds),
        meeting,
        warnings,
    })
}

fn hang_after(seconds: Option<f64>) -> Result<Option<Duration>, PlanError> {
    match seconds {
        None => Ok(Some(HANG_AFTER)),
        Some(0.0) => Ok(None),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| {
            error(
                format!("--hang-after {seconds} is not a number of seconds"),
                "the default is 60 seconds; 0 disables it",
            )
        }),
    }
}

fn preload(request: &Request, max_nodes: usize, warnings: &mut Vec<String>) -> Result<Vec<String>, PlanError> {
    let Some(text) = &request.preload else { return Ok(Vec::new()) };
    if request.no_python {
        let hint = "leave one of them out; without Python there is no interpreter to prepare";
        return Err(error("--preload and --no-python contradict each other", hint));
    }
    let modules = preload::parse(text).map_err(|(message, hint)| error(message, hint))?;
    if request.max_restarts == 0 && max_nodes == 1 {
        warnings.push("--preload has no effect with --max-restarts 0: workers are never restarted".to_owned());
        return Ok(Vec::new());
    }
    Ok(modules)
}

fn drill(request: &Request) -> Result<Option<DrillSettings>, PlanError> {
    let Some(text) = &request.drill else { return Ok(None) };
    let hint = "for example --drill kill-rank=60s,kill-node=5m,seed=7,times=3";
    let settings: DrillSettings = text.parse().map_err(|cause: DrillError| error(cause.to_string(), hint))?;
    if request.max_restarts == 0 {
        let hint = "allow one restart for every kill: --max-restarts 3";
        return Err(error("--drill needs restarts: without them, the first kill ends the job", hint));
    }
    Ok(Some(settings))
}

fn bind_workers(binding: NumaBinding, workers: usize) -> Result<Vec<BTreeSet<usize>>, PlanError> {
    let gpus = nvidia::visible_gpus();
    let topology = Topology::read(Path::new("/sys"));
    let allowed = devices::allowed_cpus().map_err(|cause| split_hint(&cause.to_string()))?;
    (0..workers)
        .map(|local_rank| numa::cpus_for(binding, local_rank, &gpus, &topology, &allowed))
        .collect::<Result<_, _>>()
        .map_err(|cause| split_hint(&cause.to_string()))
}

fn find_interpreter(
    request: &Request,
    needed: bool,
    environment: impl Fn(&str) -> Option<OsString> + Copy,
) -> Result<Option<Interpreter>, PlanError> {
    let binary = std::env::current_exe().ok();
    match interpreter::find(request.python.as_deref(), environment, binary.as_deref()) {
        Ok(found) => Ok(Some(found)),
        Err(_) if !needed => Ok(None),
        Err(cause) => Err(split_hint(&cause.to_string())),
    }
}

fn parse_nodes(text: &str) -> Result<(usize, usize), PlanError> {
    let hint = "give a number (--nnodes 2) or a range (--nnodes 1:4)";
    let number = |part: &str| part.trim().parse::<usize>();
    let (min, max) = match text.split_once(':') {
        None => (number(text), number(text)),
        Some((min, max)) => (number(min), number(max)),
    };
    let (Ok(min), Ok(max)) = (min, max) else {
        return Err(error(format!("--nnodes \"{text}\" is not a number of nodes"), hint));
    };
    if min == 0 {
        return Err(error(format!("--nnodes {text}: a job needs at least one node"), hint));
    }
    if min > max {
        return Err(error(
            format!("--nnodes {text}: the minimum is larger than the maximum"),
            format!("did you mean --nnodes {max}:{min}?"),
        ));
    }
    Ok((min, max))
}

/// `k=v,k=v`; torchrun's rules.
fn parse_conf(text: &str) -> Result<BTreeMap<String, String>, PlanError> {
    let invalid = || {
        error(
            format!("--rdzv-conf \"{text}\" is not a list of settings"),
            "use comma-separated KEY=VALUE pairs: --rdzv-conf join_timeout=600,read_timeout=60",
        )
    };
    text.split(',')
        .map(str::trim)
        .filter(|_| !text.trim().is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(invalid)?;
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() || value.is_empty() { Err(invalid()) } else { Ok((key.to_owned(), value.to_owned())) }
        })
        .collect()
}

fn conf_seconds(conf: &BTreeMap<String, String>, key: &str, default: u64) -> Result<Duration, PlanError> {
    let Some(text) = conf.get(key) else { return Ok(Duration::from_secs(default)) };
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        error(
            format!("--rdzv-conf {key}={text}: not a number of seconds above 0"),
            format!("for example {key}={default}"),
        )
    })
}

fn conf_count(conf: &BTreeMap<String, String>, key: &str, default: u32) -> Result<u32, PlanError> {
    let Some(text) = conf.get(key) else { return Ok(default) };
    text.parse().map_err(|_| {
        error(format!("--rdzv-conf {key}={text}: not a whole number"), format!("for example {key}={default}"))
    })
}

fn conf_quorum(conf: &BTreeMap<String, String>) -> Result<Quorum, PlanError> {
    match conf.get("quorum").map(String::as_str) {
        None | Some("majority") => Ok(Quorum::Majority),
        Some("min") => Ok(Quorum::Minimum),
        Some(other) => {
            Err(error(format!("--rdzv-conf quorum={other}: neither majority nor min"), "for example quorum=majority"))
        }
    }
}

/// How silence is noticed: torchrun's settings, with its defaults where the number of nodes is fixed.
fn pulse(conf: &BTreeMap<String, String>, meeting: &Meeting, elastic: bool) -> Result<Option<Pulse>, PlanError> {
    if !matches!(meeting, Meeting::Dynamic { .. }) {
        return Ok(None);
    }
    let (interval, attempts) = if elastic { (1, 5) } else { (5, 3) };
    let interval = conf_seconds(conf, "keep_alive_interval", interval)?;
    let attempts = conf_count(conf, "keep_alive_max_attempt", attempts)?;
    if attempts == 0 {
        let hint = "use 1 to drop a node after one silent interval";
        return Err(error("--rdzv-conf keep_alive_max_attempt=0: every node would be lost", hint));
    }
    Ok(Some(Pulse { interval, attempts }))
}

fn conf_bool(conf: &BTreeMap<String, String>, key: &str) -> Result<Option<bool>, PlanError> {
    let Some(text) = conf.get(key) else { return Ok(None) };
    match text.to_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" => Ok(Some(true)),
        "0" | "false" | "f" | "no" | "n" => Ok(Some(false)),
        _ => Err(error(format!("--rdzv-conf {key}={text}: neither true nor false"), format!("for example {key}=true"))),
    }
}

/// torchrun's default resolution: which rendezvous the options mean, and the job's id.
fn meet(
    request: &Request,
    conf: &BTreeMap<String, String>,
    max_nodes: usize,
    node_rank: usize,
    warnings: &mut Vec<String>,
) -> Result<(Meeting, String), PlanError> {
    const WITHOUT_EFFECT: [&str; 3] = ["close_timeout", "heartbeat_timeout", "cas_backoff_max_seconds"];
    for key in conf.keys().filter(|key| WITHOUT_EFFECT.contains(&key.as_str())) {
        warnings
            .push(format!("--rdzv-conf {key} has no effect: a connection that ends is noticed at once in any case"));
    }
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
    for key in conf.keys().filter(|key| !KNOWN.contains(&key.as_str())) {
        warnings.push(format!("--rdzv-conf {key} is not a setting of this rendezvous and has no effect"));
    }
    let is_static = request.rdzv_backend == "static";
    let plain = is_static && request.rdzv_endpoint.is_empty() && request.master_port.is_none() && max_nodes == 1;
    if request.standalone || plain {
        return Ok((Meeting::Alone, random_uuid()));
    }
    let parse =
        |text: &str| Endpoint::parse(text).map_err(|cause| error(cause.to_string(), "write HOST:PORT or [IPv6]:PORT"));
    let run_id = request.rdzv_id.clone();
    match request.rdzv_backend.as_str() {
        "static" => {
            let (host, port) = if request.rdzv_endpoint.is_empty() {
                (request.master_addr.clone(), request.master_port.unwrap_or(DEFAULT_STATIC_PORT))
            } else {
                let endpoint = parse(&request.rdzv_endpoint)?;
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
                        request.nnodes,
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
            Ok((Meeting::Fixed { host, port }, run_id))
        }
        "c10d" => {
            if conf.get("store_type").is_some_and(|kind| kind != "tcp") {
                return Err(error(
                    "--rdzv-conf store_type=file is not supported",
                    "leave it out: the launcher serves the store itself",
                ));
            }
            let endpoint = parse(&request.rdzv_endpoint)?;
            if max_nodes == 1 {
                return Ok((Meeting::Alone, run_id));
            }
            let port = endpoint.port.unwrap_or(DEFAULT_DYNAMIC_PORT);
            if port == 0 {
                return Err(error(
                    format!("--rdzv-endpoint {}: the other nodes could not know the port", request.rdzv_endpoint),
                    "choose a free port, the same on all nodes",
                ));
            }
            Ok((Meeting::Dynamic { host: endpoint.host, port, is_host: conf_bool(conf, "is_host")? }, run_id))
        }
        "etcd" | "etcd-v2" => Err(error(
            format!("--rdzv-backend {} is not supported: instep needs no etcd", request.rdzv_backend),
            "use --rdzv-backend c10d with --rdzv-endpoint HOST:PORT of the first node",
        )),
        other => Err(error(
            format!("--rdzv-backend \"{other}\" is not known"),
            "use c10d or static; rendezvous plugins of torchrun need torchrun itself",
        )),
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

fn warn_about_plugins(request: &Request, warnings: &mut Vec<String>) {
    if let Some(name) = &request.logs_specs {
        warnings.push(format!(
            "--logs-specs {name} is a Python plugin of torchrun and has no effect; logs go to --log-dir"
        ));
    }
    if request.event_log_handler != "null" {
        let name = &request.event_log_handler;
        warnings.push(format!("--event-log-handler {name} is a Python plugin of torchrun and has no effect"));
    }
    if request.run_path {
        warnings.push("--run-path has no effect: the script always runs in a fresh interpreter".to_owned());
    }
}

/// Whether workers use instep where they ask for gloo: by the option, or by the variable that it sets.
fn replaces_gloo(request: &Request, variable: Option<String>) -> Result<bool, PlanError> {
    match variable.as_deref() {
        None | Some("") => Ok(request.replace_gloo),
        Some("gloo") => Ok(true),
        Some(other) => {
            let name = environment::REPLACE;
            Err(error(
                format!("{name}=\"{other}\": only gloo can be replaced"),
                format!("unset {name}, or set it to gloo"),
            ))
        }
    }
}

/// Says why workers will not find what replaces gloo: torch loads it as an entry point of the package.
fn warn_about_replacement(python: Option<&Interpreter>, without_autoload: bool, warnings: &mut Vec<String>) {
    if without_autoload {
        let name = environment::AUTOLOAD;
        warnings.push(format!("gloo is not replaced: {name} in the environment keeps torch from loading instep"));
    } else if let Some(python) = python
        && let Ok(found) = python.inspect()
        && found.installed("instep").is_none()
    {
        let path = python.path.display();
        warnings.push(format!("gloo is not replaced: {path} has no package instep; install the wheel there"));
    }
}

fn worker_command(request: &Request, python: &Path) -> Result<Vec<OsString>, PlanError> {
    if request.no_python && request.module {
        return Err(error("--no-python and --module contradict each other", "leave one of them out"));
    }
    if request.no_python && request.pass_local_rank {
        let hint = "add --use-env; the program finds its rank in LOCAL_RANK";
        return Err(error("--no-python cannot be used without --use-env", hint));
    }
    let mut command: Vec<OsString> = Vec::new();
    if !request.no_python {
        command.extend([python.as_os_str().to_owned(), "-u".into()]);
        if request.module && !request.run_path {
            command.push("-m".into());
        }
    }
    command.push(request.script.clone());
    if request.pass_local_rank {
        command.push("--local-rank=${local_rank}".into());
    }
    command.extend(request.script_arguments.iter().cloned());
    Ok(command)
}

fn log_policy(request: &Request, prefix_from_environment: Option<String>) -> Result<LogPolicy, PlanError> {
    let mask = |option: &str, text: &str| {
        text.parse::<StreamMask>().map_err(|cause| {
            error(format!("{option}: {cause}"), "0 none, 1 stdout, 2 stderr, 3 both, or by local rank: 0:3,1:1")
        })
    };
    let filter = |text: &str| -> Result<Option<BTreeSet<usize>>, PlanError> {
        if text.is_empty() {
            return Ok(None);
        }
        let ranks: Result<BTreeSet<usize>, _> = text.split(',').map(|rank| rank.trim().parse()).collect();
        ranks.map(Some).map_err(|_| {
            error(
                format!("--local-ranks-filter \"{text}\" is not a list of local ranks"),
                "for example --local-ranks-filter 0,1",
            )
        })
    };
    let template = Some(request.log_line_prefix_template.clone()).filter(|text| !text.is_empty());
    Ok(LogPolicy {
        base: match &request.log_dir {
            None => LogBase::Temporary,
            Some(path) if path.as_os_str() == "/dev/null" => LogBase::Nowhere,
            Some(path) => LogBase::Directory(path.clone()),
        },
        redirects: mask("--redirects", &request.redirects)?,
        tee: mask("--tee", &request.tee)?,
        filter: filter(&request.local_ranks_filter)?,
        prefix_template: template.or(prefix_from_environment.filter(|text| !text.is_empty())),
        duplicate_stdout: split_filters(&request.duplicate_stdout_filters),
        duplicate_stderr: split_filters(&request.duplicate_stderr_filters),
        fold: request.fold,
    })
}

/// A comma list in which `,,` stands for a comma.
fn split_filters(text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    text.replace(",,", "\0").split(',').map(|part| part.replace('\0', ",")).collect()
}

/// Names torchrun does not know are skipped with a warning there, so here too.
fn parse_signals(text: &str, warnings: &mut Vec<String>) -> Vec<Signal> {
    let mut signals = Vec::new();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match name.parse::<Signal>() {
            // Cannot be caught, or is how the launcher learns of exits.
            Ok(Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGCHLD) => {
                warnings.push(format!("--signals-to-handle: {name} cannot be forwarded"));
            }
            Ok(signal) => signals.push(signal),
            Err(_) => warnings.push(format!("--signals-to-handle: {name} is not a signal of this system")),
        }
    }
    signals
}
