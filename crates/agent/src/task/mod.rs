//! `instep task`: prepares and supervises one allocation's share, and outlives its agent.
//!
//! Two processes, so that a `kill -9` of either leaves one that ends everything:
//!
//! ```text
//! guardian    started by the agent, in a session of its own; waits, and ends what a dead supervisor left
//!   supervisor    prepares, captures output, stops; takes in orphans
//!     entrypoint    the user's program and whatever it starts
//! ```
//!
//! | module | part |
//! |---|---|
//! | [`guardian`] | the outer process: it alone reads what the agent wants and says how the share ended |
//! | [`startup`], [`supervisor`] | the inner one: its rights, then the steps of a share in their order |
//! | [`relay`] | what the two say to each other |
//! | [`view`], [`mounts`], [`mount_points`] | a `/run/determined` and a `/tmp` of its own; folders of the machine elsewhere |
//! | [`preparation`], [`context`], `information`, [`storage`], [`master`] | what is done before the entrypoint |
//! | [`environment`], [`entrypoint`], [`interface`] | what is started, with which variables |
//! | `forwarder` | the way to whichever of several masters answers |
//! | [`ssh`] | what Determined's launchers for several machines look for |
//! | [`output`], [`hiding`], [`spool`] | where its output goes, without secrets |
//! | [`service`], `notebook`, [`listener`] | whether what it serves can be used, and is; whose program listens there |
//! | [`tree`] | the end of everything that was started |
//! | [`privileges`], [`names`] | as whom it runs, and what that is called |

pub mod context;
pub mod entrypoint;
pub mod environment;
mod forwarder;
pub mod guardian;
pub mod hiding;
mod information;
pub mod interface;
pub mod listener;
pub mod master;
pub mod mount_points;
pub mod mounts;
pub mod names;
mod notebook;
pub mod output;
pub mod preparation;
pub mod privileges;
pub mod relay;
pub mod service;
pub mod spool;
pub mod ssh;
pub mod startup;
pub mod storage;
mod summary;
pub mod supervisor;
#[cfg(test)]
pub(crate) mod testing;
pub mod tree;
pub mod view;
