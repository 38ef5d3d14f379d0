//! Who may read, make and change what: asked in this one place.
//!
//! The table of routes says which thing a request is about ([`Thing`]); here is found out whose it is and where it lies,
//! and whether the caller may. Without roles everybody reads, and a thing is changed by its owners. With roles
//! [`Grants::decide`] says; what the caller may not see is answered as what is not there.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use instep_api::identifiers::{UserId, WorkspaceId};
use instep_database::{Ownership, SessionTask, Subject};
use instep_policy::permissions::{Action, Answer, Grants, Kind, Permission, Scope, Sight};

use super::access::{Access, Thing};
use super::call::Call;
use super::failure::Failure;
use crate::application::Application;

/// The workspace of everything that names none. Everybody knows that it is there.
pub(super) const FIRST_WORKSPACE: WorkspaceId = WorkspaceId(1);

/// Refuses a request about what its caller may not see or change.
pub(crate) async fn check(call: &Call) -> Result<(), Failure> {
    let (thing, is_change) = match call.route.access {
        Access::Change(thing) => (thing, true),
        Access::Read(thing) if call.grants.is_some() => (thing, false),
        Access::Proxy if call.grants.is_some() => (Thing::Command, false),
        _ => return Ok(()),
    };
    let named = |part: &str| call.part(part).to_owned();
    // A port of a task is seen by those who see the task.
    let task = || named("id").split(':').next().unwrap_or_default().to_owned();
    let subject = match thing {
        Thing::Experiment => Subject::Experiment(call.id("id")?),
        Thing::ExternalExperiment => Subject::ExternalExperiment(named("external")),
        Thing::Trial => Subject::Trial(call.id("id")?),
        Thing::Allocation => Subject::Allocation(named("id")),
        Thing::Checkpoint => Subject::Checkpoint(named("uuid")),
        Thing::Command if call.route.access == Access::Proxy => Subject::Task(task()),
        Thing::Command | Thing::Task => Subject::Task(named("id")),
        Thing::Model => Subject::Model(named("name")),
        Thing::ModelVersion => Subject::ModelVersion(named("name"), call.id("version")?),
        Thing::Workspace => Subject::Workspace(call.id("id")?),
        Thing::Project => Subject::Project(call.id("id")?),
        Thing::Template => Subject::Template(named("name")),
        Thing::User => return is_oneself(call, call.id("id")?).await,
        Thing::Log => return administrates(call),
        Thing::Common | Thing::Several | Thing::InBody => return Ok(()),
    };
    // What is not there, and what the caller may not see, have the same answer. These two are made by changing them.
    let can_be_new = is_change && matches!(thing, Thing::Template | Thing::ExternalExperiment);
    if call.grants.is_some() && !can_be_new && call.application.database.ownership(subject.clone()).await?.is_none() {
        return Err(explained(call, missing(&subject)));
    }
    let asked = if is_change { call.may_change(subject).await } else { call.may_read(subject).await };
    asked.map_err(|failure| if call.grants.is_some() { explained(call, failure) } else { failure })
}

/// Whether a handler has to ask what its caller may see or make.
pub(crate) fn must_ask(access: Access) -> bool {
    matches!(access, Access::Make | Access::Share | Access::Read(Thing::Several))
}

/// For whoever has been given nothing at all.
const WITHOUT_ROLE: &str = "you have no role in its workspace, nor in any other: let an administrator, or the owner of a \
    workspace, give you one with `instep workspace share WORKSPACE USER --role editor`";

fn missing(subject: &Subject) -> Failure {
    Failure::not_found(format!("{} '{}' not found", subject.noun(), subject.name()))
}

/// Says what else it may be that something is not found.
fn explained(call: &Call, failure: Failure) -> Failure {
    let hint = match &call.grants {
        Some(grants) if grants.assignments().is_empty() => WITHOUT_ROLE,
        _ => "it does not exist, or you have no role in its workspace; `instep workspace list` shows yours",
    };
    match failure.code {
        instep_api::error::Code::NotFound => Failure::not_found(format!("{}\nhint: {hint}", failure.message)),
        _ => failure,
    }
}

fn administrates(call: &Call) -> Result<(), Failure> {
    if call.task.is_none() && call.user()?.admin {
        return Ok(());
    }
    Err(Failure::forbidden("with roles, only administrators may read the master's log"))
}

