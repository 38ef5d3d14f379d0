//! Turns a command line into ranked workers and keeps them alive.
//!
//! A run in the order in which it happens:
//!
//! | module | part |
//! |---|---|
//! | [`plan`] | what the options mean on this machine |
//! | [`machine`] | what this machine has: CPUs, GPUs, NUMA nodes, a Python interpreter |
//! | [`supervisor`] | the loop that runs this node's part; [`Outcome`] is its result |
//! | `rendezvous` | how this node finds the job's first node and joins the job, also with Python's torchrun |
//! | [`control`] | the messages between launchers and the coordinator, and the connection that carries them |
//! | [`coordinator`] | the other end, on the first node: carries out the decisions of `policy::membership` |
//! | [`election`] | in an elastic job: finding, or becoming, the next coordinator |
//! | [`workers`] | starting workers and noticing their exit; the guardian that ends them if the launcher is killed |
//! | `spares` | interpreters that have imported ahead, for the next start (`--preload`) |
//! | [`output`] | where the workers' output goes |
//! | [`failure`] | how a worker failed, which rank caused the end of a round, and why a job hangs |
//! | [`drill`] | kills ranks on purpose, and records whether the job resumes |
//! | [`goodput`] | what became of the ranks' time |
//! | [`events`] | what happened, for programs |
//!
//! The crate prints nothing: what people see goes through [`Console`].

mod background;
pub mod console;
pub mod control;
pub mod coordinator;
pub mod drill;
pub mod election;
pub mod events;
pub mod failure;
pub mod goodput;
mod lock;
pub mod machine;
pub mod output;
pub mod plan;
mod random;
mod relay;
mod rendezvous;
mod spares;
pub mod supervisor;
pub mod workers;

pub use console::{Console, Note, Status};
pub use instep_policy::membership::RESTARTS_OFF;
pub use output::terminal::console_size;
pub use plan::{Plan, PlanError, Request};
pub use rendezvous::RendezvousError;
pub use rendezvous::endpoint::host_name;
pub use supervisor::LaunchError;
pub use supervisor::outcome::Outcome;
