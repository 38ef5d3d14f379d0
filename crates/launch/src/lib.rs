//! Turns a command line into ranked workers and keeps them alive.
//!
//! A run in the order in which it happens:
//!
//! | module | part |
//! |---|---|
//! | [`plan`] | what the options mean on this machine; helped by [`devices`], [`nvidia`], [`interpreter`], [`endpoint`] |
//! | [`supervisor`] | the loop that runs this node's part; [`Outcome`] is what comes out; `signals` for it |
//! | `meeting`, [`link`], [`control`] | how this node finds the job's first node and talks to it |
//! | [`coordinator`] | the other end, on the first node: decisions of `policy::membership` carried out |
//! | [`secret`] | what the workers of a round show each other |
//! | `seek`, `scout`, `contact`, [`post`] | in an elastic job: finding, and becoming, another coordinator |
//! | `attempt`, `worker`, [`environment`], [`numa`] | starting workers and noticing their end |
//! | `spares`, `spare`, `archive`, `priority` | workers that have imported ahead, for the next start |
//! | [`drill`] | kills ranks on purpose, and records whether the job resumes |
//! | `output`, [`logs`], [`fold`], `terminal` | where their output goes |
//! | [`guardian`] | ends the workers if the launcher is killed |
//! | `hang` | where ranks write down what they do, and who looks at it when nothing moves |
//! | [`events`] | what happened, for programs |
//! | [`failure`] | what is known about a worker that failed |
//! | [`blame`], [`cause`] | whom its last words blame; which rank caused the end of a round |
//! | `torchrun` | one static job together with Python's torchrun |
//!
//! The crate prints nothing: what people see goes through [`Console`].

mod archive;
mod attempt;
pub mod blame;
pub mod cause;
pub mod console;
mod contact;
pub mod control;
pub mod coordinator;
pub mod devices;
pub mod drill;
pub mod endpoint;
pub mod environment;
pub mod events;
pub mod failure;
pub mod fold;
pub mod guardian;
mod hang;
pub mod interpreter;
pub mod link;
pub mod logs;
mod meeting;
pub mod numa;
pub mod nvidia;
pub mod outcome;
mod output;
pub mod plan;
pub mod post;
mod preload;
mod priority;
mod random;
mod scout;
pub mod secret;
mod seek;
mod signals;
mod spare;
mod spares;
pub mod supervisor;
mod terminal;
mod torchrun;
mod worker;

pub use console::{Console, Note, Status};
pub use meeting::MeetingError;
pub use outcome::Outcome;
pub use plan::{Plan, PlanError, Request};
pub use supervisor::LaunchError;
pub use terminal::console_size;
