//! What a scheduler has decided already: on which nodes a job runs, which of them this is, and so where they meet.
//!
//! Slurm and Kubernetes say it in variables, which torchrun's users copy into options by hand. Here it fills in what the
//! options leave open, and nothing else: whoever says where the nodes meet, or that there is one node, has said it all.
//! Pure: variables and the host's name in, options out. What came from where is shown by `--dry-run` and `instep doctor`.

mod finding;
mod hostlist;
mod kubernetes;
mod slurm;

use super::error::{PlanError, error};
use super::nodes::node_range;
use super::rendezvous::RendezvousConf;
use super::request::Request;
use crate::rendezvous::endpoint::DEFAULT_DYNAMIC_PORT;
use crate::workers::environment;

pub use self::finding::Finding;
use self::kubernetes::Pod;
use self::slurm::{Allocation, Slurm, Step};

/// Set by Open MPI's `mpirun` for what it starts.
const OF_MPIRUN: &str = "OMPI_COMM_WORLD_SIZE";
/// How long the nodes of a scheduler may differ in when they start: one still loads its image.
const START_TIMEOUT_S: &str = "600";

/// Options of sbatch for tasks that are ranks, which `srun` would apply to the launcher, of which there is one per node.
pub const FOR_RANKS: [&str; 5] =
    ["SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK", "SRUN_CPUS_PER_TASK", GPU_BIND];
/// Which of a node's GPUs each task sees.
const GPU_BIND: &str = "SLURM_GPU_BIND";

/// The scheduler that this process runs under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduler {
    /// `step 0 of Slurm job 1234`.
    pub name: String,
    /// What was looked up there.
    pub findings: Vec<Finding>,
}

/// A launcher on each node of an allocation, which only `srun` can start from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmStart {
    /// The allocation.
    pub scheduler: Scheduler,
    /// On how many nodes.
    pub nodes: usize,
    /// `srun` and its options.
    pub command: Vec<String>,
}

/// What was filled in, and what the user should know of it.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) scheduler: Option<Scheduler>,
    pub(super) warnings: Vec<String>,
}

