//! What Python holds of an operation under way: it waits for the end, or has something called then.
//!
//! Every wait happens with the interpreter released, and threads of the collectives never take it: see [`crate::delivery`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_collectives::{self as collectives, Error};
use pyo3::prelude::{Py, PyAny, PyResult, Python, pyfunction};
use pyo3::{pyclass, pymethods};

use crate::{delivery, errors, ledger};

/// How often a wait on the main thread looks whether a signal came.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// An operation under way.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct Ticket {
    ticket: collectives::Ticket,
    /// What errors say about the group.
    label: Arc<str>,
}

impl Ticket {
    pub(crate) fn new(ticket: collectives::Ticket, label: Arc<str>) -> Ticket {
        Ticket { ticket, label }
    }

    fn wait_within(&self, py: Python<'_>, limit: Duration) -> PyResult<()> {
        let started = Instant::now();
        loop {
            let left = limit.saturating_sub(started.elapsed());
            match py.detach(|| self.ticket.wait(left.min(SIGNALS_EVERY))) {
                Ok(()) => return Ok(()),
                Err(Error::Unfinished { .. }) if left > SIGNALS_EVERY => py.check_signals()?,
                Err(Error::Unfinished { .. }) => {
                    return Err(errors::collectives(py, &Error::Unfinished { waited: limit }, &self.label));
                }
                Err(error) => return Err(errors::collectives(py, &error, &self.label)),
            }
        }
    }
}

#[pymethods]
impl Ticket {
    /// Wait for the end, at most so many seconds; raises what went wrong.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = timeout.map_or(Ok(Duration::MAX), errors::duration)?;
        ledger::waiting(|| self.wait_within(py, limit))
    }

    /// Whether it has ended, well or not.
    fn is_finished(&self) -> bool {
        self.ticket.is_finished()
    }

    /// What has become of the output: "untouched", "complete" or "undefined"; the last while it is under way.
    fn output(&self) -> &'static str {
        match self.ticket.output() {
            collectives::Output::Untouched => "untouched",
            collectives::Output::Complete => "complete",
            collectives::Output::Undefined => "undefined",
        }
    }

    /// Who sent what a finished receive received.
    fn source(&self) -> Option<usize> {
        self.ticket.source().map(|rank| rank.0)
    }

    /// Call this once when it has ended, on a thread for callbacks; at once if it has.
    fn when_finished(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        if self.ticket.is_finished() {
            return callback.call0(py).map(drop);
        }
        self.ticket.when_finished(move |_| {
            delivery::deliver(Box::new(move || {
                Python::attach(|py| {
                    if let Err(error) = callback.call0(py) {
                        error.write_unraisable(py, None);
                    }
                });
            }));
        });
        Ok(())
    }

    /// The exception it ended with, or None.
    fn failure(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match self.ticket.wait(Duration::ZERO) {
            Ok(()) | Err(Error::Unfinished { .. }) => None,
            Err(error) => Some(errors::collectives(py, &error, &self.label).into_value(py).into_any()),
        }
    }
}

/// End the threads for callbacks, before the interpreter ends.
#[pyfunction]
pub(crate) fn stop_callbacks(py: Python<'_>) {
    py.detach(delivery::stop);
}
