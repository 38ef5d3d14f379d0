//! A typed, blocking, retrying client of the master's REST API.
//!
//! [`Client`] sends the types of `instep-api` and reads them back; one client may be shared by threads, and keeps
//! connections open between calls. [`Address`] is where a master is, as people write it; [`Query`] and [`segment`] put
//! text into a path.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use instep_api::experiments::GetExperimentResponse;
//! use instep_client::{Client, Credentials, Settings};
//!
//! # fn main() -> Result<(), instep_client::Error> {
//! let settings = Settings { timeout: Duration::from_secs(5), ..Settings::at("localhost:8080".parse()?) };
//! let client = Client::new(settings)?;
//! client.login(Credentials::new("determined", ""))?;
//! let found: GetExperimentResponse = client.get("/api/v1/experiments/1")?;
//! # Ok(())
//! # }
//! ```
//!
//! Promises:
//!
//! 1. A call that may be repeated (every method but POST, and POST where the caller says so) is repeated after a lost
//!    connection and after "unavailable", with growing pauses, until [`Settings::timeout`] is over. A call that may
//!    not is repeated only when it cannot have arrived.
//! 2. Every wait has a deadline: connecting, sending, and each silence while an answer comes.
//! 3. A session that has run out is renewed once, if the client logged in with [`Client::login`].
//! 4. A master that cannot be reached, or that has no leader, is followed by the next of its [`Addresses`], at once; what is
//!    asked is asked of one that has answered in the last seconds, and its answer is waited for only while no other is asked,
//!    so that a stopped one costs seconds too: [`Masters`].
//! 5. Passwords leave this process hashed with Determined's salt, as its own client sends them.
//!
//! [`Reporter`] sends metrics and lines of output in the background, each exactly once. [`Preemption`] waits in the
//! background for the word that a task should make room.
//!
//! [`websocket`] connects to the master for more than requests and answers: for agents, and for a [`tunnel`] to a task.
//!
//! It decides nothing about what is asked, reads no environment, and prints nothing.

mod address;
mod client;
mod error;
mod login;
mod masters;
mod path;
mod preemption;
mod reporter;
mod resolver;
mod retry;
mod stream;
pub mod sync;
pub mod tls;
pub mod tunnel;
mod watch;
pub mod websocket;

pub use address::{Address, Addresses};
pub use client::{Client, Repeat, Settings};
pub use error::{Error, Result};
pub use login::Credentials;
pub use masters::Masters;
pub use path::{Query, segment};
pub use preemption::Preemption;
pub use reporter::{ReportError, Reporter, Reporting, Undelivered};
pub use retry::Backoff;
pub use stream::Lines;
