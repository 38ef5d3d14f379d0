//! From what the user typed ([`Request`]) to what it means ([`Plan`]): validation happens here, once.
//!
//! The rules and defaults are torchrun's; where it raises an assertion deep inside, this says what is wrong and what
//! to do. Nothing is started here, so that `--dry-run` shows exactly what a run would do.

mod error;
mod logs;
mod nodes;
mod preload;
mod recovery;
mod rendezvous;
mod request;
pub mod scheduler;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use instep_policy::membership::MembershipTerms;
use nix::sys::signal::Signal;

pub use self::error::PlanError;
use self::error::{error, split_hint};
use self::logs::{log_policy, nothing_shown};
use self::nodes::node_range;
pub use self::recovery::SpareKind;
pub use self::rendezvous::RendezvousMode;
use self::rendezvous::{RendezvousConf, job_terms, resolve_rendezvous};
pub use self::request::Request;
use self::scheduler::Scheduler;
use crate::control::heartbeat::Heartbeat;
use crate::control::token::JobToken;
use crate::drill::{DrillError, DrillSettings};
use crate::machine::devices::{self, WorkersPerNode};
use crate::machine::interpreter::{self, Interpreter};
use crate::machine::numa::{self, NumaBinding, Topology};
use crate::machine::nvidia;
use crate::output::logs::LogPolicy;
use crate::rendezvous::endpoint;
use crate::workers::environment::{self, JobFacts};

/// torchrun's grace period between SIGTERM and SIGKILL when a peer has failed.
const GRACE_PERIOD: Duration = Duration::from_secs(30);
/// How long an operation may take before the ranks are asked why, where the option is not given.
const HANG_AFTER: Duration = Duration::from_secs(60);

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
    /// Which of them this node keeps.
    pub spares: SpareKind,
    /// What is to be killed on purpose.
    pub drill: Option<DrillSettings>,
    /// What of it a scheduler has said.
    pub scheduler: Option<Scheduler>,
    /// How the nodes find each other.
    pub rendezvous: RendezvousMode,
    /// What the launchers of the job prove to each other, where there is such a thing.
    pub token: Option<JobToken>,
    /// What all nodes must agree on.
    pub terms: MembershipTerms,
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
    /// How silent nodes are noticed, in a job of several by c10d or with `--recover step`.
    pub heartbeat: Option<Heartbeat>,
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

