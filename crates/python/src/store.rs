//! The store's server and client as Python classes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use instep_store::{Client, Error, Key, Server, listen, listen_loopback};
use pyo3::prelude::{
    Bound, FromPyObject, PyAny, PyAnyMethods, PyErr, PyListMethods, PyMappingMethods, PyRef, PyResult, Python,
};
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyMapping};
use pyo3::{pyclass, pymethods};

use crate::errors;

/// Notices kept for `StoreServer.notices()`; older ones are dropped.
const NOTICES: usize = 1000;

/// A store server on a thread of its own.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct StoreServer {
    port: u16,
    server: Mutex<Option<Server>>,
    notices: Arc<Mutex<VecDeque<String>>>,
}

#[pymethods]
impl StoreServer {
    #[new]
    #[pyo3(signature = (port=0, *, loopback=true))]
    fn new(port: u16, loopback: bool) -> PyResult<StoreServer> {
        let listeners = if loopback { listen_loopback(port) } else { listen(port) };
        let listeners = listeners.map_err(|error| errors::listen(port, error))?;
        let notices = Arc::new(Mutex::new(VecDeque::new()));
        let kept = notices.clone();
        let server = Server::start(listeners, None, move |notice| {
            let mut kept = lock(&kept);
            if kept.len() == NOTICES {
                kept.pop_front();
            }
            kept.push_back(notice.to_string());
        });
        let server = server.map_err(|error| errors::listen(port, error))?;
        Ok(StoreServer { port: server.port(), server: Mutex::new(Some(server)), notices })
    }

    /// The port it serves on.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// What happened that a person may want to know, as lines, since the last call.
    fn notices(&self) -> Vec<String> {
        lock(&self.notices).drain(..).collect()
    }

    /// Close every connection and stop the thread. Does nothing the second time.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| {
            let server = lock(&self.server).take();
            drop(server);
        });
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.shutdown(py);
    }
}

/// Text, sent as UTF-8, or bytes.
#[derive(FromPyObject)]
enum Data {
    Text(PyBackedStr),
    Bytes(PyBackedBytes),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::Text(text) => text.as_bytes(),
            Data::Bytes(bytes) => bytes,
        }
    }
}

/// A connection to a store.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct StoreClient {
    client: Mutex<Option<Client>>,
    /// What a signal handler raised during a wait.
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl StoreClient {
    /// Calls with the interpreter released. `timeout` is for this call alone.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        call: impl FnOnce(&mut Client) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let timeout = timeout.map(errors::duration).transpose()?;
        let result = py.detach(|| {
            let mut guard = lock(&self.client);
            let client = guard.as_mut()?;
            let usual = client.timeout();
            client.set_timeout(timeout.unwrap_or(usual));
            let result = call(client);
            client.set_timeout(usual);
            Some(result)
        });
        match result {
            None => Err(errors::closed()),
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(lock(&self.raised).take().unwrap_or_else(|| errors::store(&error))),
        }
    }
}

#[pymethods]
impl StoreClient {
    #[new]
    #[pyo3(signature = (host, port, *, timeout=300.0))]
    fn new(py: Python<'_>, host: &str, port: u16, timeout: f64) -> PyResult<StoreClient> {
        let timeout = errors::duration(timeout)?;
        let raised = Arc::new(Mutex::new(None));
        let slot = raised.clone();
        // Ctrl-C must end a wait, and only the interpreter knows about it.
        let interrupt = move || {
            let checked = Python::attach(|py| py.check_signals());
            checked.map_err(|error| *lock(&slot) = Some(error)).is_err()
        };
        let client = py.detach(|| Client::connect_with(host, port, timeout, interrupt));
        match client {
            Ok(client) => Ok(StoreClient { client: Mutex::new(Some(client)), raised }),
            Err(error) => Err(lock(&raised).take().unwrap_or_else(|| errors::store(&error))),
        }
    }

