//! The client against a scripted master.

mod conversations;
mod preemption;
mod reporting;
mod scripted;
