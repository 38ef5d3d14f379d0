//! The master: serves the REST API through which training records what it does, from one database.
//!
//! - [`settings`] gathers what the master is told; `server` binds, serves and ends, given [`Options`]. [`Presence`] finds
//!   a master that runs.
//! - `http` is everything about HTTP, and the only place that knows status codes: one table of routes with who may
//!   call each, and thin handlers.
//! - `application` is what handlers share: the database, the cluster, and `notices`, which wakes those who wait.
//! - `cluster` runs experiments on agents' slots. `model_definition` packs the code that they come with.
//! - `storage` finds, reads and removes checkpoints' files, `archive` makes one stream of them, `deletions` carries out
//!   what the database has noted as to be deleted, `file_owners` says whose files are. `export` writes metrics for other programs.
//! - `config` reads experiment configurations, `names` says what no name may have, `passwords` checks who somebody is, `heartbeat` gives up trials
//!   that went silent.
//!
//! - `telemetry` counts, for Prometheus; what happens is logged as events of `tracing`, which the binary writes; the last of them are also
//!   in the [`Journal`], for those who ask.
//! - `vault` encrypts the secrets that tasks are given; `grants` looks up what a user has been given.
//! - `audit` is who did what, recorded by the router and read by administrators.
//! - `ssh_keys` makes the keys that open shells.
//! - `sites` knows where browsers find the master and, at another origin, the pages of tasks; `task_access` who may open those.
//!   `strangers` bounds the connections of callers who have not said who they are.
//! - `standby` is one of several masters that does not lead: its `http::leader_proxy` forwards requests to the one that does.
//! - `listener` takes connections, plain or with `encryption`; `peer` knows who is at the other end.
//!
//! Safe by default: served to this machine only, unless every user has a password; users without one must be processes of
//! the master's own user; requests that name a foreign host,
//! or come from a foreign page, are refused; tokens and passwords are stored as hashes.
//!
//! Shutdown: no more connections are taken, requests get a few seconds, then the workers end, then the database.

mod agreement;
mod application;
mod archive;
mod attempts;
mod audit;
mod clock;
mod cluster;
mod collections;
mod config;
mod copies;
mod deletions;
mod encryption;
pub mod engines;
mod export;
mod file_owners;
mod grants;
mod heartbeat;
mod http;
mod journal;
mod listener;
mod model_definition;
mod names;
mod notices;
mod passwords;
mod peer;
mod port_holder;
mod presence;
mod random;
mod server;
pub mod settings;
mod sites;
mod ssh_keys;
mod standby;
mod storage;
mod strangers;
mod sync;
mod task_access;
mod telemetry;
/// What the master reads of requests by itself, for the fuzzers.
#[doc(hidden)]
pub mod untrusted;
mod vault;
mod webhooks;

pub use cluster::ClusterOptions;
pub use copies::{CopyFailed, CopyProgress, CopyReport, KeyOfCopy, SecretsKey, back_up, copy, opening_by, restore};
pub use encryption::{Encryption, EncryptionError};
pub use journal::Journal;
pub use presence::Presence;
pub use server::{Addresses, NO_FILES, Options, ServeError, serve};
pub use webhooks::WebhookOptions;
