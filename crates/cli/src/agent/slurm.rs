//! The node of a Slurm job that an agent was started on: `srun instep agent --for ALLOCATION`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use instep_agent::agent::lock;
use instep_api::link::Bound;

use super::pod;
use crate::report::Hinted;

/// Letters of an agent's name that are the node's.
pub(super) const LONGEST_NODE: usize = 200;

/// Where this agent runs.
#[derive(Debug)]
pub(super) struct Node {
    name: String,
    pub(super) bound: Bound,
    pub(super) folder: NodeFolder,
}

impl Node {
    /// From what Slurm tells every task of a step, or the master its pods in Kubernetes.
    pub(super) fn this(allocation: &str) -> anyhow::Result<Node> {
        let variable = |name: &str| std::env::var(name).ok();
        let read = if pod::is_here(variable) { pod::read } else { read };
        let (name, bound) = read(allocation, variable)?;
        Ok(Node { name, bound, folder: NodeFolder::make()? })
    }

    /// The node's name, `-` and more: no two agents of a cluster have it, also if a node runs jobs one after the other.
    pub(super) fn agent_name(&self) -> String {
        self.name.clone()
    }
}

/// The name of the agent, and what binds it.
fn read(allocation: &str, variable: impl Fn(&str) -> Option<String>) -> Result<(String, Bound), Hinted> {
    let hint = "the master's jobs in Slurm start such agents by themselves, through srun; leave out --for elsewhere";
    let said = |name: &str| {
        let missing = || Hinted::new(format!("--for: {name} is not set: this is no task of a Slurm step"), hint);
        variable(name).filter(|text| !text.is_empty()).ok_or_else(missing)
    };
    let number = |name: &str| {
        let text = said(name)?;
        text.parse::<u32>().map_err(|_| Hinted::new(format!("--for: {name} is `{text}`, which is no number"), hint))
    };
    let proper = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
    let node: String = said("SLURMD_NODENAME")?.chars().filter(proper).take(LONGEST_NODE).collect();
    let bound = Bound {
        allocation: allocation.to_owned(),
        job: number("SLURM_JOB_ID")?.to_string(),
        node: number("SLURM_NODEID")?,
        nodes: number("SLURM_STEP_NUM_NODES")?,
    };
    Ok((format!("{node}-{}", bound.job), bound))
}

/// A folder of this node alone, which goes with the agent.
#[derive(Debug)]
pub(super) struct NodeFolder(PathBuf);

impl NodeFolder {
    fn make() -> anyhow::Result<NodeFolder> {
        let above = std::env::temp_dir();
        let unusable = |error: std::io::Error| {
            let what = format!("cannot make a folder for the agent's state in {}: {error}", above.display());
            Hinted::new(what, "set TMPDIR to a folder of the node that the job's user can write to")
        };
        let made = nix::unistd::mkdtemp(&above.join("instep-agent-XXXXXX")).map_err(|errno| unusable(errno.into()))?;
        // Tasks of other users, which root starts, must find their own folder.
        fs::set_permissions(&made, fs::Permissions::from_mode(0o711)).map_err(unusable)?;
        Ok(NodeFolder(made))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for NodeFolder {
    fn drop(&mut self) {
        // What still runs is ended by its own rules, and needs its folder for that.
        if lock::tasks_at_work(&self.0).is_ok_and(|running| running == 0) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_learns_from_slurm_where_it_is() {
        let step = |name: &str| {
            let value = match name {
                "SLURMD_NODENAME" => "gpu 07",
                "SLURM_JOB_ID" => "1234",
                "SLURM_NODEID" => "1",
                "SLURM_STEP_NUM_NODES" => "4",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let (name, bound) = read("5.t.1", step).unwrap();
        let expected = Bound { allocation: "5.t.1".to_owned(), job: "1234".to_owned(), node: 1, nodes: 4 };
        assert_eq!((name.as_str(), bound), ("gpu07-1234", expected));
        for missing in ["SLURM_JOB_ID", "SLURM_NODEID", "SLURMD_NODENAME", "SLURM_STEP_NUM_NODES"] {
            let error = read("5.t.1", |name| step(name).filter(|_| name != missing)).unwrap_err();
            assert!(error.to_string().contains(missing), "{error}");
        }
        let error = read("5.t.1", |name| step(name).map(|_| "x".to_owned())).unwrap_err();
        assert!(error.to_string().contains("no number"), "{error}");
    }
}
