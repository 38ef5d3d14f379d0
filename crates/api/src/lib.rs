//! What the master and its clients say to each other: the types of the REST API.
//!
//! The surface is the one of Determined 0.38 (its URLs, names and JSON rules), so that its published client works
//! unchanged. The rules that hold for every message live in [`wire`]:
//!
//! 1. Answers use lowerCamelCase and carry every field, zero values included; absent messages are `null`.
//! 2. Requests may spell a field in lowerCamelCase or snake_case; `null` means unset; unknown fields are ignored.
//! 3. 64-bit integers are strings in JSON ([`wire::Long`]); identifiers and counts are numbers. Both forms are read.
//! 4. Times are RFC 3339 in UTC with microseconds ([`wire::Timestamp`]).
//!
//! [`config`] is the configuration of an experiment. It is read from YAML here and not in the master, because whoever
//! speaks to a master (a command line that checks a file before it sends it) must understand it the same way.
//!
//! [`sockets`] reads the kernel's tables of connections, by which master and agents know whose program they talk to.
//!
//! This crate does no I/O and reads no clock.

pub mod agents;
pub mod audit;
pub mod bulk;
pub mod checkpoints;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod error;
pub mod experiments;
pub mod goodput;
pub mod identifiers;
pub mod jobs;
pub mod link;
pub mod logs;
pub mod metrics;
pub mod models;
pub mod pages;
pub mod passwords;
pub mod pools;
pub mod preferences;
pub mod roles;
pub mod runs;
pub mod secrets;
pub mod sockets;
pub mod states;
pub mod tasks;
pub mod templates;
pub mod tokens;
pub mod trials;
pub mod usage;
pub mod users;
pub mod values;
pub mod webhooks;
pub mod wire;
pub mod workspaces;