/// Works out what a request means on this machine. In the batch script of a Slurm job with several nodes, ask
/// [`scheduler::start_through_srun`] first.
pub fn resolve(mut request: Request, environment: impl Fn(&str) -> Option<OsString> + Copy) -> Result<Plan, PlanError> {
    let text = |name: &str| environment(name).and_then(|value| value.into_string().ok());
    let mut conf = RendezvousConf::parse(&request.rdzv_conf)?;
    let mut warnings = conf.warnings();
    let found = scheduler::fill_in(&mut request, &mut conf, &text, &endpoint::host_name())?;
    let nodes = node_range(&request)?;
    let (_, max_nodes) = nodes;
    let max_restarts = u32::try_from(request.max_restarts)
        .map_err(|_| error(format!("--max-restarts {} is negative", request.max_restarts), "0 disables restarts"))?;
    let node_rank = usize::try_from(request.node_rank())
        .map_err(|_| error(format!("--node-rank {} is negative", request.node_rank()), "node ranks count from 0"))?;
    let runs_python = !request.no_python;
    let interpreter = find_interpreter(&request, runs_python, environment)?;
    let python = interpreter.as_ref().map(|found| found.path.clone()).unwrap_or_else(|| PathBuf::from("python3"));
    let workers = count_workers(&request, &python)?;
    let default_threads = (workers > 1 && environment(environment::OMP_NUM_THREADS).is_none()).then_some(1);

    warnings.extend(found.warnings);
    let rendezvous = resolve_rendezvous(&request, &conf, max_nodes, node_rank)?;
    let job_terms = job_terms(&conf, &rendezvous.mode, nodes, max_restarts, recovery::step_recovery(&request)?)?;
    warnings.extend(conf.misplaced(&rendezvous.mode));
    warnings.extend(endpoint_nobody_gave(&request, &rendezvous.mode, max_nodes));
    if default_threads.is_some() {
        let name = environment::OMP_NUM_THREADS;
        warnings.push(format!("{name}=1 for each of the {workers} workers; set it to change that"));
    }
    warn_about_plugins(&request, &mut warnings);
    warnings.extend(launcher_option_of_script(&request));
    let replaces_gloo = replaces_gloo(&request, text(environment::REPLACE))?;
    if replaces_gloo {
        let without_autoload = text(environment::AUTOLOAD).is_some_and(|value| value != "1");
        warn_about_replacement(interpreter.as_ref().filter(|_| runs_python), without_autoload, &mut warnings);
    }
    let logs = log_policy(&request, text(environment::LOG_LINE_PREFIX_TEMPLATE))?;
    warnings.extend(nothing_shown(&logs, workers));
    let signals = parse_signals(&request.signals_to_handle, &mut warnings);
    let command = worker_command(&request, &python)?;
    let shutdown_timeout = shutdown_timeout(request.shutdown_timeout, text(environment::SHUTDOWN_TIMEOUT))?;
    let serves_from_worker = text(environment::DISABLE_SHARED_STORE).as_deref() == Some("1");
    let worker_serves_store = !job_terms.terms.fixed_ranks && serves_from_worker;
    recovery::check_terms(&request, nodes, &job_terms.terms, worker_serves_store)?;
    warnings.extend(recovery::order(&job_terms.terms, text(environment::ORDER).as_deref()));
    let spares = match job_terms.terms.step_recovery {
        true => recovery::spares(&request, max_nodes, &command, &mut warnings)?,
        false => SpareKind::EachRank,
    };
    Ok(Plan {
        command,
        script: (runs_python && !request.module).then(|| PathBuf::from(&request.script)),
        program_name: request.script.to_string_lossy().into_owned(),
        interpreter,
        runs_python,
        preload: preload(&request, max_nodes, spares, &mut warnings)?,
        spares,
        drill: drill(&request, job_terms.terms.step_recovery)?,
        job: JobFacts {
            run_id: rendezvous.run_id,
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
        connect_timeout: job_terms.connect_timeout,
        heartbeat: job_terms.heartbeat,
        hang_after: hang_after(request.hang_after)?,
        events: request.events.clone(),
        worker_serves_store,
        token: job_token(&request, &rendezvous.mode, text(environment::JOB_TOKEN))?,
        terms: job_terms.terms,
        logs,
        worker_cpus: match request.numa_binding {
            Some(binding) => bind_workers(binding, workers)?,
            None => Vec::new(),
        },
        signals,
        grace_period: GRACE_PERIOD,
        shutdown_timeout,
        scheduler: found.scheduler,
        rendezvous: rendezvous.mode,
        warnings,
    })
}

fn count_workers(request: &Request, python: &Path) -> Result<usize, PlanError> {
    request
        .nproc_per_node()
        .parse::<WorkersPerNode>()
        .and_then(|wanted| devices::count_workers(&wanted, python))
        .map_err(|cause| split_hint(&cause.to_string()))
}

/// The job's token, where nodes meet: the variables may be set for all jobs. A file comes first.
fn job_token(
    request: &Request,
    mode: &RendezvousMode,
    variable: Option<String>,
) -> Result<Option<JobToken>, PlanError> {
    if *mode == RendezvousMode::Standalone {
        return Ok(None);
    }
    let token = match (&request.job_token_file, variable) {
        (Some(file), _) => JobToken::read(file).map(Some),
        (None, Some(value)) => JobToken::of_variable(environment::JOB_TOKEN, &value),
        (None, None) => Ok(None),
    };
    token.map_err(|cause| {
        let source = std::error::Error::source(&cause).map(|source| format!(": {source}")).unwrap_or_default();
        error(format!("{cause}{source}"), cause.hint())
    })
}

/// Between a passed-on signal and SIGKILL: the option, else the variable, else torchrun's default.
fn shutdown_timeout(option: Option<i64>, variable: Option<String>) -> Result<Duration, PlanError> {
    let seconds = match (option, variable) {
        (Some(seconds), _) => u64::try_from(seconds)
            .map_err(|_| error(format!("--shutdown-timeout {seconds} is negative"), "use 0 to kill at once"))?,
        (None, Some(given)) => given.parse().map_err(|_| {
            let name = environment::SHUTDOWN_TIMEOUT;
            error(format!("{name}=\"{given}\" is not a number of seconds"), format!("unset {name}, or set it to 30"))
        })?,
        (None, None) => GRACE_PERIOD.as_secs(),
    };
    Ok(Duration::from_secs(seconds))
}

fn hang_after(seconds: Option<f64>) -> Result<Option<Duration>, PlanError> {
    match seconds {
        None => Ok(Some(HANG_AFTER)),
        Some(0.0) => Ok(None),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| {
            error(format!("--hang-after {seconds} is not a number of seconds"), "default 60; 0 disables it")
        }),
    }
}

