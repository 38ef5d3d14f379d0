//! The environment variables torchrun's world agrees on: what workers are given, and what the launcher itself reads.
//!
//! This is the only place that knows their names.

use std::ffi::OsString;
use std::path::Path;

use instep_policy::membership::MembershipTerms;

use crate::control::Start;

/// Set by the user to choose threads per worker; defaults to 1 where several workers share a node.
pub const OMP_NUM_THREADS: &str = "OMP_NUM_THREADS";
/// The job's id; whoever has one is somebody's worker.
pub const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// Where a worker writes its exception; also read from our own environment when we are somebody's worker.
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
/// Set by an agent for its tasks: the command that shows what ranks wrote, since folders here go with the task.
const SHOW_LOGS: &str = "INSTEP_SHOW_LOGS";
/// Prefix of tee'd lines, where the option was not given.
pub const LOG_LINE_PREFIX_TEMPLATE: &str = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
/// Seconds before SIGKILL at shutdown, where the option was not given.
pub const SHUTDOWN_TIMEOUT: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
/// `1` makes worker rank 0 serve the store instead of the launcher (c10d rendezvous only).
pub const DISABLE_SHARED_STORE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

/// `gloo` makes groups that ask for gloo use our backend; set by `--replace-gloo`.
pub const REPLACE: &str = "INSTEP_REPLACE";
/// Anything but `1` keeps torch from loading what packages register with it, ours included.
pub const AUTOLOAD: &str = "TORCH_DEVICE_BACKEND_AUTOLOAD";

/// `step` where lost ranks are replaced; what the script's session looks at.
const RECOVER: &str = "INSTEP_RECOVER";
/// Which of a rank's processes a worker is, counted from 0 in each round.
const INCARNATION: &str = "INSTEP_INCARNATION";
/// The generation for which a worker was started; 0 at first.
const RECOVERY_GENERATION: &str = "INSTEP_RECOVERY_GENERATION";

/// The node that a worker runs on: not `GROUP_RANK` where the node of its rank was lost.
const NODE: &str = "INSTEP_NODE";

/// In which order the backend adds numbers up.
pub const ORDER: &str = "INSTEP_ORDER";
/// The order that does not depend on which ranks share a host.
const CANONICAL: &str = "canonical";

/// What ranks of our backend show each other; the user's own wins, and an empty one means none.
const SECRET: &str = "INSTEP_SECRET";

/// Where the first node really is, where `MASTER_ADDR` is the launcher's own relay of the store.
const REAL_MASTER_ADDRESS: &str = "INSTEP_MASTER_ADDR";

/// Set by the user: where the job's token is. It is the launchers' alone, and may be a pipe that can be read once.
const JOB_TOKEN_FILE: &str = "INSTEP_JOB_TOKEN_FILE";

/// Set by the user or by an agent: the token itself. It is the launchers' alone as well.
pub const JOB_TOKEN: &str = "INSTEP_JOB_TOKEN";

/// What workers do not inherit.
pub const NOT_FOR_WORKERS: [&str; 2] = [JOB_TOKEN_FILE, JOB_TOKEN];

const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const HIP_VISIBLE_DEVICES: &str = "HIP_VISIBLE_DEVICES";
const NCCL_ASYNC_ERROR_HANDLING: &str = "TORCH_NCCL_ASYNC_ERROR_HANDLING";

/// What is the same for all workers of a job on this node.
#[derive(Debug, Clone)]
pub struct JobFacts {
    /// `--rdzv-id`.
    pub run_id: String,
    /// `--role`.
    pub role: String,
    /// Workers on this node.
    pub workers: usize,
    /// `--max-restarts`.
    pub max_restarts: u32,
    /// `--signals-to-handle`, as given.
    pub signals_to_handle: String,
    /// `--virtual-local-rank`.
    pub virtual_local_rank: bool,
    /// Value for `OMP_NUM_THREADS` if the user set none.
    pub default_threads: Option<usize>,
    /// `--replace-gloo`.
    pub replaces_gloo: bool,
}

