//! Deletes files that were given up. The database says which; done twice it changes nothing, so it is simply done again
//! after a crash or a failure: at the next start, and with the next deletion.

use std::path::PathBuf;
use std::sync::Arc;

use instep_api::states::LogLevel;
use instep_database::Deletion;
use tokio::sync::Mutex;

use crate::application::Application;
use crate::collections::Collections;
use crate::file_owners::{FileOwners, Foreign};
use crate::storage::{StorageRoots, Unreachable, remove};

/// One at a time: two would only be in each other's way.
static AT_WORK: Mutex<()> = Mutex::const_new(());

/// Files that could not be deleted, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub uuid: String,
    pub why: String,
}

/// Deletes everything that is to be deleted. The work goes on if the caller does not wait for it.
pub(crate) async fn carry_out(application: &Arc<Application>) -> instep_database::Result<Vec<Problem>> {
    let application = Arc::clone(application);
    let work = tokio::spawn(async move {
        let _alone = AT_WORK.lock().await;
        let mut problems = Vec::new();
        let mut collections = Collections::of(&application.database);
        for deletion in application.database.deletions().await? {
            collections.go_on_to(deletion.experiment).await?;
            let (id, uuid) = (deletion.id, deletion.uuid.clone());
            let what = described(&deletion);
            let storage = application.storage.clone();
            let owners = match deletion.owner {
                Some(owner) => Some(FileOwners::of(&application.database, owner).await?),
                None => None,
            };
            let outcome = tokio::task::spawn_blocking(move || delete(&storage, &deletion, owners.as_ref())).await;
            match outcome.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(outcome) => {
                    application.database.deletion_done(id).await?;
                    match outcome {
                        Outcome::Deleted => collections.say(LogLevel::Info, &format!("deleted {what}")).await,
                        Outcome::Stays(why) => {
                            collections.say(LogLevel::Warning, &format!("the files of {what} stay: {why}")).await;
                        }
                    }
                }
                Err(why) => {
                    collections.say(LogLevel::Error, &format!("cannot delete {what}: {why}")).await;
                    problems.push(Problem { uuid, why });
                }
            }
        }
        collections.end().await?;
        Ok(problems)
    });
    // It ends early only with the runtime; what is left is done at the next start.
    work.await.unwrap_or(Err(instep_database::Error::Closed))
}

/// What became of files that were given up.
enum Outcome {
    Deleted,
    /// Trying again would not help.
    Stays(String),
}

fn described(deletion: &Deletion) -> String {
    match (&deletion.folder, &deletion.paths) {
        (Some(_), _) => format!("what experiment {} wrote for TensorBoard", deletion.uuid),
        (None, None) => format!("checkpoint {}", deletion.uuid),
        (None, Some(paths)) => format!("{} files of checkpoint {}", paths.len(), deletion.uuid),
    }
}

fn delete(roots: &StorageRoots, deletion: &Deletion, owners: Option<&FileOwners>) -> Result<Outcome, String> {
    let storage = match roots.find(&deletion.storage) {
        Ok(storage) => storage,
        // The files are where this master cannot reach.
        Err(why @ (Unreachable::Kind(_) | Unreachable::Missing | Unreachable::Path(_))) => {
            return Ok(Outcome::Stays(why.to_string()));
        }
        Err(why @ Unreachable::Outside(_)) => {
            tracing::warn!(checkpoint = deletion.uuid, "a checkpoint's files stay: {why}");
            return Ok(Outcome::Stays(why.to_string()));
        }
    };
    let paths: Option<Vec<PathBuf>> = deletion.paths.as_ref().map(|paths| paths.iter().map(PathBuf::from).collect());
    let storage = deletion.folder.as_ref().map_or(storage.clone(), |folder| storage.within(folder));
    match remove(&storage, &deletion.uuid, paths.as_deref(), owners) {
        Err(error) if error.get_ref().is_some_and(|inner| inner.is::<Foreign>()) => {
            tracing::warn!(checkpoint = deletion.uuid, "a checkpoint's files stay: {error}");
            Ok(Outcome::Stays(error.to_string()))
        }
        Ok(()) => Ok(Outcome::Deleted),
        Err(error) => Err(format!("{}: {error}", storage.path().join(&deletion.uuid).display())),
    }
}
