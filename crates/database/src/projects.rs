//! Projects: their notes, and where they lie.

use instep_api::identifiers::{ProjectId, WorkspaceId};
use instep_api::preferences::Note;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::text_of;
use crate::sql::params;
use crate::workspaces::{project_by_id, workspace_by_id};

/// Bytes of all notes of a project.
const MOST_NOTES: usize = 1 << 20;

impl Database {
    /// Writes the notes of a project: what `change` makes of those that are there.
    pub async fn change_notes(
        &self,
        id: ProjectId,
        change: impl FnOnce(Vec<Note>) -> Vec<Note> + Send + 'static,
    ) -> Result<Vec<Note>> {
        self.executor
            .write(move |connection| {
                let notes = change(project_by_id(connection, id)?.notes);
                let text = text_of(&notes)?;
                if text.len() > MOST_NOTES {
                    let what = format!("the notes of a project may have {MOST_NOTES} bytes, not {}", text.len());
                    return Err(Error::Invalid(what));
                }
                connection.execute("UPDATE projects SET notes = ? WHERE id = ?", params![text, id.0])?;
                Ok(notes)
            })
            .await
    }

    /// Moves a project into another workspace, with everything in it.
    pub async fn move_project(&self, id: ProjectId, workspace: WorkspaceId) -> Result<()> {
        self.executor
            .write(move |connection| {
                let project = project_by_id(connection, id)?;
                let destination = workspace_by_id(connection, workspace)?;
                for (name, immutable, archived) in [
                    (format!("project '{}'", project.name), project.immutable, project.archived),
                    (format!("workspace '{}'", destination.name), destination.immutable, destination.archived),
                ] {
                    if immutable || archived {
                        let why = if immutable { "immutable" } else { "archived" };
                        return Err(Error::Precondition(format!("{name} is {why}")));
                    }
                }
                let sql = "SELECT EXISTS (SELECT 1 FROM projects WHERE workspace_id = ? AND name = ? AND id <> ?)";
                let taken: bool =
                    connection.query_row(sql, params![workspace.0, project.name, id.0], |row| row.get(0))?;
                if taken {
                    let what = format!("project with name '{}' already exists in target workspace", project.name);
                    return Err(Error::AlreadyExists(what));
                }
                connection.execute("UPDATE projects SET workspace_id = ? WHERE id = ?", [workspace.0, id.0])?;
                Ok(())
            })
            .await
    }
}
