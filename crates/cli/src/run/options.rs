//! The command line of `instep run`: torchrun's options in both spellings, and a few of our own.
//!
//! Values stay text here; [`instep_launch::plan`] says what they mean. `PET_*` variables give defaults, as for torchrun.

#![allow(rustdoc::broken_intra_doc_links, reason = "the comments are help texts, whose brackets mean options")]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use instep_launch::machine::numa::NumaBinding;
use instep_launch::{PlanError, Request};

/// How `--dry-run` speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRunFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What concerns only the command line itself.
#[derive(Debug, Clone)]
pub(crate) struct OwnOptions {
    pub(crate) dry_run: Option<DryRunFormat>,
    pub(crate) summary_json: Option<PathBuf>,
    pub(crate) propagate_exit_code: bool,
    pub(crate) no_status: bool,
    pub(crate) drill_json: Option<PathBuf>,
}

/// `instep launch`.
#[derive(Debug, Args)]
pub(crate) struct LaunchArguments {
    /// Do not pass --local-rank to the script; it reads LOCAL_RANK
    #[arg(long, alias = "use_env", help_heading = "Program")]
    pub(crate) use_env: bool,
    #[command(flatten)]
    pub(crate) run: RunArguments,
}

/// `instep run`.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Number of nodes, or a range MIN:MAX [default: 1, or those of a Slurm job]
    #[arg(long, value_name = "N|MIN:MAX", env = "PET_NNODES", hide_env = true, help_heading = "Nodes and workers")]
    nnodes: Option<String>,
    /// Number of workers on this node, or cpu, gpu, xpu, auto [default: 1]
    #[arg(
        long,
        alias = "nproc_per_node",
        value_name = "N|cpu|gpu|auto",
        env = "PET_NPROC_PER_NODE",
        hide_env = true,
        allow_negative_numbers = true,
        help_heading = "Nodes and workers"
    )]
    nproc_per_node: Option<String>,
    /// Rank of this node [default: 0, or what Slurm or an indexed Job of Kubernetes says]
    #[arg(
        long,
        alias = "node_rank",
        value_name = "N",
        env = "PET_NODE_RANK",
        hide_env = true,
        allow_negative_numbers = true,
        help_heading = "Nodes and workers"
    )]
    node_rank: Option<i64>,
    /// Role of the workers
    #[arg(long, default_value = "default", env = "PET_ROLE", hide_env = true, help_heading = "Nodes and workers")]
    role: String,
    /// Maximum number of restarts of all workers before the job fails
    #[arg(
        long,
        alias = "max_restarts",
        default_value_t = 0,
        value_name = "N",
        env = "PET_MAX_RESTARTS",
        hide_env = true,
        allow_negative_numbers = true,
        help_heading = "Nodes and workers"
    )]
    max_restarts: i64,
    /// When a worker is lost: round restarts all workers, step replaces that one (the script needs
    /// instep.elastic.Session)
    #[arg(long, default_value = "round", value_name = "round|step", help_heading = "Nodes and workers")]
    recover: String,
    /// Spare processes for --recover step: so many per node, which also take over ranks of lost nodes, or hot: one per rank,
    /// which has run the script up to its loop [default: 1]
    #[arg(long, value_name = "N|hot", allow_hyphen_values = true, help_heading = "Nodes and workers")]
    spares: Option<String>,

    /// Run on one node, on any free port; no rendezvous options needed
    #[arg(long, help_heading = "Rendezvous")]
    standalone: bool,
    /// static (you set node ranks) or c10d (node ranks are assigned) [default: static; c10d under a scheduler]
    #[arg(
        long,
        alias = "rdzv_backend",
        value_name = "NAME",
        env = "PET_RDZV_BACKEND",
        hide_env = true,
        help_heading = "Rendezvous"
    )]
    rdzv_backend: Option<String>,
    /// Address of the first node, where the nodes meet: HOST[:PORT] or [IPv6]:PORT
    #[arg(
        long,
        alias = "rdzv_endpoint",
        default_value = "",
        value_name = "HOST:PORT",
        env = "PET_RDZV_ENDPOINT",
        hide_env = true,
        hide_default_value = true,
        help_heading = "Rendezvous"
    )]
    rdzv_endpoint: String,
    /// Id of the job, the same on all nodes [default: none, or that of a Slurm step]
    #[arg(
        long,
        alias = "rdzv_id",
        value_name = "ID",
        env = "PET_RDZV_ID",
        hide_env = true,
        help_heading = "Rendezvous"
    )]
    rdzv_id: Option<String>,
    /// Rendezvous settings: KEY=VALUE,... (join_timeout, last_call_timeout, read_timeout, is_host, timeout)
    #[arg(
        long,
        alias = "rdzv_conf",
        default_value = "",
        value_name = "SETTINGS",
        env = "PET_RDZV_CONF",
        hide_env = true,
        hide_default_value = true,
        help_heading = "Rendezvous"
    )]
    rdzv_conf: String,
    /// File with the job's token, the same on all nodes: whoever does not have it cannot join (see instep job-token)
    #[arg(
        long,
        alias = "job_token_file",
        value_name = "FILE",
        env = "INSTEP_JOB_TOKEN_FILE",
        hide_env = true,
        help_heading = "Rendezvous"
    )]
    job_token_file: Option<PathBuf>,
    /// Address of the first node (static rendezvous) [default: 127.0.0.1]
    #[arg(
        long,
        alias = "master_addr",
        value_name = "HOST",
        env = "PET_MASTER_ADDR",
        hide_env = true,
        help_heading = "Rendezvous"
    )]
    master_addr: Option<String>,
    /// Port of the first node (static rendezvous) [default: 29500, or any free port on a single node]
    #[arg(
        long,
        alias = "master_port",
        value_name = "PORT",
        env = "PET_MASTER_PORT",
        hide_env = true,
        help_heading = "Rendezvous"
    )]
    master_port: Option<u16>,
    /// Address at which other nodes reach this node
    #[arg(
        long,
        alias = "local_addr",
        value_name = "HOST",
        env = "PET_LOCAL_ADDR",
        hide_env = true,
        help_heading = "Rendezvous"
    )]
    local_addr: Option<String>,

    /// Run the script as a module, like python -m
    #[arg(short = 'm', long, help_heading = "Program")]
    module: bool,
    /// Run the program directly, without Python
    #[arg(long, alias = "no_python", help_heading = "Program")]
    no_python: bool,
    /// No effect: the script always runs in a fresh interpreter
    #[arg(long, alias = "run_path", help_heading = "Program")]
    run_path: bool,
    /// Python for the workers [default: PYTHON_EXEC, VIRTUAL_ENV, next to instep, PATH]
    #[arg(long, value_name = "PATH", help_heading = "Program")]
    python: Option<PathBuf>,
    /// Keep a spare process per worker with these modules imported, for faster restarts
    #[arg(long, value_name = "MODULES", help_heading = "Program")]
    preload: Option<String>,
    /// Use instep for CPU groups that request gloo; dist.get_backend() still returns gloo
    #[arg(long, alias = "replace_gloo", help_heading = "Program")]
    replace_gloo: bool,
    /// Kill ranks at random with these mean times and report: kill-rank=60s,kill-node=5m,at=vote,seed=7,times=3
    #[arg(long, value_name = "SETTINGS", help_heading = "Drill")]
    drill: Option<String>,
    /// Write the drill's report to this file, as JSON
    #[arg(long, alias = "drill_json", value_name = "FILE", requires = "drill", help_heading = "Drill")]
    drill_json: Option<PathBuf>,
    /// Give every worker one visible GPU and LOCAL_RANK 0
    #[arg(long, alias = "virtual_local_rank", help_heading = "Program")]
    virtual_local_rank: bool,
    /// Bind workers to CPUs near their GPU
    #[arg(long, alias = "numa_binding", value_name = "MODE", value_parser = ["node", "socket", "exclusive", "core-complex"], help_heading = "Program")]
    numa_binding: Option<String>,

    /// Directory for logs; /dev/null writes none [default: a temporary directory]
    #[arg(long, alias = "log_dir", value_name = "DIR", env = "PET_LOG_DIR", hide_env = true, help_heading = "Output")]
    log_dir: Option<PathBuf>,
    /// Send streams to log files only: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:MASK,...
    #[arg(
        short = 'r',
        long,
        default_value = "0",
        value_name = "MASK",
        env = "PET_REDIRECTS",
        hide_env = true,
        help_heading = "Output"
    )]
    redirects: String,
    /// Send streams to log files and to the console; same values as --redirects
    #[arg(
        short = 't',
        long,
        default_value = "0",
        value_name = "MASK",
        env = "PET_TEE",
        hide_env = true,
        help_heading = "Output"
    )]
    tee: String,
    /// Show only these local ranks on the console
    #[arg(
        long,
        alias = "local_ranks_filter",
        default_value = "",
        value_name = "RANKS",
        env = "PET_LOCAL_RANKS_FILTER",
        hide_env = true,
        hide_default_value = true,
        help_heading = "Output"
    )]
    local_ranks_filter: String,
    /// Show identical lines of several ranks once: [ranks 1-7] ...
    #[arg(long, help_heading = "Output")]
    fold: bool,
    /// Append events to this file as JSON lines: rounds, failures, nodes that join and leave
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    events: Option<PathBuf>,
    /// Explain any instep collective that takes longer than this, and with --recover step replace the rank that hangs; 0
    /// disables it
    #[arg(
        long,
        alias = "hang_after",
        default_value_t = 60.0,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        help_heading = "Output"
    )]
    hang_after: f64,
    /// Prefix of --tee lines; macros ${role_name} ${local_rank} ${rank} ${hostname}
    #[arg(
        long,
        alias = "log_line_prefix_template",
        default_value = "",
        value_name = "TEXT",
        env = "PET_LOG_LINE_PREFIX_TEMPLATE",
        hide_env = true,
        hide_default_value = true,
        help_heading = "Output"
    )]
    log_line_prefix_template: String,
    /// Also write --tee stdout lines that contain one of these words to filtered_stdout.log
    #[arg(
        long,
        alias = "duplicate_stdout_filters",
        default_value = "",
        value_name = "WORDS",
        env = "PET_DUPLICATE_STDOUT_FILTERS",
        hide_env = true,
        hide_default_value = true,
        help_heading = "Output"
    )]
    duplicate_stdout_filters: String,
    /// The same for stderr
    #[arg(
        long,
        alias = "duplicate_stderr_filters",
        default_value = "",
        value_name = "WORDS",
        env = "PET_DUPLICATE_STDERR_FILTERS",
        hide_env = true,
        hide_default_value = true,
        help_heading = "Output"
    )]
    duplicate_stderr_filters: String,
    /// Do not show a live status line on a terminal
    #[arg(long, alias = "no_status", help_heading = "Output")]
    no_status: bool,
    /// Write a summary to this file when the run ends, as JSON
    #[arg(long, alias = "summary_json", value_name = "FILE", help_heading = "Output")]
    summary_json: Option<PathBuf>,
    /// Show what would be started without starting it; --dry-run=json for programs
    #[arg(long, alias = "dry_run", value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "text", hide_possible_values = true, help_heading = "Output")]
    dry_run: Option<DryRunFormat>,

    /// Signals to forward to the workers, which stop the job
    #[arg(
        long,
        alias = "signals_to_handle",
        default_value = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        value_name = "SIGNALS",
        env = "PET_SIGNALS_TO_HANDLE",
        hide_env = true,
        help_heading = "Ending"
    )]
    signals_to_handle: String,
    /// Seconds between a forwarded signal and SIGKILL [default: 30]
    #[arg(
        long,
        alias = "shutdown_timeout",
        value_name = "SECONDS",
        env = "PET_SHUTDOWN_TIMEOUT",
        hide_env = true,
        allow_negative_numbers = true,
        help_heading = "Ending"
    )]
    shutdown_timeout: Option<i64>,
    /// Exit with the code of the worker that caused the failure instead of 1
    #[arg(long, alias = "propagate_exit_code", help_heading = "Ending")]
    propagate_exit_code: bool,

    /// No effect: exits are noticed at once
    #[arg(
        long,
        alias = "monitor_interval",
        default_value_t = 0.1,
        value_name = "SECONDS",
        env = "PET_MONITOR_INTERVAL",
        hide_env = true,
        hide_default_value = true,
        help_heading = "Accepted for compatibility"
    )]
    monitor_interval: f64,
    /// No effect: workers are always separate programs
    #[arg(long, alias = "start_method", default_value = "spawn", value_name = "METHOD", value_parser = ["spawn", "fork", "forkserver"], hide_default_value = true, hide_possible_values = true, help_heading = "Accepted for compatibility")]
    start_method: String,
    /// No effect except a warning: a Python plugin of torchrun
    #[arg(
        long,
        alias = "event_log_handler",
        default_value = "null",
        value_name = "NAME",
        env = "PET_EVENT_LOG_HANDLER",
        hide_env = true,
        hide_default_value = true,
        help_heading = "Accepted for compatibility"
    )]
    event_log_handler: String,
    /// No effect except a warning: a Python plugin of torchrun
    #[arg(long, alias = "logs_specs", value_name = "NAME", help_heading = "Accepted for compatibility")]
    logs_specs: Option<String>,
    /// Print a completion script for this shell
    #[arg(long, alias = "print_completion", value_name = "SHELL", help_heading = "Accepted for compatibility")]
    pub(crate) print_completion: Option<Shell>,

    /// The script and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "print_completion", num_args = 1.., value_names = ["SCRIPT", "ARGUMENTS"])]
    command: Vec<OsString>,
}

