//! Experiments, their trials and the trials' runs, from the first wish to the last checkpoint kept.
//!
//! One [`Experiment`] is told what happens ([`Event`]) and answers with what must be done ([`Effect`]), in order. It
//! owns its trials and its search, does no I/O and reads no clock. Stored and read back at any moment it goes on as if
//! nothing had been: the master stores it together with the effects before it acts on them, and after a restart asks
//! for those that may have been lost ([`Experiment::repeat`]).
//!
//! Times are wall-clock times, because deadlines outlive the process.
//!
//! - [`states`]: which states may follow which.
//! - [`run_end`]: what becomes of a trial whose run has ended.
//! - [`allocation`]: one run, and how to stop it.
//! - [`gang`]: the shares of a run on several machines, which live and end together.
//! - [`command`]: a command or a service beside the experiments, which runs once.
//!
//! Invariants, cited by the tests in `tests/integration/lifecycle`:
//!
//! - L1: states only change as [`states`] allows.
//! - L2: a trial has at most one run that has not ended, and no run's number is used twice.
//! - L3: no more than `max_restarts` runs that failed are followed by another.
//! - L4: an experiment that is ending ends when the last of its runs does.
//! - L5: after the end, no effect follows until the experiment is continued.
//! - L6: storing and reading back between two events changes nothing.

pub mod allocation;
pub mod command;
mod events;
mod experiment;
pub mod gang;
pub mod run_end;
pub mod searcher;
pub mod states;
mod trial;

pub use events::{Effect, Event, PolicyAction, Run};
pub use experiment::{Experiment, Terms};
pub use run_end::End;
pub use searcher::Searcher;
pub use trial::Trial;
