//! A master's client and the reporter as Python classes.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instep_api::identifiers::{RunId, TrialId};
use instep_api::wire::Timestamp;
use instep_client::{Addresses, Client, Credentials, Repeat, Reporting, Settings, Undelivered};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::{Bound, PyAny, PyResult, Python};
use pyo3::types::{PyDict, PyList};
use pyo3::{pyclass, pymethods};

use crate::{errors, json};

/// A session with a master.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct MasterClient {
    client: Arc<Client>,
}

#[pymethods]
impl MasterClient {
    /// Reads the address; nothing is sent yet.
    #[new]
    #[pyo3(signature = (address, *, certificates=None, patience=10.0))]
    fn new(py: Python<'_>, address: &str, certificates: Option<String>, patience: f64) -> PyResult<MasterClient> {
        let addresses: Addresses = address.parse().map_err(|error| errors::client(py, &error))?;
        let timeout = errors::duration(patience)?;
        let settings = Settings { addresses, certificates: certificates.map(Into::into), timeout };
        let client = Client::new(settings).map_err(|error| errors::client(py, &error))?;
        Ok(MasterClient { client: Arc::new(client) })
    }

    /// The master's address in full.
    #[getter]
    fn address(&self) -> String {
        self.client.address().to_string()
    }

    /// The token of the session, if there is one.
    #[getter]
    fn token(&self) -> Option<String> {
        self.client.token()
    }

    /// Speak for the user of a token.
    fn use_token(&self, token: &str) {
        self.client.use_token(token);
    }

    /// Log in; the session renews itself when it runs out.
    fn login(&self, py: Python<'_>, username: &str, password: &str) -> PyResult<()> {
        let credentials = Credentials::new(username, password);
        py.detach(|| self.client.login(credentials)).map(drop).map_err(|error| errors::client(py, &error))
    }

    /// Send JSON and give the answer's JSON. `repeat` says that the call may arrive twice without harm.
    #[pyo3(signature = (method, path, body=None, *, repeat=None))]
    fn call(
        &self,
        py: Python<'_>,
        method: &str,
        path: &str,
        body: Option<&str>,
        repeat: Option<bool>,
    ) -> PyResult<String> {
        let safe = repeat.unwrap_or(method != "POST");
        let repeat = if safe { Repeat::Safely } else { Repeat::Unsent };
        let answer = py.detach(|| self.client.call_text(method, path, body, repeat));
        answer.map_err(|error| errors::client(py, &error))
    }
}

/// Sends reports in the background.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct Reporter {
    reporter: instep_client::Reporter,
}

#[pymethods]
impl Reporter {
    #[new]
    #[pyo3(signature = (client, *, trial, run, name, rank, heartbeat))]
    fn new(client: &MasterClient, trial: i64, run: i64, name: &str, rank: i64, heartbeat: bool) -> PyResult<Reporter> {
        let reporting =
            Reporting { trial: TrialId(trial), run: RunId(run), reporter: name.to_owned(), rank, heartbeat };
        Ok(Reporter { reporter: instep_client::Reporter::start(client.client.clone(), reporting)? })
    }

    /// Queue metrics; True if there are news.
    #[pyo3(signature = (group, steps_completed, metrics, batches=None))]
    fn report(
        &self,
        group: &str,
        steps_completed: Option<i64>,
        metrics: &Bound<'_, PyDict>,
        batches: Option<&Bound<'_, PyList>>,
    ) -> PyResult<bool> {
        let mut values = String::with_capacity(256);
        json::write_metrics(&mut values, metrics)?;
        let batches = batches.map(|batches| text_of(batches.as_any())).transpose()?;
        self.reporter.report(group, steps_completed, values, batches.as_deref(), now()).map_err(errors::report)
    }

    /// Note how far the trial is, 0 to 1; only the last word is sent. True if there are news.
    fn progress(&self, progress: f64) -> PyResult<bool> {
        self.reporter.progress(progress).map_err(errors::report)
    }

    /// Queue a line of output; True if there are news.
    fn log(&self, line: &str, stream: &str) -> PyResult<bool> {
        self.reporter.log(line, stream, now()).map_err(errors::report)
    }

    /// What people should know, once.
    fn news(&self) -> Vec<String> {
        self.reporter.news()
    }

    /// Wait until everything queued so far is stored; None, or how many are left and why.
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<(usize, String)>> {
        let timeout = bounded(timeout)?;
        Ok(left(py.detach(|| self.reporter.flush(timeout))))
    }

    /// Send what is left and end; None, or how many are left and why.
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<(usize, String)>> {
        let timeout = bounded(timeout)?;
        Ok(left(py.detach(|| self.reporter.close(timeout))))
    }
}

/// Waits for the word that a task should make room.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct Preemption {
    preemption: instep_client::Preemption,
}

#[pymethods]
impl Preemption {
    /// Starts to wait.
    #[new]
    fn new(client: &MasterClient, allocation: &str) -> PyResult<Preemption> {
        Ok(Preemption { preemption: instep_client::Preemption::watch(client.client.clone(), allocation)? })
    }

    /// Whether to make room; only the first call may have to wait, `timeout` seconds at most.
    fn preempt(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = bounded(timeout)?;
        py.detach(|| self.preemption.preempt(timeout)).map_err(PyRuntimeError::new_err)
    }

    /// What people should know, once.
    fn news(&self) -> Vec<String> {
        self.preemption.news()
    }
}

fn left(outcome: Result<(), Undelivered>) -> Option<(usize, String)> {
    outcome.err().map(|undelivered| (undelivered.left, undelivered.why))
}

/// A day at most, so that adding it to a moment is always one.
fn bounded(timeout: f64) -> PyResult<Duration> {
    errors::duration(timeout).map(|duration| duration.min(Duration::from_secs(24 * 3600)))
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let mut text = String::new();
    json::write(&mut text, value)?;
    Ok(text)
}
