//! What Slurm's variables say of this process: a task of a step (`srun`), or a script or shell that holds an allocation.

use std::fmt;

use super::super::error::{PlanError, error};
use super::finding::Finding;
use super::hostlist;

/// The first port that is given to steps, and how many there are: a prime, below the ports that systems give to anybody
/// who asks (32768 and above) and beside torchrun's own (29400, 29500).
const FIRST_PORT: u64 = 17_000;
const PORTS: u64 = 11_987;
/// Steps of one job have ports beside each other, and those of the next job are this far away.
const PORTS_OF_JOB: u64 = 101;
/// Slurm numbers what is no step of `srun` (batch scripts, shells, …) from the end.
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

/// Where this process stands in a job of Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slurm {
    Step(Step),
    Allocation(Allocation),
}

/// A task that `srun` has started, on each of the step's nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) job: u64,
    step: u64,
    /// How often the job was put into the queue again.
    restarts: u64,
    pub(super) nodes: Vec<String>,
    /// Which of them this is.
    pub(super) node: usize,
    /// Tasks of the step on the node that has most of them: all nodes are to come to the same conclusion. Unknown in very
    /// old versions.
    pub(super) tasks: Option<usize>,
    /// GPUs of the job on this node.
    pub(super) gpus: Option<usize>,
    /// The terminal of `srun --pty`, in whose other tasks nobody types.
    pub(super) at_terminal: bool,
    /// The job has other components, whose nodes are not among these.
    pub(super) is_component: bool,
    pub(super) findings: Vec<Finding>,
}

/// A batch script on its first node, or a shell of `salloc`, which may be on any machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) job: u64,
    pub(super) nodes: Vec<String>,
    /// False for a shell on a login node.
    pub(super) on_node: bool,
    /// The job has other components, whose nodes are not among these.
    pub(super) is_component: bool,
    pub(super) findings: Vec<Finding>,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "step {} of Slurm job {}", self.step, self.job)
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Slurm job {}", self.job)
    }
}

impl Step {
    /// The port at which the nodes meet: that of no other step, nor of another job which may share the first node.
    pub(super) fn port(&self) -> u16 {
        let number = (self.job % PORTS * PORTS_OF_JOB + self.step) % PORTS;
        u16::try_from(FIRST_PORT + number).expect("the last port is below 65536")
    }

    /// The job's name for the rendezvous: launchers that a restart of the job has left behind do not belong to it.
    pub(super) fn run_id(&self) -> String {
        let Step { job, step, restarts, .. } = self;
        if *restarts == 0 { format!("{job}.{step}") } else { format!("{job}.{step}-restart{restarts}") }
    }
}

/// The names of the lists of nodes, of which a step's own counts first.
const LISTS: [&str; 3] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];

/// The variable that names a job where nothing names its nodes: one that a container or a tool has been handed alone.
pub(super) fn job_without_nodes(variable: &impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let reader = Reader { variable };
    let (job, _) = reader.first(&["SLURM_JOB_ID", "SLURM_JOBID"])?;
    reader.first(&LISTS).is_none().then_some(job)
}

