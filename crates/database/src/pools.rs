//! Which workspaces a resource pool is for, and what configurations must be.

use instep_api::identifiers::WorkspaceId;
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::text_of;
use crate::sql::{self, Connection, OptionalExtension, params};

/// Where policies are kept that hold in all workspaces.
const EVERYWHERE: i64 = 0;

fn bind(connection: &Connection, pool: &str, workspaces: &[WorkspaceId]) -> Result<()> {
    for workspace in workspaces {
        connection
            .prepare_cached(
                "INSERT INTO pool_workspaces (pool, workspace_id) VALUES (?, ?) \
                 ON CONFLICT (pool, workspace_id) DO NOTHING",
            )?
            .execute(params![pool, workspace.0])?;
    }
    Ok(())
}

impl Database {
    /// The pools that are bound to workspaces, and to which: pool and workspace, by name and number.
    pub async fn pool_bindings(&self) -> Result<Vec<(String, WorkspaceId)>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT pool, workspace_id FROM pool_workspaces ORDER BY pool, workspace_id";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([], |row| Ok((row.get(0)?, WorkspaceId(row.get(1)?))))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Binds a pool to further workspaces.
    pub async fn bind_pool(&self, pool: String, workspaces: Vec<WorkspaceId>) -> Result<()> {
        self.executor.write(move |connection| bind(connection, &pool, &workspaces)).await
    }

    /// Binds a pool to these workspaces and no others; to none, and it is everybody's.
    pub async fn rebind_pool(&self, pool: String, workspaces: Vec<WorkspaceId>) -> Result<()> {
        self.executor
            .write(move |connection| {
                connection.execute("DELETE FROM pool_workspaces WHERE pool = ?", [&pool])?;
                bind(connection, &pool, &workspaces)
            })
            .await
    }

    /// Frees a pool from workspaces.
    pub async fn unbind_pool(&self, pool: String, workspaces: Vec<WorkspaceId>) -> Result<()> {
        self.executor
            .write(move |connection| {
                for workspace in workspaces {
                    let sql = "DELETE FROM pool_workspaces WHERE pool = ? AND workspace_id = ?";
                    connection.execute(sql, params![pool, workspace.0])?;
                }
                Ok(())
            })
            .await
    }

    /// What configurations of a kind of work must be, in a workspace or (`None`) everywhere.
    pub async fn config_policies(&self, workspace: Option<WorkspaceId>, workload: String) -> Result<Option<Value>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT content FROM config_policies WHERE workspace_id = ? AND workload = ?";
                let mut statement = connection.prepare_cached(sql)?;
                let place = workspace.map_or(EVERYWHERE, |workspace| workspace.0);
                let text: Option<String> =
                    statement.query_row(params![place, workload], |row| row.get(0)).optional()?;
                let read = |text: String| serde_json::from_str(&text);
                text.map(read).transpose().map_err(|error| Error::Damaged(error.to_string()))
            })
            .await
    }

    /// Says what they must be, or (`None`) nothing any more.
    pub async fn set_config_policies(
        &self,
        workspace: Option<WorkspaceId>,
        workload: String,
        content: Option<Value>,
    ) -> Result<()> {
        self.executor
            .write(move |connection| {
                if let Some(workspace) = workspace {
                    crate::workspaces::workspace_by_id(connection, workspace)?;
                }
                let place = workspace.map_or(EVERYWHERE, |workspace| workspace.0);
                let sql = "DELETE FROM config_policies WHERE workspace_id = ? AND workload = ?";
                connection.execute(sql, params![place, workload])?;
                if let Some(content) = content {
                    let sql = "INSERT INTO config_policies (workspace_id, workload, content) VALUES (?, ?, ?)";
                    connection.execute(sql, params![place, workload, text_of(&content)?])?;
                }
                Ok(())
            })
            .await
    }
}