/// Why a worker's environment cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum EnvironmentError {
    /// `--virtual-local-rank` with more workers than devices.
    #[error("local rank {local_rank} has no device: {variable}={devices}")]
    NoDevice {
        local_rank: usize,
        /// Which list was used.
        variable: &'static str,
        /// What it holds.
        devices: String,
    },
}

/// The command that people are to use in place of the folder with logs, if there is one.
pub fn command_for_logs() -> Option<String> {
    std::env::var(SHOW_LOGS).ok().filter(|command| !command.is_empty())
}

/// The variables one worker gets on top of the launcher's own environment (`inherited`).
pub fn worker_variables(
    job: &JobFacts,
    start: &Start,
    local_rank: usize,
    error_file: Option<&Path>,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<(&'static str, OsString)>, EnvironmentError> {
    let python_bool = |value: bool| if value { "True" } else { "False" };
    let (store_address, store_port) = match &start.relay {
        Some(relay) => (&relay.host, relay.port),
        None => (&start.master_address, start.master_port),
    };
    let mut variables: Vec<(&'static str, OsString)> = vec![
        ("RANK", (start.first_rank + local_rank).to_string().into()),
        ("WORLD_SIZE", start.world_size.to_string().into()),
        ("LOCAL_WORLD_SIZE", job.workers.to_string().into()),
        ("GROUP_RANK", start.group_rank.to_string().into()),
        ("GROUP_WORLD_SIZE", start.group_world_size.to_string().into()),
        ("ROLE_RANK", (start.first_role_rank + local_rank).to_string().into()),
        ("ROLE_WORLD_SIZE", start.role_world_size.to_string().into()),
        ("ROLE_NAME", job.role.clone().into()),
        ("MASTER_ADDR", store_address.into()),
        ("MASTER_PORT", store_port.to_string().into()),
        ("TORCHELASTIC_RESTART_COUNT", start.restarts.to_string().into()),
        ("TORCHELASTIC_MAX_RESTARTS", job.max_restarts.to_string().into()),
        (RUN_ID, job.run_id.clone().into()),
        ("TORCHELASTIC_USE_AGENT_STORE", python_bool(start.launcher_serves_store).into()),
        (ERROR_FILE, error_file.map(|path| path.as_os_str().to_owned()).unwrap_or_default()),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", job.signals_to_handle.clone().into()),
        (NCCL_ASYNC_ERROR_HANDLING, inherited(NCCL_ASYNC_ERROR_HANDLING).unwrap_or_else(|| "1".into())),
    ];
    if start.relay.is_some() {
        variables.push((REAL_MASTER_ADDRESS, start.master_address.clone().into()));
    }
    if let Some(secret) = &start.secret
        && inherited(SECRET).is_none()
    {
        variables.push((SECRET, secret.reveal().into()));
    }
    if job.replaces_gloo {
        variables.push((REPLACE, "gloo".into()));
    }
    if let Some(threads) = job.default_threads
        && inherited(OMP_NUM_THREADS).is_none()
    {
        variables.push((OMP_NUM_THREADS, threads.to_string().into()));
    }
    if job.virtual_local_rank {
        variables.push(("LOCAL_RANK", "0".into()));
        variables.extend(own_device(local_rank, inherited)?);
    } else {
        variables.push(("LOCAL_RANK", local_rank.to_string().into()));
    }
    Ok(variables)
}

/// Which of a rank's processes is started, and for which generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Incarnation {
    /// Counts from 0 in each round.
    pub number: u32,
    /// See [`instep_policy::recovery`].
    pub generation: u64,
}

