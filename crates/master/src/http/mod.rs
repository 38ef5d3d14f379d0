//! HTTP: which routes there are, who may call them, and how requests and answers look.
//!
//! - [`routes`] is the one table; [`router`] makes a server of it.
//! - [`serving`] speaks HTTP on connections and closes those on which nothing comes, by what [`framing`] sees of their bytes.
//! - [`call`] is a request as handlers see it, [`reply`] what they answer, [`failure`] what they answer when they cannot.
//! - [`openapi`] describes the table for programs, with [`shape`] for what bodies hold.
//! - [`guard`] refuses requests before any handler sees them, [`ownership`] changes of what is somebody else's.
//! - The other modules are the handlers, one for each kind of thing.

mod agents;
mod agents_link;
mod assets;
mod authentication;
mod bulk;
mod call;
mod checkpoints;
mod cluster;
mod commands;
mod conformance;
mod continuing;
mod control;
mod experiments;
mod export;
mod failure;
mod files;
mod framing;
mod guard;
mod hashing;
mod logs;
mod metrics;
mod models;
mod openapi;
mod ownership;
mod pages;
mod preview;
mod proxy;
mod queue;
mod reply;
mod request_id;
mod retention;
pub(crate) mod router;
pub(crate) mod routes;
pub(crate) mod serving;
mod shape;
mod tasks;
mod templates;
mod trials;
mod users;
mod workspaces;
mod zero;

#[cfg(test)]
mod tests;
