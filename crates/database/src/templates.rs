//! Templates: parts of configurations that many experiments share.

use instep_api::identifiers::{UserId, WorkspaceId};
use instep_api::templates::Template;
use instep_api::wire::Timestamp;
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{json, text_of};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

impl Database {
    /// All templates, by name.
    pub async fn templates(&self) -> Result<Vec<Template>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM templates ORDER BY name")?;
                let found = statement.query_map([], template)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// A template and whose it is.
    pub async fn template(&self, name: String) -> Result<(Template, UserId)> {
        self.executor.read(move |connection| template_by_name(connection, &name)).await
    }

    /// Makes a template.
    pub async fn create_template(&self, new: Template, owner: UserId, now: Timestamp) -> Result<Template> {
        self.executor
            .write(move |connection| {
                let made = connection.execute(
                    "INSERT INTO templates (name, config, workspace_id, user_id, created_at) VALUES (?, ?, ?, ?, ?) \
                     ON CONFLICT (name) DO NOTHING",
                    params![new.name, text_of(&*new.config)?, new.workspace_id.0, owner.0, now.0],
                )?;
                if made == 0 {
                    return Err(Error::AlreadyExists(format!("template '{}' already exists", new.name)));
                }
                Ok(template_by_name(connection, &new.name)?.0)
            })
            .await
    }

    /// Gives a template another configuration.
    pub async fn change_template(&self, name: String, config: Value) -> Result<Template> {
        self.executor
            .write(move |connection| {
                let sql = "UPDATE templates SET config = ? WHERE name = ?";
                connection.execute(sql, params![text_of(&config)?, name])?;
                Ok(template_by_name(connection, &name)?.0)
            })
            .await
    }

    /// Gives a template another name, which none has.
    pub async fn rename_template(&self, old: String, new: String) -> Result<Template> {
        self.executor
            .write(move |connection| {
                template_by_name(connection, &old)?;
                let taken = template_by_name(connection, &new).is_ok() && new != old;
                if taken {
                    return Err(Error::AlreadyExists(format!("template '{new}' already exists")));
                }
                connection.execute("UPDATE templates SET name = ? WHERE name = ?", [&new, &old])?;
                Ok(template_by_name(connection, &new)?.0)
            })
            .await
    }

    /// Deletes a template.
    pub async fn delete_template(&self, name: String) -> Result<()> {
        self.executor
            .write(move |connection| match connection.execute("DELETE FROM templates WHERE name = ?", [&name])? {
                0 => Err(Error::not_found("template", name)),
                _ => Ok(()),
            })
            .await
    }
}

fn template(row: &Row<'_>) -> sql::Result<Template> {
    Ok(Template {
        name: row.get("name")?,
        config: json::<Value>(row, "config")?.into(),
        workspace_id: WorkspaceId(row.get("workspace_id")?),
    })
}

fn template_by_name(connection: &Connection, name: &str) -> Result<(Template, UserId)> {
    let found = connection
        .prepare_cached("SELECT * FROM templates WHERE name = ?")?
        .query_row([name], |row| Ok((template(row)?, UserId(row.get("user_id")?))))
        .optional()?;
    found.ok_or_else(|| Error::not_found("template", name))
}
