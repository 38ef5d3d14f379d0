//! Metrics: durable at once, compact later, quick to read.
//!
//! A report is appended as one row to the *tail* ([`ingest`]), which is one small write; [`batch`] takes many at once,
//! each exactly once. When a group's tail has grown,
//! or its trial has ended, [`merger`] turns its rows into *chunks*: one series (trial, group, metric) × a few thousand
//! points, each column packed for itself ([`chunk`]). Reads ([`read`]) join chunks and [`tail`], long ones
//! in parts ([`history`]); [`summary`] keeps roll-ups
//! of what is in chunks; [`downsample`] thins out points for charts; [`validation`] remembers the best and the latest.
//!
//! Semantics, as Determined has them: a report belongs to a run of its trial; the current run's reports roll back what
//! earlier runs said about the same and later steps; reports at the same step are joined, and a key must not change
//! its value. Groups about the machine ([`instep_api::metrics::PROFILING`]) are known by time, and nothing of this
//! applies to them.

mod batch;
mod block;
pub mod chunk;
mod columns;
pub mod downsample;
pub(crate) mod history;
pub(crate) mod imported;
mod ingest;
pub(crate) mod merger;
mod outline;
mod queries;
pub(crate) mod read;
mod rollback;
pub(crate) mod summary;
mod tail;
pub(crate) mod validation;
mod values;