impl RunArguments {
    pub(crate) fn own(&self) -> OwnOptions {
        OwnOptions {
            dry_run: self.dry_run,
            summary_json: self.summary_json.clone(),
            propagate_exit_code: self.propagate_exit_code,
            no_status: self.no_status,
            drill_json: self.drill_json.clone(),
        }
    }

    /// Makes a drill of it, with at least so many restarts.
    pub(crate) fn make_drill(&mut self, settings: String, json: Option<PathBuf>, restarts: i64) {
        self.drill = Some(settings);
        self.drill_json = json.or(self.drill_json.take());
        self.max_restarts = self.max_restarts.max(restarts);
    }

    /// The request behind the command line. Flags may also be set by `PET_*` variables that hold a number.
    pub(crate) fn into_request(self, pass_local_rank: bool) -> Result<Request, PlanError> {
        let mut command = self.command.into_iter();
        Ok(Request {
            standalone: flag(self.standalone, "PET_STANDALONE")?,
            module: flag(self.module, "PET_MODULE")?,
            no_python: flag(self.no_python, "PET_NO_PYTHON")?,
            run_path: flag(self.run_path, "PET_RUN_PATH")?,
            virtual_local_rank: flag(self.virtual_local_rank, "PET_VIRTUAL_LOCAL_RANK")?,
            nnodes: self.nnodes,
            nproc_per_node: self.nproc_per_node,
            rdzv_backend: self.rdzv_backend,
            rdzv_endpoint: self.rdzv_endpoint,
            rdzv_id: self.rdzv_id,
            rdzv_conf: self.rdzv_conf,
            job_token_file: self.job_token_file,
            max_restarts: self.max_restarts,
            role: self.role,
            log_dir: self.log_dir,
            redirects: self.redirects,
            tee: self.tee,
            log_line_prefix_template: self.log_line_prefix_template,
            local_ranks_filter: self.local_ranks_filter,
            duplicate_stdout_filters: self.duplicate_stdout_filters,
            duplicate_stderr_filters: self.duplicate_stderr_filters,
            node_rank: self.node_rank,
            master_addr: self.master_addr,
            master_port: self.master_port,
            local_addr: self.local_addr,
            numa_binding: self.numa_binding.and_then(|mode| mode.parse::<NumaBinding>().ok()),
            signals_to_handle: self.signals_to_handle,
            shutdown_timeout: self.shutdown_timeout,
            logs_specs: self.logs_specs,
            event_log_handler: self.event_log_handler,
            python: self.python,
            preload: self.preload,
            recover: self.recover,
            spares: self.spares.clone(),
            replace_gloo: self.replace_gloo,
            drill: self.drill,
            fold: self.fold,
            events: self.events,
            hang_after: Some(self.hang_after),
            pass_local_rank,
            script: command.next().unwrap_or_default(),
            script_arguments: without_separator(command),
        })
    }
}

/// A `--` directly behind the script is the launcher's, as it is for argparse; later ones are the script's.
fn without_separator(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.peekable();
    arguments.next_if(|first| first == "--");
    arguments.collect()
}

fn flag(given: bool, variable: &str) -> Result<bool, PlanError> {
    match std::env::var(variable) {
        Ok(text) if !given => text.trim().parse::<i64>().map(|number| number != 0).map_err(|_| PlanError {
            message: format!("{variable}=\"{text}\" is not a number"),
            hint: "1 sets the flag, 0 does not".to_owned(),
        }),
        _ => Ok(given),
    }
}
