//! Whose a thing is: asked before it is changed, in this one place.
//!
//! The table of routes says which thing a request changes ([`Thing`]); here is found out whose it is, and whether the
//! caller is one of those. A thing that does not exist belongs to nobody: the handler says that it is not there.

use instep_api::identifiers::UserId;
use instep_database::{Ownership, SessionTask, Subject};

use super::call::Call;
use super::failure::Failure;
use super::guard::{Access, Thing};

/// Refuses a request that would change what is not its caller's.
pub(crate) async fn check(call: &Call) -> Result<(), Failure> {
    let Access::Change(thing) = call.route.access else { return Ok(()) };
    let named = |part: &str| call.part(part).to_owned();
    let subject = match thing {
        Thing::Experiment => Subject::Experiment(call.id("id")?),
        Thing::ExternalExperiment => Subject::ExternalExperiment(named("external")),
        Thing::Trial => Subject::Trial(call.id("id")?),
        Thing::Allocation => Subject::Allocation(named("id")),
        Thing::Checkpoint => Subject::Checkpoint(named("uuid")),
        Thing::Command => Subject::Task(named("id")),
        Thing::Model => Subject::Model(named("name")),
        Thing::ModelVersion => Subject::ModelVersion(named("name"), call.id("version")?),
        Thing::Workspace => Subject::Workspace(call.id("id")?),
        Thing::Project => Subject::Project(call.id("id")?),
        Thing::Template => Subject::Template(named("name")),
        Thing::User => return is_oneself(call, call.id("id")?),
        Thing::InBody => return Ok(()),
    };
    call.may_change(subject).await
}

fn is_oneself(call: &Call, user: UserId) -> Result<(), Failure> {
    if let Some(task) = &call.task {
        return Err(not_the_tasks(task, "user"));
    }
    let caller = call.user()?;
    if caller.admin || caller.id == user {
        return Ok(());
    }
    Err(Failure::forbidden("only administrators may change other users"))
}

fn not_the_tasks(task: &SessionTask, what: &str) -> Failure {
    Failure::forbidden(format!(
        "the token of task {} may not change this {what}: it only changes what is the task's own\n\
         hint: log in, and do it with the token of the login",
        task.task
    ))
}

/// Whether a thing is a part of what a task does: its trial, its experiment, or the task itself.
fn is_part_of(task: &SessionTask, found: &Ownership) -> bool {
    match (found.trial, found.experiment) {
        (Some(trial), _) => task.trial == Some(trial),
        (None, Some(experiment)) => task.experiment == Some(experiment),
        (None, None) => found.task.as_ref() == Some(&task.task),
    }
}

impl Call {
    /// Refuses a change of a thing that is not the caller's.
    pub(crate) async fn may_change(&self, subject: Subject) -> Result<(), Failure> {
        let caller = self.user()?;
        let what = subject.noun();
        // The registry is where tasks leave what they have made, in models that their owners made.
        let registry = matches!(subject, Subject::Model(_) | Subject::ModelVersion(..));
        let Some(found) = self.application.database.ownership(subject).await? else { return Ok(()) };
        let is_owner = found.owners.contains(&caller.id);
        if let Some(task) = &self.task {
            let allowed = is_part_of(task, &found) || (registry && is_owner);
            return if allowed { Ok(()) } else { Err(not_the_tasks(task, what)) };
        }
        if caller.admin || is_owner {
            return Ok(());
        }
        Err(Failure::forbidden(format!("only its owner and administrators may change this {what}")))
    }
}