/// What a worker is told of recovery; `inherited` is the launcher's own environment, which may be that of a worker.
pub fn recovery_variables(
    terms: &MembershipTerms,
    node: usize,
    incarnation: Incarnation,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> Vec<(&'static str, OsString)> {
    if !terms.step_recovery {
        return inherited(RECOVER).map(|_| (RECOVER, "round".into())).into_iter().collect();
    }
    let mut variables = vec![
        (RECOVER, "step".into()),
        (INCARNATION, incarnation.number.to_string().into()),
        (RECOVERY_GENERATION, incarnation.generation.to_string().into()),
        (NODE, node.to_string().into()),
    ];
    // A rank that moves to another node must not change the sums.
    if terms.max_nodes > 1 && inherited(ORDER).is_none() {
        variables.push((ORDER, CANONICAL.into()));
    }
    variables
}

/// The one device a worker sees under `--virtual-local-rank`.
fn own_device(
    local_rank: usize,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<(&'static str, OsString)>, EnvironmentError> {
    let hip = inherited(HIP_VISIBLE_DEVICES).filter(|devices| !devices.is_empty());
    let for_hip = hip.is_some();
    let variable = if for_hip { HIP_VISIBLE_DEVICES } else { CUDA_VISIBLE_DEVICES };
    let device: OsString = match hip.or_else(|| inherited(CUDA_VISIBLE_DEVICES)) {
        None => local_rank.to_string().into(),
        Some(devices) => {
            let devices = devices.to_string_lossy().into_owned();
            let device = devices.split(',').nth(local_rank).map(|device| device.trim().to_owned());
            device.ok_or(EnvironmentError::NoDevice { local_rank, variable, devices })?.into()
        }
    };
    let mut variables = vec![(CUDA_VISIBLE_DEVICES, device.clone())];
    if for_hip {
        variables.push((HIP_VISIBLE_DEVICES, device));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::{EnvironmentError, Incarnation, JobFacts, recovery_variables, worker_variables};
    use crate::control::Start;
    use crate::control::secret::JobSecret;
    use instep_policy::election::HostPort;
    use instep_policy::membership::{MembershipTerms, Quorum};
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::time::Duration;

    fn job() -> JobFacts {
        JobFacts {
            run_id: "456".to_owned(),
            role: "default".to_owned(),
            workers: 8,
            max_restarts: 3,
            signals_to_handle: "SIGTERM".to_owned(),
            virtual_local_rank: false,
            default_threads: Some(1),
            replaces_gloo: false,
        }
    }

    fn terms() -> MembershipTerms {
        MembershipTerms {
            min_nodes: 1,
            max_nodes: 1,
            fixed_ranks: true,
            max_restarts: 0,
            last_call: Duration::ZERO,
            join_timeout: Duration::ZERO,
            max_changes: 0,
            settle: Duration::ZERO,
            rejoin_window: Duration::ZERO,
            fence: Duration::ZERO,
            quorum: Quorum::Majority,
            step_recovery: false,
        }
    }

    fn start() -> Start {
        Start {
            round: 1,
            restarts: 1,
            group_rank: 1,
            group_world_size: 2,
            first_rank: 8,
            world_size: 16,
            first_role_rank: 8,
            role_world_size: 16,
            master_address: "fd00::1".to_owned(),
            master_port: 29603,
            launcher_serves_store: true,
            reason: None,
            changes: 0,
            epoch: None,
            secret: None,
            relay: None,
        }
    }

    fn variables(job: &JobFacts, own: &[(&str, &str)]) -> Result<BTreeMap<&'static str, String>, EnvironmentError> {
        let inherited = |name: &str| own.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value));
        let all = worker_variables(job, &start(), 3, None, inherited)?;
        Ok(all.into_iter().map(|(name, value)| (name, value.into_string().expect("text"))).collect())
    }

    #[test]
    fn ranks_follow_from_the_start_message() {
        let given = variables(&job(), &[]).expect("valid");
        for (name, value) in [
            ("RANK", "11"),
            ("LOCAL_RANK", "3"),
            ("ROLE_RANK", "11"),
            ("GROUP_RANK", "1"),
            ("MASTER_PORT", "29603"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_ERROR_FILE", ""),
            ("OMP_NUM_THREADS", "1"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ] {
            assert_eq!(given[name], value, "{name}");
        }
    }

    #[test]
    fn variables_that_the_user_set_are_kept() {
        let given = variables(&job(), &[("OMP_NUM_THREADS", "4"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")]);
        let given = given.expect("valid");
        assert_eq!(given.get("OMP_NUM_THREADS"), None);
        assert_eq!(given["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
    }

    #[test]
    fn workers_are_given_the_secret_unless_the_user_has_one() {
        let start = Start { secret: Some(JobSecret::random().expect("random bytes")), ..start() };
        let given = |own: Option<&str>| {
            let inherited = |name: &str| own.filter(|_| name == "INSTEP_SECRET").map(OsString::from);
            let all = worker_variables(&job(), &start, 3, None, inherited).expect("valid");
            all.into_iter().find(|(name, _)| *name == "INSTEP_SECRET").map(|(_, value)| value)
        };
        assert_eq!(given(None), start.secret.as_ref().map(|secret| secret.reveal().into()));
        assert_eq!(given(Some("mine")), None);
        assert_eq!(given(Some("")), None);
    }

    #[test]
    fn workers_of_a_job_with_a_token_find_the_store_at_their_launcher() {
        let given = |relay: Option<HostPort>| {
            let all = worker_variables(&job(), &Start { relay, ..start() }, 3, None, |_| None).expect("valid");
            let named = |wanted: &str| all.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone());
            ["MASTER_ADDR", "MASTER_PORT", "INSTEP_MASTER_ADDR"].map(named)
        };
        let relay = HostPort { host: "localhost".to_owned(), port: 4321 };
        assert_eq!(given(Some(relay)), ["localhost", "4321", "fd00::1"].map(|text| Some(text.into())));
        assert_eq!(given(None), [Some("fd00::1".into()), Some("29603".into()), None]);
    }

    #[test]
    fn workers_are_told_to_replace_gloo_only_where_the_user_asked_for_it() {
        assert_eq!(variables(&job(), &[]).expect("valid").get("INSTEP_REPLACE"), None);
        let job = JobFacts { replaces_gloo: true, ..job() };
        assert_eq!(variables(&job, &[]).expect("valid")["INSTEP_REPLACE"], "gloo");
    }

    #[test]
    fn workers_are_told_which_incarnation_they_are_where_ranks_are_replaced() {
        let second = Incarnation { number: 2, generation: 5 };
        let given = |step_recovery: bool, max_nodes: usize, own: &str| {
            let inherited = |name: &str| Some(own.strip_prefix(name)?.strip_prefix('=')?.into());
            let terms = MembershipTerms { step_recovery, max_nodes, ..terms() };
            let all = recovery_variables(&terms, 4, second, inherited).into_iter();
            all.map(|(name, value)| format!("{name}={}", value.to_string_lossy())).collect::<Vec<_>>()
        };
        let expected = ["INSTEP_RECOVER=step", "INSTEP_INCARNATION=2", "INSTEP_RECOVERY_GENERATION=5", "INSTEP_NODE=4"];
        assert_eq!(given(true, 1, ""), expected);
        assert_eq!(given(false, 1, ""), Vec::<String>::new());
        assert_eq!(given(false, 1, "INSTEP_RECOVER=step"), ["INSTEP_RECOVER=round"], "a launcher below another one");
        assert_eq!(given(true, 2, "")[4..], ["INSTEP_ORDER=canonical"], "a rank that moves changes no sum");
        assert_eq!(given(true, 2, "INSTEP_ORDER=hosts"), expected, "the user has the last word");
        assert_eq!(given(false, 2, ""), Vec::<String>::new());
    }

    #[test]
    fn a_virtual_rank_sees_one_device() {
        let job = JobFacts { virtual_local_rank: true, ..job() };
        let plain = variables(&job, &[]).expect("valid");
        assert_eq!((plain["LOCAL_RANK"].as_str(), plain["CUDA_VISIBLE_DEVICES"].as_str()), ("0", "3"));
        let chosen = variables(&job, &[("CUDA_VISIBLE_DEVICES", "4,5, 6 ,GPU-7")]).expect("valid");
        assert_eq!(chosen["CUDA_VISIBLE_DEVICES"], "GPU-7");
        let hip = variables(&job, &[("HIP_VISIBLE_DEVICES", "0,1,2,9"), ("CUDA_VISIBLE_DEVICES", "1")]).expect("valid");
        assert_eq!((hip["HIP_VISIBLE_DEVICES"].as_str(), hip["CUDA_VISIBLE_DEVICES"].as_str()), ("9", "9"));
        assert!(variables(&job, &[("CUDA_VISIBLE_DEVICES", "0,1")]).is_err());
    }
}