fn preload(
    request: &Request,
    max_nodes: usize,
    spares: SpareKind,
    warnings: &mut Vec<String>,
) -> Result<Vec<String>, PlanError> {
    let Some(text) = &request.preload else {
        let wanted = !matches!(spares, SpareKind::EachRank | SpareKind::Shared(0)) && !request.no_python;
        return Ok(if wanted { recovery::default_preload() } else { Vec::new() });
    };
    if request.no_python {
        let hint = "leave one of them out; without Python there is no interpreter to prepare";
        return Err(error("--preload and --no-python contradict each other", hint));
    }
    let modules = preload::parse(text).map_err(|(message, hint)| error(message, hint))?;
    if request.max_restarts == 0 && max_nodes == 1 && spares == SpareKind::EachRank {
        warnings.push("--preload has no effect with --max-restarts 0: workers are never restarted".to_owned());
        return Ok(Vec::new());
    }
    Ok(modules)
}

fn drill(request: &Request, step_recovery: bool) -> Result<Option<DrillSettings>, PlanError> {
    let Some(text) = &request.drill else { return Ok(None) };
    let hint = "for example --drill kill-rank=60s,kill-node=5m,seed=7,times=3";
    let settings: DrillSettings = text.parse().map_err(|cause: DrillError| error(cause.to_string(), hint))?;
    if let (Some(place), false) = (settings.at, step_recovery) {
        let hint = "add --recover step to the job; its script needs an instep.elastic.Session";
        return Err(error(format!("--drill at={} has no effect without --recover step", place.name()), hint));
    }
    if settings.kills() && request.max_restarts == 0 && !step_recovery {
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

/// Options that no script but a launcher has; others, such as `--log-dir`, may be the script's own.
const LAUNCHERS_OWN: [&str; 10] = [
    "max-restarts",
    "nnodes",
    "node-rank",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-conf",
    "rdzv-endpoint",
    "rdzv-id",
    "spares",
    "standalone",
];

/// Warns of an option that was probably meant for the launcher, and stands behind the script.
fn launcher_option_of_script(request: &Request) -> Option<String> {
    let ours = |word: &&str| {
        let name = word.strip_prefix("--").map(|name| name.split('=').next().unwrap_or(name).replace('_', "-"));
        name.is_some_and(|name| LAUNCHERS_OWN.contains(&name.as_str()))
    };
    let words = request.script_arguments.iter().filter(|_| !request.no_python).filter_map(|word| word.to_str());
    let found = words.into_iter().find(ours)?;
    let option = found.split('=').next().unwrap_or(found);
    Some(format!(
        "{option} stands behind the script and is passed to it; options of the launcher stand before the script"
    ))
}

/// Where nodes would wait for each other in vain, because nobody has said where they meet.
fn endpoint_nobody_gave(request: &Request, mode: &RendezvousMode, max_nodes: usize) -> Option<String> {
    let (host, port, option) = match mode {
        RendezvousMode::C10d { host, port, .. } => (host, port, "--rdzv-endpoint HOST:PORT"),
        RendezvousMode::Static { host, port } if max_nodes > 1 && request.master_port.is_none() => {
            (host, port, "--master-addr HOST")
        }
        RendezvousMode::Static { .. } | RendezvousMode::Standalone => return None,
    };
    let given = !request.rdzv_endpoint.is_empty() || !matches!(host.as_str(), "localhost" | "127.0.0.1");
    let missing = option.split(' ').next().unwrap_or(option);
    (!given).then(|| {
        format!(
            "there is no {missing}: the nodes meet at {host}:{port}, which other machines cannot reach; give {option} \
             of the first node, the same on all nodes"
        )
    })
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
