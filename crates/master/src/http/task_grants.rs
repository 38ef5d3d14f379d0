//! Who may open what a task serves, and whether they still may.

use instep_api::error::Code;
use instep_database::{CommandRow, Subject};

use super::failure::Failure;
use super::ownership::sees_task;
use crate::application::Application;
use crate::cluster::{Kind, Target};
use crate::task_access::Page;

/// What a task's page is to the session that it was granted to; nothing once the session has ended, or its user may not
/// see the task any more. Asked with every request, and of open websockets.
pub(crate) async fn granted(
    application: &Application,
    session: &str,
    target: &Target,
    tcp: bool,
) -> Result<Option<Page>, Failure> {
    match check_opens(application, session, target, tcp).await {
        Ok(page) => Ok(Some(page)),
        Err(failure) if failure.code == Code::Internal => Err(failure),
        Err(_) => Ok(None),
    }
}

/// What a task's page is to the session that wants to open it; an error if it may not. What is no HTTP may be anything, a
/// debugger for one, and is treated like what runs programs.
pub(super) async fn check_opens(
    application: &Application,
    session: &str,
    target: &Target,
    tcp: bool,
) -> Result<Page, Failure> {
    let task = &target.task;
    let missing = || Failure::not_found(format!("task '{task}' not found"));
    let known = application.session_of_hash(session.to_owned()).await?.ok_or_else(Failure::unauthenticated)?;
    if !sees_task(application, known.grants.as_deref(), task).await? {
        return Err(missing());
    }
    let found = application.database.ownership(Subject::Task(task.clone())).await?.ok_or_else(missing)?;
    let kind = row_of(application, task).await?.and_then(|row| Kind::of(&row.kind));
    let (user, of_task) = (&known.session.user, &known.session.task);
    let own = found.owners.contains(&user.id);
    let typed = kind.is_some_and(Kind::runs_what_is_typed);
    if !typed && !tcp {
        // Nobody knows whose program listens on a port that a task names.
        return Ok(if own && target.port.is_none() { Page::Own } else { Page::Foreign });
    }
    // The token of a task stands for what that task does, and not for all that its user has.
    if (own || user.admin) && of_task.as_ref().is_none_or(|of_task| of_task.task == *task) {
        return Ok(if typed { Page::Notebook } else { Page::Own });
    }
    let what = match kind {
        Some(Kind::Notebook) => format!("notebook {task} runs programs as its owner"),
        Some(Kind::Shell) => format!("shell {task} runs programs as its owner"),
        _ => format!("{target} is a port without HTTP, which may run programs as its owner"),
    };
    let what = format!("{what}: only they and administrators may open it");
    Err(Failure::forbidden(format!(
        "{what}\nhint: start your own, with `instep notebook start` or `instep shell start`"
    )))
}

/// Whether what asks for no login stays open: a shell does as long as its owner may log in.
pub(crate) async fn is_for_everybody(application: &Application, target: &Target) -> Result<bool, Failure> {
    match row_of(application, &target.task).await? {
        Some(row) if Kind::of(&row.kind) == Some(Kind::Shell) => Ok(application.database.user(row.owner).await?.active),
        _ => Ok(true),
    }
}

/// A task beside experiments, if it is one.
pub(super) async fn row_of(application: &Application, task: &str) -> Result<Option<CommandRow>, Failure> {
    match application.database.command(task.to_owned()).await {
        Ok(row) => Ok(Some(row)),
        Err(instep_database::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