    /// Seconds that a call may wait.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<f64> {
        self.call(py, None, |client| Ok(client.timeout().as_secs_f64()))
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let timeout = errors::duration(seconds)?;
        py.detach(|| {
            let mut guard = lock(&self.client);
            guard.as_mut().map(|client| client.set_timeout(timeout))
        })
        .ok_or_else(errors::closed)
    }

    /// Store a value.
    fn set(&self, py: Python<'_>, key: &str, value: Data) -> PyResult<()> {
        self.call(py, None, |client| client.set(key, value.bytes()))
    }

    /// Wait until the key exists and give its value.
    #[pyo3(signature = (key, *, timeout=None))]
    fn get<'py>(&self, py: Python<'py>, key: &str, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.call(py, timeout, |client| client.get(key))?;
        Ok(PyBytes::new(py, &value))
    }

    /// The value of the key if it exists now, else None.
    fn try_get<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.call(py, None, |client| client.try_get(key))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// Add to a counter and give the sum.
    fn add(&self, py: Python<'_>, key: &str, delta: i64) -> PyResult<i64> {
        self.call(py, None, |client| client.add(key, delta))
    }

    /// Store `desired` if the value is `expected`, or the key is missing and `expected` empty. Gives the value then.
    fn compare_set<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        expected: Data,
        desired: Data,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let call = |client: &mut Client| client.compare_set(key, expected.bytes(), desired.bytes());
        let value = self.call(py, None, call)?;
        Ok(PyBytes::new(py, &value))
    }

    /// Whether all keys exist now.
    fn check(&self, py: Python<'_>, keys: Vec<PyBackedStr>) -> PyResult<bool> {
        self.call(py, None, |client| client.check(&named(&keys)))
    }

    /// Wait until all keys exist.
    #[pyo3(signature = (keys, *, timeout=None))]
    fn wait(&self, py: Python<'_>, keys: Vec<PyBackedStr>, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, |client| client.wait(&named(&keys)))
    }

    /// Delete a key; True if it existed.
    fn delete(&self, py: Python<'_>, key: &str) -> PyResult<bool> {
        self.call(py, None, |client| client.delete(key))
    }

    /// Wait until all keys exist and give their values.
    #[pyo3(signature = (keys, *, timeout=None))]
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<PyBackedStr>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let values = self.call(py, timeout, |client| client.multi_get(&named(&keys)))?;
        Ok(values.iter().map(|value| PyBytes::new(py, value)).collect())
    }

    /// Store several values with one request.
    fn multi_set(&self, py: Python<'_>, values: &Bound<'_, PyMapping>) -> PyResult<()> {
        let mut pairs = Vec::new();
        for item in values.items()?.iter() {
            let (key, value): (PyBackedStr, Data) = item.extract()?;
            pairs.push((Key::from(&key), value.bytes().to_vec()));
        }
        self.call(py, None, |client| client.multi_set(&pairs))
    }

    /// Append to a value, or store it.
    fn append(&self, py: Python<'_>, key: &str, value: Data) -> PyResult<()> {
        self.call(py, None, |client| client.append(key, value.bytes()))
    }

    /// How many keys there are; queues do not count.
    fn num_keys(&self, py: Python<'_>) -> PyResult<i64> {
        self.call(py, None, Client::num_keys)
    }

    /// All keys, in no particular order.
    fn list_keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let keys = self.call(py, None, Client::list_keys)?;
        Ok(keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    /// Add an item to the end of a queue.
    fn queue_push(&self, py: Python<'_>, key: &str, value: Data) -> PyResult<()> {
        self.call(py, None, |client| client.queue_push(key, value.bytes()))
    }

    /// Take the oldest item of a queue; None if there is none, or with `block` if another client was quicker.
    #[pyo3(signature = (key, *, block=true, timeout=None))]
    fn queue_pop<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        block: bool,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let item = self.call(py, timeout, |client| match block {
            true => client.queue_pop(key),
            false => client.try_queue_pop(key),
        })?;
        Ok(item.map(|item| PyBytes::new(py, &item)))
    }

    /// How many items a queue has.
    fn queue_length(&self, py: Python<'_>, key: &str) -> PyResult<i64> {
        self.call(py, None, |client| client.queue_length(key))
    }

    /// Wait until `world_size` clients have come to this barrier.
    #[pyo3(signature = (key, world_size, *, timeout=None))]
    fn barrier(&self, py: Python<'_>, key: &str, world_size: i64, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, |client| client.barrier(key, world_size))
    }

    /// Close the connection. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.client).take()));
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }
}

/// A panic while the lock was held is reported by itself; the data behind it is replaced as a whole, so still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn named(keys: &[PyBackedStr]) -> Vec<Key> {
    keys.iter().map(Key::from).collect()
}