async fn is_oneself(call: &Call, user: UserId) -> Result<(), Failure> {
    if let Ok(named) = call.application.database.user(user).await {
        call.noted.subject(format!("user {}", named.username));
    }
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

/// What roles call a thing.
fn kind_of(subject: &Subject, found: &Ownership) -> Kind {
    match subject {
        Subject::Experiment(_) | Subject::ExternalExperiment(_) | Subject::Trial(_) => Kind::Experiment,
        Subject::Task(_) | Subject::Allocation(_) | Subject::Checkpoint(_) | Subject::Job(_) => {
            if found.experiment.is_some() { Kind::Experiment } else { Kind::Task }
        }
        Subject::Model(_) | Subject::ModelVersion(..) => Kind::Model,
        Subject::Workspace(_) => Kind::Workspace,
        Subject::Project(_) => Kind::Project,
        Subject::Template(_) => Kind::Template,
    }
}

/// What roles say about an action. Whatever lies in no workspace is nobody's but the administrators'.
fn decide(grants: &Grants, subject: &Subject, found: &Ownership, action: Action) -> Answer {
    let Some(workspace) = found.workspace else {
        return if grants.administrates() { Answer::Allowed } else { Answer::Hidden };
    };
    // A TensorBoard shows experiments, which may lie elsewhere.
    let sees = |workspace: &WorkspaceId| grants.decide(Action::Read, Kind::Experiment, *workspace) == Answer::Allowed;
    if !found.shown.iter().all(sees) {
        return Answer::Hidden;
    }
    grants.decide(action, kind_of(subject, found), workspace)
}

/// What people call a kind of thing, several of them.
fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Workspace => "workspaces",
        Kind::Project => "projects",
        Kind::Experiment => "experiments",
        Kind::Task => "commands and TensorBoards",
        Kind::Model => "models",
        Kind::Template => "templates",
    }
}

/// Where something is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub workspace: WorkspaceId,
    /// What the request names: what is said not to be found if the caller may not see it. `None` if it names nothing.
    pub named: Option<String>,
}

impl Place {
    /// A workspace, or the first one if none was named.
    pub(crate) fn workspace(id: Option<WorkspaceId>) -> Place {
        let id = id.filter(|id| id.0 != 0);
        Place { workspace: id.unwrap_or(FIRST_WORKSPACE), named: id.map(|id| format!("workspace '{id}'")) }
    }
}

/// Whether somebody who has been given this may still look at a task's pages.
pub(crate) async fn sees_task(application: &Application, grants: Option<&Grants>, task: &str) -> Result<bool, Failure> {
    let Some(grants) = grants else { return Ok(true) };
    let subject = Subject::Task(task.to_owned());
    let found = application.database.ownership(subject.clone()).await?;
    Ok(found.is_some_and(|found| decide(grants, &subject, &found, Action::Read) == Answer::Allowed))
}

