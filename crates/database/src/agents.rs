//! Agents: the machines that lend their slots, and what lets them in.

use instep_api::identifiers::UserId;
use instep_api::wire::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{column, json, text_of, time};

/// An agent, as it was when it was last heard of.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentRow {
    /// By which it is known for ever.
    pub name: String,
    /// Whose slots its slots are.
    pub pool: String,
    /// Of its program.
    pub version: String,
    /// A list of texts.
    pub addresses: Value,
    /// A list of devices.
    pub devices: Value,
    /// Whether it is given work.
    pub enabled: bool,
    /// Whether it only finishes what it has.
    pub draining: bool,
    /// A list of the slots that were disabled one by one.
    pub disabled_slots: Value,
    /// When it first came, or came back after it had been given up.
    pub registered_at: Timestamp,
    /// When it was last heard of.
    pub last_seen_at: Timestamp,
}

fn agent_of(row: &Row<'_>) -> rusqlite::Result<AgentRow> {
    Ok(AgentRow {
        name: column(row, "name")?,
        pool: column(row, "pool")?,
        version: column(row, "version")?,
        addresses: json(row, "addresses")?,
        devices: json(row, "devices")?,
        enabled: column(row, "enabled")?,
        draining: column(row, "draining")?,
        disabled_slots: json(row, "disabled_slots")?,
        registered_at: time(row, "registered_at")?,
        last_seen_at: time(row, "last_seen_at")?,
    })
}

pub(crate) fn put(connection: &Connection, agent: &AgentRow) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO agents (name, pool, version, addresses, devices, enabled, draining, disabled_slots, \
             registered_at, last_seen_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (name) DO UPDATE SET pool = excluded.pool, version = excluded.version, \
             addresses = excluded.addresses, devices = excluded.devices, enabled = excluded.enabled, \
             draining = excluded.draining, disabled_slots = excluded.disabled_slots, \
             registered_at = excluded.registered_at, last_seen_at = excluded.last_seen_at",
        )?
        .execute(params![
            agent.name,
            agent.pool,
            agent.version,
            text_of(&agent.addresses)?,
            text_of(&agent.devices)?,
            agent.enabled,
            agent.draining,
            text_of(&agent.disabled_slots)?,
            agent.registered_at.0,
            agent.last_seen_at.0
        ])?;
    Ok(())
}

impl Database {
    /// All agents that were ever here, by name.
    pub async fn agents(&self) -> Result<Vec<AgentRow>> {
        self.engine
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM agents ORDER BY name")?;
                let found = statement.query_map([], agent_of)?;
                Ok(found.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }

    /// Lets agents in by a token, which people know by a name.
    pub async fn create_agent_token(&self, hash: String, name: String, user: UserId, now: Timestamp) -> Result<()> {
        self.engine
            .write(move |connection| {
                let inserted = connection.execute(
                    "INSERT INTO agent_tokens (token_hash, name, user_id, created_at) VALUES (?, ?, ?, ?) \
                     ON CONFLICT (name) DO NOTHING",
                    params![hash, name, user.0, now.0],
                )?;
                let taken = || Error::AlreadyExists(format!("agent token '{name}' already exists"));
                if inserted == 1 { Ok(()) } else { Err(taken()) }
            })
            .await
    }

    /// The names of the tokens that let agents in, who made them and when.
    pub async fn agent_tokens(&self) -> Result<Vec<(String, UserId, Timestamp)>> {
        self.engine
            .read(|connection| {
                let sql = "SELECT name, user_id, created_at FROM agent_tokens ORDER BY name";
                let mut statement = connection.prepare_cached(sql)?;
                let found =
                    statement.query_map([], |row| Ok((row.get(0)?, UserId(row.get(1)?), Timestamp(row.get(2)?))))?;
                Ok(found.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }

    /// Takes a token back; agents that are connected with it stay so.
    pub async fn delete_agent_token(&self, name: String) -> Result<()> {
        self.engine
            .write(move |connection| match connection.execute("DELETE FROM agent_tokens WHERE name = ?", [&name])? {
                0 => Err(Error::not_found("agent token", name)),
                _ => Ok(()),
            })
            .await
    }

    /// The name of the token that lets an agent in, if this is one.
    pub async fn agent_token_name(&self, hash: String) -> Result<Option<String>> {
        self.engine
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT name FROM agent_tokens WHERE token_hash = ?")?;
                Ok(statement.query_row([hash], |row| row.get(0)).optional()?)
            })
            .await
    }
}