/// Reads the variables; none where this is no job of Slurm.
pub(super) fn read(variable: &impl Fn(&str) -> Option<String>) -> Result<Option<Slurm>, PlanError> {
    let reader = Reader { variable };
    let Some((id, job)) = reader.number(&["SLURM_JOB_ID", "SLURM_JOBID"])? else { return Ok(None) };
    let found = |what, value: String, from: &str| Finding { what, value, from: from.to_owned() };
    let in_job = found("job", job.to_string(), id);
    let step = reader.number(&["SLURM_STEP_ID", "SLURM_STEPID"])?.filter(|(_, step)| *step < FIRST_SPECIAL_STEP);
    let is_component = reader.number(&["SLURM_HET_SIZE"])?.is_some_and(|(_, parts)| parts > 1);
    let Some((step_id, step)) = step else {
        let (list, nodes) = reader.nodes(&LISTS[1..])?;
        let findings = vec![in_job, found("nodes", nodes.len().to_string(), list)];
        let on_node = variable("SLURMD_NODENAME").is_some();
        if is_component && !(nodes.len() == 1 && on_node) {
            return Err(heterogeneous(job));
        }
        return Ok(Some(Slurm::Allocation(Allocation { job, nodes, on_node, is_component, findings })));
    };
    let (list, nodes) = reader.nodes(&LISTS)?;
    if is_component && nodes.len() > 1 {
        return Err(heterogeneous(job));
    }
    let (node_id, node) = reader.needed(&["SLURM_NODEID"])?;
    let count = reader.number(&["SLURM_STEP_NUM_NODES"])?;
    let node = usize::try_from(node).ok().filter(|node| *node < nodes.len());
    let (Some(node), true) = (node, count.is_none_or(|(_, count)| count == nodes.len() as u64)) else {
        let message = format!(
            "Slurm's variables contradict each other: {list} names {} nodes, {node_id}={}, SLURM_STEP_NUM_NODES={}",
            nodes.len(),
            variable(node_id).unwrap_or_default(),
            variable("SLURM_STEP_NUM_NODES").unwrap_or_default(),
        );
        return Err(error(message, NOT_FROM_SLURM));
    };
    let findings = vec![
        in_job,
        found("step", step.to_string(), step_id),
        found("nodes", nodes.len().to_string(), list),
        found("first node", nodes[0].clone(), list),
        found("node rank", node.to_string(), node_id),
    ];
    let tasks = variable("SLURM_STEP_TASKS_PER_NODE").and_then(|counts| hostlist::largest_count(&counts));
    let gpus = reader.number(&["SLURM_GPUS_ON_NODE"])?.and_then(|(_, gpus)| usize::try_from(gpus).ok());
    let restarts = reader.number(&["SLURM_RESTART_COUNT"])?.map_or(0, |(_, restarts)| restarts);
    let at_terminal = reader.first(&["SLURM_PTY_PORT"]).is_some();
    Ok(Some(Slurm::Step(Step { job, step, restarts, nodes, node, tasks, gpus, at_terminal, is_component, findings })))
}

/// Which components a step has, and in which order their nodes follow, is not looked up.
fn heterogeneous(job: u64) -> PlanError {
    error(
        format!("Slurm job {job} is heterogeneous: its nodes are not looked up (SLURM_HET_SIZE)"),
        "give --nnodes, --rdzv-backend c10d and --rdzv-endpoint HOST:PORT, or --standalone",
    )
}

const NOT_FROM_SLURM: &str =
    "start it with srun, or say where the nodes meet: --nnodes, --rdzv-backend c10d, --rdzv-endpoint HOST:PORT";

/// Variables as numbers and lists. Each may have had another name in older versions: the first that is set counts.
struct Reader<'a, V> {
    variable: &'a V,
}

impl<V: Fn(&str) -> Option<String>> Reader<'_, V> {
    fn first<'n>(&self, names: &[&'n str]) -> Option<(&'n str, String)> {
        names.iter().find_map(|name| Some((*name, (self.variable)(name).filter(|value| !value.is_empty())?)))
    }

    fn number<'n>(&self, names: &[&'n str]) -> Result<Option<(&'n str, u64)>, PlanError> {
        let Some((name, text)) = self.first(names) else { return Ok(None) };
        let invalid = |_| error(format!("{name}=\"{text}\" is not a number"), NOT_FROM_SLURM);
        text.trim().parse().map(|number| Some((name, number))).map_err(invalid)
    }

    fn needed<'n>(&self, names: &[&'n str]) -> Result<(&'n str, u64), PlanError> {
        self.number(names)?.ok_or_else(|| missing(names))
    }

    fn nodes<'n>(&self, names: &[&'n str]) -> Result<(&'n str, Vec<String>), PlanError> {
        let (name, list) = self.first(names).ok_or_else(|| missing(names))?;
        let invalid = |cause| error(format!("{name}=\"{list}\" is not a list of hosts: {cause}"), NOT_FROM_SLURM);
        Ok((name, hostlist::hosts(&list).map_err(invalid)?))
    }
}

fn missing(names: &[&str]) -> PlanError {
    error(format!("this is a job of Slurm, but {} is not set", names.join(" or ")), NOT_FROM_SLURM)
}