/// How the launcher is started on the nodes of a Slurm job, where this is its batch script or a shell of `salloc`. None where
/// this process is the launcher, because it is on the only node, or because the options say so.
///
/// A batch script runs on the first node alone, where torchrun would start a job of that node. Who asks for several nodes and
/// says nothing of them wants them all.
pub fn start_through_srun(
    request: &Request,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<SlurmStart>, PlanError> {
    if under_another_launcher(&variable) || !leaves_place_open(request)? || is_left_alone(request, &variable) {
        return Ok(None);
    }
    let Some(Slurm::Allocation(allocation)) = slurm::read(&variable)? else { return Ok(None) };
    if allocation.nodes.len() == 1 && allocation.on_node {
        return Ok(None);
    }
    let nodes = match request.nnodes {
        Some(_) => fitting(request, allocation.nodes.len(), &allocation.to_string())?.1.min(allocation.nodes.len()),
        None => allocation.nodes.len(),
    };
    // One launcher on each node, with all that the job has there.
    let mut command = vec!["srun".to_owned(), format!("--nodes={nodes}"), format!("--ntasks={nodes}")];
    command.extend(["--ntasks-per-node=1", "--cpu-bind=none", "--export=ALL"].map(str::to_owned));
    // Tasks of the job would have had a part of its GPUs each, and so would this one.
    let gpus = variable("SLURM_GPUS_ON_NODE").and_then(|gpus| gpus.parse::<u32>().ok());
    if let Some(gpus) = gpus.filter(|_| variable("SLURM_GPUS_PER_TASK").is_some()) {
        command.push(format!("--gpus-per-node={gpus}"));
    }
    if variable(GPU_BIND).is_some() {
        command.push("--gpu-bind=none".to_owned());
    }
    let (min, max) = node_range(request)?;
    if min < max {
        // The launchers decide what becomes of the job when a node or a launcher is lost.
        command.extend(["--no-kill", "--kill-on-bad-exit=0", "--wait=0"].map(str::to_owned));
    }
    Ok(Some(SlurmStart { scheduler: allocation.into(), nodes, command }))
}

/// Fills in what the options leave to the scheduler.
pub(super) fn fill_in(
    request: &mut Request,
    conf: &mut RendezvousConf,
    variable: &impl Fn(&str) -> Option<String>,
    host_name: &str,
) -> Result<Found, PlanError> {
    if under_another_launcher(variable) {
        return Ok(Found::default());
    }
    if request.standalone {
        return Ok(Found { warnings: alone_among_others(variable).into_iter().collect(), ..Found::default() });
    }
    let mut warnings = Vec::new();
    if leaves_place_open(request)? && !conf.has("is_host") {
        if is_left_alone(request, variable) {
            warnings.extend(slurm::job_without_nodes(variable).map(nodes_unknown));
        } else {
            match slurm::read(variable)? {
                Some(Slurm::Step(step)) => return in_step(step, request, conf),
                Some(Slurm::Allocation(allocation)) => return Ok(alone(allocation.is_component, allocation.into())),
                None => {}
            }
        }
    }
    // A rank that is given is the whole place of a node.
    match kubernetes::read(variable, host_name)?.filter(|_| request.node_rank.is_none()) {
        Some(pod) if node_range(request)?.1 > 1 => in_pod(pod, request, conf),
        Some(_) if request.nnodes.is_none() && says_where(request) => {
            warnings.push(
                "JOB_COMPLETION_INDEX and an endpoint are set, but not PET_NNODES: this pod runs alone. For all pods of the \
                 Job, set PET_NNODES to their number"
                    .to_owned(),
            );
            // The endpoint is the first pod's, where the ranks of this one have no store.
            request.standalone = true;
            Ok(Found { warnings, ..Found::default() })
        }
        _ => Ok(Found { warnings, ..Found::default() }),
    }
}

/// Whether Slurm's number of a job is all that has come here, and nobody asks for several nodes.
fn is_left_alone(request: &Request, variable: &impl Fn(&str) -> Option<String>) -> bool {
    request.nnodes.is_none() && slurm::job_without_nodes(variable).is_some()
}

fn says_where(request: &Request) -> bool {
    !request.rdzv_endpoint.is_empty() || request.master_addr.is_some()
}

fn nodes_unknown(job: &str) -> String {
    format!(
        "{job} is set, but not SLURM_JOB_NODELIST: this node runs alone. For all nodes of a job, pass on every SLURM_ variable"
    )
}

/// A job of one node, which may have components with others.
fn alone(is_component: bool, scheduler: Scheduler) -> Found {
    let warning = is_component.then(|| {
        format!(
            "{} is heterogeneous (SLURM_HET_SIZE), and this node runs alone; --rdzv-endpoint names where nodes of several \
             components meet",
            scheduler.name
        )
    });
    Found { scheduler: Some(scheduler), warnings: warning.into_iter().collect() }
}

/// What `instep run` without options would find, in a sentence; none where there is no scheduler.
pub fn describe(variable: impl Fn(&str) -> Option<String>, host_name: &str) -> Option<Result<String, PlanError>> {
    let in_slurm = slurm::read(&variable).map(|found| {
        found.map(|found| match found {
            Slurm::Step(step) => match step.nodes.len() {
                1 => format!("{step}, on this node alone"),
                all => format!("{step}, node rank {} of {all}; they meet at {}", step.node, endpoint_of(&step)),
            },
            Slurm::Allocation(allocation) => match (allocation.nodes.len(), allocation.on_node) {
                (1, true) => format!("{allocation}, on this node alone"),
                (all, _) => format!("{allocation}; instep run starts on its nodes ({all}) through srun"),
            },
        })
    });
    let in_kubernetes = || {
        let pod = kubernetes::read(&variable, host_name).transpose()?;
        Some(pod.map(|pod| format!("indexed Job of Kubernetes, node rank {} (JOB_COMPLETION_INDEX)", pod.index)))
    };
    in_slurm.transpose().or_else(in_kubernetes)
}

/// The tasks of a Slurm step on the node that has most of them: each would start the ranks.
pub fn tasks_on_one_node(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    match slurm::read(&variable) {
        Ok(Some(Slurm::Step(step))) => step.tasks,
        _ => None,
    }
}

/// Ranks of a launcher are placed by it, whatever the variables say that they inherit.
fn under_another_launcher(variable: &impl Fn(&str) -> Option<String>) -> bool {
    [environment::RUN_ID, OF_MPIRUN].iter().any(|name| variable(name).is_some())
}

/// Whether nothing is said of which nodes there are and where they meet, but perhaps how many.
fn leaves_place_open(request: &Request) -> Result<bool, PlanError> {
    let several = request.nnodes.is_none() || node_range(request)?.1 > 1;
    let no_place = request.rdzv_endpoint.is_empty() && request.master_addr.is_none() && request.master_port.is_none();
    let backend = request.rdzv_backend.as_deref().is_none_or(|backend| backend == "c10d");
    Ok(several && no_place && backend && request.node_rank.is_none() && !request.standalone)
}

/// The range of `--nnodes`, if so many nodes can fulfil it.
fn fitting(request: &Request, nodes: usize, place: &str) -> Result<(usize, usize), PlanError> {
    let (min, max) = node_range(request)?;
    if min <= nodes {
        return Ok((min, max));
    }
    let plural = if nodes == 1 { "node" } else { "nodes" };
    Err(error(
        format!("--nnodes {}, but {place} has {nodes} {plural}", request.nnodes()),
        format!("leave out --nnodes, or ask Slurm for {min} nodes: sbatch --nodes={min}"),
    ))
}

fn in_step(mut step: Step, request: &mut Request, conf: &mut RendezvousConf) -> Result<Found, PlanError> {
    if let Some(tasks) = step.tasks.filter(|tasks| *tasks > 1) {
        return Err(error(
            format!("{tasks} tasks of {step} run on one node, and each of them would start the ranks"),
            format!(
                "srun --ntasks-per-node=1 instep run --nproc-per-node {tasks} …; --standalone makes each task a job of its own"
            ),
        ));
    }
    let count = step.nodes.len();
    match request.nnodes {
        None if count == 1 => return Ok(alone(step.is_component, step.into())),
        None => request.nnodes = Some(count.to_string()),
        Some(_) => {
            fitting(request, count, &step.to_string())?;
        }
    }
    let endpoint = endpoint_of(&step);
    let from = |what, value: &str, from: &str| Finding { what, value: value.to_owned(), from: from.to_owned() };
    step.findings.push(from("endpoint", &endpoint, "the first node, SLURM_JOB_ID and SLURM_STEP_ID"));
    if request.rdzv_id.is_none() {
        let run_id = step.run_id();
        step.findings.push(from("job id", &run_id, "SLURM_JOB_ID, SLURM_STEP_ID and SLURM_RESTART_COUNT"));
        request.rdzv_id = Some(run_id);
    }
    request.rdzv_endpoint = endpoint;
    meet_at_first(step.node, request, conf);
    conf.set_default("is_host", if step.node == 0 { "true" } else { "false" });
    let gpus = step.gpus.filter(|gpus| *gpus > 1 && request.nproc_per_node.is_none());
    let mut warnings: Vec<String> = nobody_else(&step, count).into_iter().collect();
    warnings.extend(gpus.map(|gpus| {
        format!(
            "one worker on this node, where the job has {gpus} GPUs (SLURM_GPUS_ON_NODE); --nproc-per-node gpu starts one for each"
        )
    }));
    Ok(Found { scheduler: Some(step.into()), warnings })
}

/// A shell of `srun --pty` is one task of several, and the others have no terminal to be typed at.
fn nobody_else(step: &Step, nodes: usize) -> Option<String> {
    let waits = step.at_terminal && step.node == 0;
    waits.then(|| {
        format!(
            "waiting for instep run on the {nodes} nodes of {step}; in a shell of srun --pty nothing else starts it: use \
             srun --overlap --nodes={nodes} --ntasks-per-node=1 instep run …, or --standalone for this node alone"
        )
    })
}

fn endpoint_of(step: &Step) -> String {
    format!("{}:{}", step.nodes[0], step.port())
}

/// Nodes meet dynamically: those that are late or lost are waited for, and a range of nodes is elastic.
fn meet_at_first(node: usize, request: &mut Request, conf: &mut RendezvousConf) {
    request.rdzv_backend = Some("c10d".to_owned());
    request.node_rank = i64::try_from(node).ok();
    conf.set_default("read_timeout", START_TIMEOUT_S);
}

fn in_pod(mut pod: Pod, request: &mut Request, conf: &mut RendezvousConf) -> Result<Found, PlanError> {
    let c10d = request.rdzv_backend.as_deref() == Some("c10d");
    let has_address = request.master_addr.is_some() && !c10d;
    if request.rdzv_endpoint.is_empty() && !has_address {
        let first = pod.first.as_deref().unwrap_or("JOB-0");
        return Err(error(
            format!(
                "--nnodes {} in an indexed Job of Kubernetes, but nothing says where the first pod is",
                request.nnodes()
            ),
            format!(
                "set PET_RDZV_ENDPOINT={first}.SERVICE:{DEFAULT_DYNAMIC_PORT}; SERVICE is the pods' headless Service"
            ),
        ));
    }
    let (_, max) = node_range(request)?;
    if pod.index >= max {
        return Err(error(
            format!("this is pod {} of an indexed Job, but --nnodes is {}", pod.index, request.nnodes()),
            "completions and parallelism of the Job must be the number of nodes",
        ));
    }
    if !request.rdzv_endpoint.is_empty() && request.rdzv_backend.as_deref() != Some("static") {
        meet_at_first(pod.index, request, conf);
        if pod.first_is_at(&request.rdzv_endpoint) {
            conf.set_default("is_host", if pod.index == 0 { "true" } else { "false" });
            let value = if pod.index == 0 { "this pod" } else { "another pod" };
            let from = "host name and endpoint".to_owned();
            pod.findings.push(Finding { what: "first node", value: value.to_owned(), from });
        }
    } else {
        request.node_rank = i64::try_from(pod.index).ok();
    }
    let name = "indexed Job of Kubernetes".to_owned();
    Ok(Found { scheduler: Some(Scheduler { name, findings: pod.findings }), ..Found::default() })
}

/// `--standalone` where Slurm has given several nodes: often copied from an example for one.
fn alone_among_others(variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
    match slurm::read(variable) {
        Ok(Some(Slurm::Step(step))) if step.nodes.len() > 1 => Some(format!(
            "--standalone: each of the {} nodes of {step} runs a job of its own; leave it out for one job on all of them",
            step.nodes.len()
        )),
        Ok(Some(Slurm::Allocation(allocation))) if allocation.nodes.len() > 1 => Some(format!(
            "--standalone runs on this node alone, and {allocation} has {}; leave it out for a job on all of them",
            allocation.nodes.len()
        )),
        _ => None,
    }
}

impl From<Step> for Scheduler {
    fn from(step: Step) -> Scheduler {
        Scheduler { name: step.to_string(), findings: step.findings }
    }
}

impl From<Allocation> for Scheduler {
    fn from(allocation: Allocation) -> Scheduler {
        Scheduler { name: allocation.to_string(), findings: allocation.findings }
    }
}
