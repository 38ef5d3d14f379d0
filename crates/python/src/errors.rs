//! The one place where errors become Python exceptions, with the whole chain of causes: built-in types for the store and
//! checkpoints, the classes of `instep.errors` for collectives and of `instep.core.errors` for the master.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use instep_checkpoint::Error as CheckpointError;
use instep_client::{Error as ClientError, ReportError};
use instep_collectives::Error as CollectiveError;
use instep_store::Error;
use pyo3::exceptions::{
    PyConnectionError, PyFileNotFoundError, PyIndexError, PyKeyboardInterrupt, PyOSError, PyRuntimeError,
    PyTimeoutError, PyValueError,
};
use pyo3::prelude::{PyAnyMethods, PyDictMethods, PyErr, PyResult, Python};
use pyo3::types::PyDict;

/// `TimeoutError`, `ConnectionError` or `ValueError`, by what the caller can do about it.
pub(crate) fn store(error: &Error) -> PyErr {
    let message = chain(error);
    match error {
        Error::Timeout { .. } => PyTimeoutError::new_err(message),
        Error::Connect { .. } | Error::Closed { .. } | Error::Protocol { .. } => PyConnectionError::new_err(message),
        Error::TooLarge(_) => PyValueError::new_err(message),
        Error::Interrupted => PyKeyboardInterrupt::new_err(message),
    }
}

/// `OSError` or its subclass for the error number, when a server cannot listen.
pub(crate) fn listen(port: u16, error: io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, format!("cannot listen on port {port}: {error}"))),
        None => error.into(),
    }
}

/// `ValueError` for a timeout that is no length of time.
pub(crate) fn timeout(seconds: f64) -> PyErr {
    PyValueError::new_err(format!("a timeout is a number of seconds, 0 or more, not {seconds}"))
}

/// `ConnectionError` for a client used after `close()`.
pub(crate) fn closed() -> PyErr {
    PyConnectionError::new_err("this client is closed")
}

/// The error and its causes, in one line.
fn chain(error: &dyn StdError) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        message += &format!(": {next}");
        cause = next.source();
    }
    message
}

/// Seconds as a length of time; `ValueError` if they are none.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| timeout(seconds))
}

/// An exception of `instep.errors`, its attributes filled from the error. `label` says which group it was.
pub(crate) fn collectives(py: Python<'_>, error: &CollectiveError, label: &str) -> PyErr {
    let mut message = chain(error);
    if !label.is_empty() {
        message += &format!(" ({label})");
    }
    raised(py, error, &message).unwrap_or_else(|cause| {
        let plain = PyRuntimeError::new_err(message);
        plain.set_cause(py, Some(cause));
        plain
    })
}

fn raised(py: Python<'_>, error: &CollectiveError, message: &str) -> PyResult<PyErr> {
    use CollectiveError as E;
    let details = PyDict::new(py);
    let class = match error {
        E::Unsupported(_) | E::Invalid { .. } => "InvalidCall",
        E::Mismatch { rank, call, other_rank, other, sequence } => {
            details.set_item("ranks", (rank.0, other_rank.0))?;
            details.set_item("operation", (call.kind.name(), other.kind.name()))?;
            details.set_item("sequence", sequence)?;
            "Mismatch"
        }
        E::Timeout { call, sequence, missing, .. } => {
            details.set_item("ranks", missing.iter().map(|rank| rank.0).collect::<Vec<_>>())?;
            details.set_item("operation", call.kind.name())?;
            details.set_item("sequence", sequence)?;
            "CollectiveTimeout"
        }
        E::PeerLost { rank, host, call, sequence, .. } => {
            details.set_item("ranks", (rank.0,))?;
            details.set_item("host", host)?;
            details.set_item("operation", call.kind.name())?;
            details.set_item("sequence", sequence)?;
            "PeerLost"
        }
        E::Aborted { by } => {
            details.set_item("ranks", (by.0,))?;
            "Aborted"
        }
        E::Unfinished { .. } => "Unfinished",
        E::NotConnected => "NotConnected",
        E::Connect { .. } => "ConnectFailed",
        _ => "CollectiveError",
    };
    let exception = py.import("instep.errors")?.getattr(class)?.call((message,), Some(&details))?;
    Ok(PyErr::from_value(exception))
}

/// `NotConnected` for a group used after it was shut down.
pub(crate) fn closed_group(py: Python<'_>, label: &str) -> PyErr {
    collectives(py, &CollectiveError::NotConnected, label)
}

/// `IndexError` for an index that names nothing.
pub(crate) fn no_such(what: &str, index: usize) -> PyErr {
    PyIndexError::new_err(format!("there is no {what} {index}"))
}

/// `MasterUnreachable`, `MasterRefused` with its status, or `ValueError` for an address that is none; with a hint where a
/// master answers to another kind of address.
pub(crate) fn client(py: Python<'_>, error: &ClientError) -> PyErr {
    let mut message = chain(error);
    if let Some(hint) = error.hint() {
        message += &format!("\nhint: {hint}");
    }
    let (class, status) = match error {
        ClientError::Address { .. } => return PyValueError::new_err(message),
        ClientError::Certificates { .. } => return PyOSError::new_err(message),
        ClientError::Unreachable { .. } | ClientError::Protocol { .. } => ("MasterUnreachable", None),
        ClientError::Refused { status, .. } => ("MasterRefused", Some(*status)),
    };
    let raised = || -> PyResult<PyErr> {
        let class = py.import("instep.core.errors")?.getattr(class)?;
        let exception = match status {
            Some(status) => class.call1((message.clone(), status))?,
            None => class.call1((message.clone(),))?,
        };
        Ok(PyErr::from_value(exception))
    };
    raised().unwrap_or_else(|cause| {
        let plain = PyRuntimeError::new_err(message.clone());
        plain.set_cause(py, Some(cause));
        plain
    })
}

/// `ValueError` for a report that is too large, else `RuntimeError`.
pub(crate) fn report(error: ReportError) -> PyErr {
    let message = error.to_string();
    match error {
        ReportError::TooLarge(_) => PyValueError::new_err(message),
        ReportError::Failed(_) | ReportError::Closed | ReportError::Forked => PyRuntimeError::new_err(message),
    }
}

/// `FileNotFoundError`, `ValueError` for names, `OSError` for files, `RuntimeError` for contradictions and damage.
pub(crate) fn checkpoint(error: &CheckpointError) -> PyErr {
    let message = chain(error);
    match error {
        CheckpointError::Absent { .. } | CheckpointError::Missing { .. } => PyFileNotFoundError::new_err(message),
        CheckpointError::Uuid(_) | CheckpointError::Name(_) | CheckpointError::Kind { .. } => {
            PyValueError::new_err(message)
        }
        CheckpointError::File { .. } => PyOSError::new_err(message),
        CheckpointError::Conflict { .. } | CheckpointError::Damaged { .. } | CheckpointError::Manifest { .. } => {
            PyRuntimeError::new_err(message)
        }
    }
}
