//! Whether a task may still start. What was allowed when it was submitted may not be so any more: its owner may have lost
//! the role, or the secrets that it names may be gone. It then ends with that as its reason: trying again changes nothing.

use instep_api::identifiers::{UserId, WorkspaceId};
use instep_database::{Database, Result, Subject};
use instep_policy::lifecycle::End;
use instep_policy::permissions::{Action, Answer, Kind};

use super::allocation::AllocationEvent;
use super::outbox::Outbox;
use super::state::ClusterState;
use crate::grants;

/// For whom a task runs, and where it lies now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Permit {
    pub owner: UserId,
    pub workspace: WorkspaceId,
}

/// Finds out whether a task may start now, or the sentence that says why not.
pub(super) async fn check(database: &Database, roles: bool, task: &str) -> Result<std::result::Result<Permit, String>> {
    let found = database.ownership(Subject::Task(task.to_owned())).await?.unwrap_or_default();
    let (Some(&owner), Some(workspace)) = (found.owners.first(), found.workspace) else {
        return Ok(Err("what it belongs to was deleted".to_owned()));
    };
    let user = database.user(owner).await?;
    let name = &user.username;
    if !user.active {
        return Ok(Err(format!(
            "its owner {name} has been deactivated\nhint: an administrator can activate {name} again, or somebody else \
             submits it"
        )));
    }
    let (kind, what) = match found.experiment {
        Some(_) => (Kind::Experiment, "experiments"),
        None => (Kind::Task, "commands and TensorBoards"),
    };
    let may = |grants: grants::Grants| grants.decide(Action::Make, kind, workspace) == Answer::Allowed;
    if roles && !may(grants::of(database, owner, user.admin).await?) {
        let place = database.workspace(workspace).await?.name;
        return Ok(Err(format!(
            "its owner {name} may not run {what} in workspace {place} any more: that takes the role editor there\n\
             hint: who owns the workspace can give it: instep workspace share {place} {name} --role editor"
        )));
    }
    Ok(Ok(Permit { owner, workspace }))
}

impl ClusterState {
    /// Ends an allocation that waits for slots and may not have them.
    pub(super) fn deny(&mut self, name: &str, why: &str, outbox: &mut Outbox) {
        let end = End::Impossible { why: format!("it may not start: {why}") };
        self.allocations.deny(name, end.clone(), outbox);
        self.allocation_event(name, AllocationEvent::Ended { end }, outbox);
    }
}
