//! What `--recover` and `--spares` mean: whether lost ranks are replaced, and from how many spare interpreters.

use std::cell::Cell;
use std::ffi::OsString;

use instep_policy::membership::MembershipTerms;

use super::error::{PlanError, error};
use super::request::Request;
use crate::output::logs;
use crate::workers::environment;

/// Spares kept on each node where `--spares` is not given.
const DEFAULT_SPARES: usize = 1;
/// What spares import where `--preload` is not given: torch and the session, and the compiler, which optimizers import.
const DEFAULT_PRELOAD: [&str; 2] = ["instep.elastic", "torch._dynamo"];

/// Which spare interpreters a node keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpareKind {
    /// One for each rank, for restarts of all workers (`--preload`).
    EachRank,
    /// So many for all ranks of the node together, for replacements (`--spares N`).
    Shared(usize),
    /// One for each rank that has run the script up to its loop, for replacements (`--spares hot`).
    Hot,
}

impl SpareKind {
    /// How many there are that can take over any rank, of a lost node too.
    pub fn for_any_rank(self) -> usize {
        match self {
            SpareKind::Shared(count) => count,
            SpareKind::EachRank | SpareKind::Hot => 0,
        }
    }
}

/// Whether a lost rank is replaced while its peers keep their step.
pub(super) fn step_recovery(request: &Request) -> Result<bool, PlanError> {
    let step = match request.recover.as_str() {
        "" | "round" => false,
        "step" => true,
        other => {
            let hint = "round restarts all workers when one is lost; step replaces that one";
            return Err(error(format!("--recover \"{other}\" is neither round nor step"), hint));
        }
    };
    if let (false, Some(spares)) = (step, &request.spares) {
        let hint = "add --recover step; --preload torch keeps spares for restarts of all workers";
        return Err(error(format!("--spares {spares} has no effect without --recover step"), hint));
    }
    Ok(step)
}

/// Refuses jobs in which ranks cannot be replaced one by one.
pub(super) fn check_terms(
    request: &Request,
    (least, most): (usize, usize),
    terms: &MembershipTerms,
    worker_serves_store: bool,
) -> Result<(), PlanError> {
    if !terms.step_recovery {
        return Ok(());
    }
    // torchrun waits for the largest number of them.
    if least < most && !terms.elastic() {
        let hint = format!("give one number of nodes (--nnodes {most}), or --rdzv-backend c10d");
        let nodes = request.nnodes();
        let message = format!("--recover step with a range of nodes (--nnodes {nodes}) needs the c10d rendezvous");
        return Err(error(message, hint));
    }
    if worker_serves_store {
        let name = environment::DISABLE_SHARED_STORE;
        let message = format!("--recover step needs the launcher's store, which {name}=1 replaces by that of rank 0");
        return Err(error(message, format!("unset {name}")));
    }
    Ok(())
}

/// What to know of the order of sums, where ranks may move to other nodes.
pub(super) fn order(terms: &MembershipTerms, given: Option<&str>) -> Option<String> {
    if !terms.step_recovery || terms.max_nodes == 1 {
        return None;
    }
    let name = environment::ORDER;
    match given {
        None => Some(format!(
            "{name}=canonical, so that ranks of a lost node continue elsewhere with the same bits; {name}=hosts is faster"
        )),
        Some("canonical") => None,
        Some(other) => Some(format!("{name}={other}: when ranks of a lost node move, the last bits of sums change")),
    }
}

/// Which spares a node keeps.
pub(super) fn spares(
    request: &Request,
    max_nodes: usize,
    command: &[OsString],
    warnings: &mut Vec<String>,
) -> Result<SpareKind, PlanError> {
    let spares = match request.spares.as_deref() {
        None if request.no_python => SpareKind::Shared(0),
        None => SpareKind::Shared(DEFAULT_SPARES),
        Some("hot") => SpareKind::Hot,
        Some(given) => SpareKind::Shared(given.parse().map_err(|_| {
            let hint = "give a number (0 starts replacements cold), or hot for a spare of every rank";
            error(format!("--spares \"{given}\" is neither a number of processes nor hot"), hint)
        })?),
    };
    let wanted = spares != SpareKind::Shared(0);
    if request.no_python {
        if spares == SpareKind::Hot || wanted && max_nodes == 1 {
            let hint = "leave one of them out; without Python there is no interpreter to prepare";
            return Err(error("--spares and --no-python contradict each other", hint));
        }
        return Ok(spares);
    }
    if matches!(spares, SpareKind::Shared(1..)) && names_local_rank(command) {
        let text = "no spares are kept: the command line names ${local_rank}, so that no spare fits every rank";
        warnings.push(text.to_owned());
        return Ok(SpareKind::Shared(0));
    }
    if !wanted && request.preload.is_some() {
        warnings.push("--preload has no effect without spares".to_owned());
    }
    Ok(spares)
}

/// What spares import.
pub(super) fn default_preload() -> Vec<String> {
    DEFAULT_PRELOAD.map(str::to_owned).to_vec()
}

fn names_local_rank(command: &[OsString]) -> bool {
    let found = Cell::new(false);
    for word in command.iter().filter_map(|word| word.to_str()) {
        logs::substitute(word, |name| {
            found.set(found.get() || name == "local_rank");
            None
        });
    }
    found.get()
}
