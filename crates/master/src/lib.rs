//! The master: serves the REST API through which training records what it does, from one database.
//!
//! - `server` binds, serves and ends; [`Options`] is what it needs to know.
//! - `http` is everything about HTTP, and the only place that knows status codes: one table of routes with who may
//!   call each, and thin handlers.
//! - `application` is what handlers share: the database, sessions, and the wake-up of those who follow logs.
//! - `config` reads experiment configurations, `passwords` checks who somebody is, `heartbeat` gives up trials
//!   that went silent.
//!
//! Safe by default: served to this machine only, unless every user has a password; requests that name a foreign host,
//! or come from a foreign page, are refused; tokens and passwords are stored as hashes.
//!
//! Shutdown: no more connections are taken, requests get a few seconds, then the workers end, then the database.

mod application;
mod clock;
mod config;
mod heartbeat;
mod http;
mod passwords;
mod random;
mod server;

pub use server::{Options, ServeError, serve};
