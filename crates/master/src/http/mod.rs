//! HTTP: which routes there are, who may call them, and how requests and answers look.
//!
//! - [`routes`] is the one table, of a [`route`] in each row, which says who has [`access`]; [`router`] makes a server of it.
//! - [`serving`] speaks HTTP on connections and closes those on which nothing comes, by what [`framing`] sees of their bytes.
//! - [`call`] is a request as handlers see it, [`reply`] what they answer, [`failure`] what they answer when they cannot.
//! - [`openapi`] describes the table for programs, with [`shape`] for what bodies hold.
//! - [`guard`] refuses requests before any handler sees them, by what [`credentials`] and [`cookies`] read from them;
//!   [`ownership`] refuses changes of what is somebody else's.
//! - [`task_pages`] lets browsers see what tasks serve, at an origin of its own, as far as [`task_grants`] allows; [`proxy`]
//!   passes requests on to them, [`tunnel`] bytes.
//! - The other modules are the handlers, one for each kind of thing.

mod access;
mod agent_users;
mod agents;
mod agents_link;
mod assets;
mod audit;
mod authentication;
mod blocking;
mod bulk;
mod call;
mod checkpoints;
mod cluster;
mod code;
mod columns;
mod commands;
mod config_policies;
mod conformance;
mod contexts;
mod continuing;
mod control;
pub(crate) mod cookies;
mod credentials;
mod deleting;
mod experiment_metrics;
mod experiments;
mod export;
mod failure;
mod files;
mod fitting;
mod forwarded;
mod framing;
mod generic_tasks;
mod groups;
mod guard;
mod hashing;
mod kubernetes;
mod leader_client;
pub(crate) mod leader_proxy;
mod log_retention;
mod logs;
mod masks;
mod metrics;
mod models;
mod openapi;
mod ownership;
mod pages;
mod pools;
mod preferences;
mod preview;
mod proxy;
mod queue;
mod reply;
mod request_id;
mod retention;
mod roles;
mod route;
pub(crate) mod router;
pub(crate) mod routes;
mod runs;
mod search;
mod secrets;
pub(crate) mod serving;
mod shape;
mod task_grants;
mod task_info;
mod task_pages;
mod tasks;
mod templates;
mod tokens;
mod trial_sources;
mod trials;
pub(crate) mod tunnel;
pub(crate) mod untrusted;
mod usage;
mod users;
mod webhooks;
mod workspaces;
mod zero;

#[cfg(test)]
mod tests;
