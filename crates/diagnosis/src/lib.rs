//! Says why a job hangs: which collective is stuck, who did not come, and what those do instead.
//!
//! | module | what it is for |
//! |---|---|
//! | [`job`] | what the launcher leaves in a job's folder, and how a job is found |
//! | [`collect`] | evidence from records, processes and stacks: the only part that looks at the machine |
//! | [`stacks`] | what a Python stack says |
//! | [`analysis`] | evidence in, findings out: pure |
//! | [`culprit`] | which single rank keeps the others waiting |
//! | [`remote`] | evidence of several machines, sent to the one that concludes |
//! | [`report`] | findings as text |
//!
//! What is said is what was seen. Where something could not be seen, that is said, too.

pub mod analysis;
pub mod collect;
pub mod culprit;
mod dump;
pub mod evidence;
pub mod job;
pub mod remote;
pub mod report;
pub mod stacks;

pub use analysis::{Cause, Class, Diagnosis, Finding, diagnose};
pub use evidence::{Condition, Evidence, Stacks};
