//! Agents: the machines that lend their slots, and what lets them in.

use instep_api::identifiers::UserId;
use instep_api::wire::Timestamp;
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{column, json, text_of, time};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

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

/// A token that lets agents in, without itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentTokenRow {
    /// By which people know it.
    pub name: String,
    /// Who made it.
    pub user: UserId,
    /// When.
    pub created_at: Timestamp,
    /// The only agent that it lets in, if there is one.
    pub agent: Option<String>,
    /// The only pool that the agent's slots may go to, if there is one.
    pub pool: Option<String>,
}

fn token_of(row: &Row<'_>) -> sql::Result<AgentTokenRow> {
    Ok(AgentTokenRow {
        name: column(row, "name")?,
        user: UserId(column(row, "user_id")?),
        created_at: time(row, "created_at")?,
        agent: column(row, "agent")?,
        pool: column(row, "pool")?,
    })
}

fn agent_of(row: &Row<'_>) -> sql::Result<AgentRow> {
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
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM agents ORDER BY name")?;
                let found = statement.query_map([], agent_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Lets agents in by a token, which people know by a name.
    pub async fn create_agent_token(&self, hash: String, token: AgentTokenRow) -> Result<()> {
        self.executor
            .write(move |connection| {
                let AgentTokenRow { name, user, created_at, agent, pool } = token;
                let inserted = connection.execute(
                    "INSERT INTO agent_tokens (token_hash, name, user_id, created_at, agent, pool) \
                     VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
                    params![hash, name, user.0, created_at.0, agent, pool],
                )?;
                let taken = || Error::AlreadyExists(format!("agent token '{name}' already exists\nhint: choose another name, or end it with `instep agent token revoke {name}`"));
                if inserted == 1 { Ok(()) } else { Err(taken()) }
            })
            .await
    }

    /// The tokens that let agents in, by name.
    pub async fn agent_tokens(&self) -> Result<Vec<AgentTokenRow>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM agent_tokens ORDER BY name")?;
                let found = statement.query_map([], token_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Takes a token back.
    pub async fn delete_agent_token(&self, name: String) -> Result<()> {
        self.executor
            .write(move |connection| match connection.execute("DELETE FROM agent_tokens WHERE name = ?", [&name])? {
                0 => Err(Error::not_found("agent token", name)),
                _ => Ok(()),
            })
            .await
    }

    /// The token that lets an agent in, if this is the hash of one.
    pub async fn agent_token(&self, hash: String) -> Result<Option<AgentTokenRow>> {
        self.executor
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM agent_tokens WHERE token_hash = ?")?;
                Ok(statement.query_row([hash], token_of).optional()?)
            })
            .await
    }
}
