//! What the user typed.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::machine::numa::NumaBinding;

/// The options of `instep run`, as typed. Those that say where a job runs are none where they were not given: a scheduler may
/// know better than torchrun's defaults, which the methods give.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "each field is the option of the same name")]
pub struct Request {
    pub nnodes: Option<String>,
    pub nproc_per_node: Option<String>,
    pub rdzv_backend: Option<String>,
    pub rdzv_endpoint: String,
    pub rdzv_id: Option<String>,
    pub rdzv_conf: String,
    pub job_token_file: Option<PathBuf>,
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
    pub node_rank: Option<i64>,
    pub master_addr: Option<String>,
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
    pub recover: String,
    pub spares: Option<String>,
    pub replace_gloo: bool,
    pub drill: Option<String>,
    pub fold: bool,
    pub events: Option<PathBuf>,
    pub hang_after: Option<f64>,
    pub pass_local_rank: bool,
    pub script: OsString,
    pub script_arguments: Vec<OsString>,
}

impl Request {
    pub(super) fn nnodes(&self) -> &str {
        self.nnodes.as_deref().unwrap_or("1:1")
    }

    pub(super) fn nproc_per_node(&self) -> &str {
        self.nproc_per_node.as_deref().unwrap_or("1")
    }

    pub(super) fn rdzv_backend(&self) -> &str {
        self.rdzv_backend.as_deref().unwrap_or("static")
    }

    pub(super) fn rdzv_id(&self) -> &str {
        self.rdzv_id.as_deref().unwrap_or("none")
    }

    pub(super) fn node_rank(&self) -> i64 {
        self.node_rank.unwrap_or(0)
    }

    pub(super) fn master_addr(&self) -> &str {
        self.master_addr.as_deref().unwrap_or("127.0.0.1")
    }
}