impl Call {
    /// Notes that the handler asks about whatever it finds, be it nothing.
    pub(crate) fn note_asked(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// The workspaces in which the caller may read things of a kind.
    pub(crate) fn sight(&self, kind: Kind) -> Sight {
        self.note_asked();
        self.grants.as_ref().map_or(Sight::Everything, |grants| grants.sight(kind))
    }

    /// The same, for queries: `None` for all.
    pub(crate) fn seen_workspaces(&self, kind: Kind) -> Option<Vec<WorkspaceId>> {
        match self.sight(kind) {
            Sight::Everything => None,
            Sight::Workspaces(seen) => Some(seen.into_iter().collect()),
        }
    }

    /// Whether the caller sees all of some workspaces' experiments.
    pub(crate) fn sees_experiments_of(&self, workspaces: &BTreeSet<WorkspaceId>) -> bool {
        let sight = self.sight(Kind::Experiment);
        workspaces.iter().all(|workspace| sight.covers(*workspace))
    }

    /// Refuses to show a thing that the caller may not see, as if it were not there.
    pub(crate) async fn may_read(&self, subject: Subject) -> Result<(), Failure> {
        self.note_asked();
        self.may_read_with(self.grants.as_deref(), subject).await
    }

    /// The same, and refuses what is not there: what is named in a body tells nobody which of the two it is.
    pub(crate) async fn must_see(&self, subject: Subject) -> Result<(), Failure> {
        if self.application.database.ownership(subject.clone()).await?.is_none() {
            self.note_asked();
            return Err(missing(&subject));
        }
        self.may_read(subject).await
    }

    /// The same, by what the caller has been given by now.
    pub(crate) async fn may_read_with(&self, grants: Option<&Grants>, subject: Subject) -> Result<(), Failure> {
        let Some(grants) = grants else { return Ok(()) };
        let Some(found) = self.application.database.ownership(subject.clone()).await? else { return Ok(()) };
        // An allocation is where the task itself is told to stop.
        let own_allocation = matches!(subject, Subject::Allocation(_))
            && self.task.as_ref().is_some_and(|task| is_part_of(task, &found));
        if own_allocation || decide(grants, &subject, &found, Action::Read) == Answer::Allowed {
            return Ok(());
        }
        Err(missing(&subject))
    }

    /// Refuses a change of a thing that is not the caller's to change.
    pub(crate) async fn may_change(&self, subject: Subject) -> Result<(), Failure> {
        self.note_asked();
        let caller = self.user()?;
        let what = subject.noun();
        self.noted.subject(&subject);
        // The registry is where tasks leave what they have made, in models that their owners made.
        let registry = matches!(subject, Subject::Model(_) | Subject::ModelVersion(..));
        let Some(found) = self.application.database.ownership(subject.clone()).await? else { return Ok(()) };
        let is_owner = found.owners.contains(&caller.id);
        // What a task reports of itself stays welcome for as long as it runs.
        if self.task.as_ref().is_some_and(|task| is_part_of(task, &found)) {
            return Ok(());
        }
        let decided =
            self.grants.as_ref().map(|grants| decide(grants, &subject, &found, Action::Change { own: is_owner }));
        if decided == Some(Answer::Hidden) {
            return Err(missing(&subject));
        }
        if let Some(task) = &self.task {
            let allowed = registry && is_owner && decided.is_none_or(|answer| answer == Answer::Allowed);
            return if allowed { Ok(()) } else { Err(not_the_tasks(task, what)) };
        }
        match decided {
            Some(Answer::Allowed) => Ok(()),
            None if caller.admin || is_owner => Ok(()),
            None => Err(Failure::forbidden(format!("only its owner and administrators may change this {what}"))),
            Some(Answer::Refused | Answer::Hidden) => Err(Failure::forbidden(format!(
                "access denied: only its owner with the role Editor, the owners of its workspace and administrators may \
                 change this {what}\nhint: `instep workspace members WORKSPACE` shows who they are"
            ))),
        }
    }

    /// Refuses to put a version into a model whose workspace the caller only reads.
    pub(crate) async fn may_add_to(&self, subject: Subject) -> Result<(), Failure> {
        self.note_asked();
        let Some(grants) = &self.grants else { return Ok(()) };
        let Some(found) = self.application.database.ownership(subject.clone()).await? else { return Ok(()) };
        match decide(grants, &subject, &found, Action::Change { own: true }) {
            Answer::Allowed => Ok(()),
            Answer::Hidden => Err(missing(&subject)),
            Answer::Refused => Err(Failure::forbidden(format!(
                "access denied: adding to this {} takes the role Editor in its workspace\n\
                 hint: `instep workspace members WORKSPACE` shows who can give it",
                subject.noun()
            ))),
        }
    }

    /// Refuses to make a thing of a kind where the caller may not.
    pub(crate) fn may_make(&self, kind: Kind, place: &Place) -> Result<(), Failure> {
        self.note_asked();
        let Some(grants) = &self.grants else { return Ok(()) };
        let refused = || {
            let what = plural(kind);
            let place = match place.workspace {
                FIRST_WORKSPACE => "the workspace Uncategorized".to_owned(),
                id => format!("workspace {id}"),
            };
            let hint = match kind {
                _ if grants.assignments().is_empty() => {
                    "you have no role in any workspace: let an administrator, or the owner of a workspace, give you one \
                     with `instep workspace share WORKSPACE USER --role editor`"
                }
                Kind::Task => {
                    "name a workspace where you have it, with --workspace or `workspace` in the configuration; `instep \
                     workspace list` shows yours"
                }
                _ => {
                    "name a workspace where you have it, such as with `workspace` in an experiment's configuration; \
                     `instep workspace list` shows yours"
                }
            };
            Failure::forbidden(format!(
                "access denied: you may not create {what} in {place}: that takes the role editor there\nhint: {hint}"
            ))
        };
        match (grants.decide(Action::Make, kind, place.workspace), &place.named) {
            (Answer::Allowed, _) => Ok(()),
            (Answer::Hidden, Some(named)) => Err(Failure::not_found(format!("{named} not found"))),
            (Answer::Refused, _) | (Answer::Hidden, None) => Err(refused()),
        }
    }

    /// Refuses to make a workspace, if the caller may not.
    pub(crate) fn may_make_workspace(&self) -> Result<(), Failure> {
        self.note_asked();
        match &self.grants {
            Some(grants) if !grants.has(Permission::CreateWorkspace, Scope::Everywhere) => Err(Failure::forbidden(
                "creating workspaces takes the role WorkspaceCreator\n\
                 hint: an administrator gives it: instep workspace share --everywhere USER --role creator",
            )),
            _ => Ok(()),
        }
    }
}
