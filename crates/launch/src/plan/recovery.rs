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
    if let (false, Some(spares)) = (step, request.spares) {
        let hint = "add --recover step; --preload torch keeps spares for restarts of all workers";
        return Err(error(format!("--spares {spares} has no effect without --recover step"), hint));
    }
    Ok(step)
}

/// Refuses jobs in which ranks cannot be replaced one by one.
pub(super) fn check_terms(
    request: &Request,
    terms: &MembershipTerms,
    worker_serves_store: bool,
) -> Result<(), PlanError> {
    if !terms.step_recovery {
        return Ok(());
    }
    if terms.elastic() {
        let hint = format!("give one number of nodes (--nnodes {}), or leave out --recover step", terms.max_nodes);
        let nodes = &request.nnodes;
        return Err(error(format!("--recover step needs a fixed number of nodes, but --nnodes is {nodes}"), hint));
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

/// How many spares a node keeps for all of its ranks together, and how many ranks of lost nodes it takes over.
pub(super) fn spares(
    request: &Request,
    max_nodes: usize,
    command: &[OsString],
    warnings: &mut Vec<String>,
) -> Result<usize, PlanError> {
    let spares = match request.spares {
        None if request.no_python => 0,
        None => DEFAULT_SPARES,
        Some(given) => usize::try_from(given)
            .map_err(|_| error(format!("--spares {given} is negative"), "0 starts replacements cold"))?,
    };
    if request.no_python {
        if spares > 0 && max_nodes == 1 {
            let hint = "leave one of them out; without Python there is no interpreter to prepare";
            return Err(error("--spares and --no-python contradict each other on one node", hint));
        }
        return Ok(spares);
    }
    if spares > 0 && names_local_rank(command) {
        let text = "no spares are kept: the command line names ${local_rank}, so that no spare fits every rank";
        warnings.push(text.to_owned());
        return Ok(0);
    }
    if spares == 0 && request.preload.is_some() {
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
