//! The one place where errors become Python exceptions: always built-in types, with the whole chain of causes.

use std::error::Error as _;
use std::io;

use instep_store::Error;
use pyo3::PyErr;
use pyo3::exceptions::{PyConnectionError, PyKeyboardInterrupt, PyOSError, PyTimeoutError, PyValueError};

/// `TimeoutError`, `ConnectionError` or `ValueError`, by what the caller can do about it.
pub(crate) fn store(error: &Error) -> PyErr {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        message += &format!(": {next}");
        cause = next.source();
    }
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
        Some(number) => PyOSError::new_err((number, format!("could not serve on port {port}: {error}"))),
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
