//! The group of ranks on one GPU as a Python class: memory comes as device addresses, streams as the driver's numbers.
#![expect(unsafe_code, reason = "device memory of tensors comes as addresses")]

use std::sync::{Arc, Mutex, PoisonError};

use instep_collectives::{DeviceGroup as Engine, DeviceTicket as EngineTicket};
use pyo3::prelude::{Py, PyAny, PyRef, PyResult, Python};
use pyo3::{pyclass, pymethods};

use crate::collectives::{CollectiveGroup, Operation, Ticket, data_type, reduction};
use crate::errors;

/// The ranks of a group, on the GPU they share.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct DeviceGroup {
    engine: Mutex<Option<Arc<Engine>>>,
    stream: usize,
    is_shared: bool,
    label: Arc<str>,
}

/// An operation that the GPU has been given, or will be.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct DeviceTicket {
    ticket: EngineTicket,
    label: Arc<str>,
}

#[pymethods]
impl DeviceTicket {
    /// How it went, once the GPU has been given everything.
    #[getter]
    fn ticket(&self) -> Ticket {
        Ticket::new(self.ticket.ticket.clone(), Arc::clone(&self.label))
    }

    /// Have a stream wait for the end of the operation.
    fn order(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.ticket.order(stream).map_err(|error| errors::collectives(py, &error, &self.label))
    }
}

#[pymethods]
impl DeviceGroup {
    /// To be called by all ranks of a group that serves for this alone; operations are recorded as those of `home`. A text
    /// says why it cannot be, on every rank.
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        group: PyRef<'_, CollectiveGroup>,
        home: PyRef<'_, CollectiveGroup>,
        ordinal: i32,
        share: bool,
        pin: bool,
        timeout: f64,
    ) -> PyResult<(Option<DeviceGroup>, Option<String>)> {
        let (timeout, label) = (errors::duration(timeout)?, group.label());
        let (signals, home) = (group.connected(py)?, home.connected(py)?);
        let connected = py.detach(|| Engine::connect(signals, &home, ordinal, share, pin, timeout));
        match connected.map_err(|error| errors::collectives(py, &error, &label))? {
            Ok(engine) => {
                let (stream, is_shared) = (engine.stream(), engine.is_shared());
                Ok((Some(DeviceGroup { engine: Mutex::new(Some(Arc::new(engine))), stream, is_shared, label }), None))
            }
            Err(reason) => Ok((None, Some(reason))),
        }
    }

    /// Whether a type can be reduced so on the GPU.
    #[staticmethod]
    fn can_reduce(dtype: usize, reduce: usize) -> PyResult<bool> {
        Ok(Engine::can_reduce(data_type(dtype)?, reduction(reduce, 1.0)?))
    }

    /// Whether the ranks share a GPU, and exchange on it what is not small.
    #[getter]
    fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The stream on which everything happens.
    #[getter]
    fn stream(&self) -> usize {
        self.stream
    }

    /// Begin operations on device memory, behind what `stream` has been given; `keep` is held until the GPU has them.
    fn submit(
        &self,
        py: Python<'_>,
        operations: Vec<PyRef<'_, Operation>>,
        stream: usize,
        timeout: f64,
        keep: Py<PyAny>,
    ) -> PyResult<DeviceTicket> {
        let timeout = errors::duration(timeout)?;
        let operations = operations.iter().map(|operation| operation.get()).collect();
        let engine = self.engine(py)?;
        // Somebody else's operation may be under way, so not with the interpreter's lock.
        // SAFETY: the caller's promise: see the documentation of the module.
        let begun = py.detach(|| unsafe { engine.submit(operations, stream, timeout) });
        let ticket = begun.map_err(|error| errors::collectives(py, &error, &self.label))?;
        ticket.ticket.when_finished(move |_| drop(keep));
        Ok(DeviceTicket { ticket, label: Arc::clone(&self.label) })
    }

    /// Do operations on device memory, behind what `stream` has been given: whether they are done. If not, `stream` waits for
    /// their end.
    fn run(
        &self,
        py: Python<'_>,
        operations: Vec<PyRef<'_, Operation>>,
        stream: usize,
        timeout: f64,
    ) -> PyResult<bool> {
        let timeout = errors::duration(timeout)?;
        let operations = operations.iter().map(|operation| operation.get()).collect();
        let engine = self.engine(py)?;
        // SAFETY: the caller's promise: see the documentation of the module.
        let done = py.detach(|| unsafe { engine.run(operations, stream, timeout) });
        done.map_err(|error| errors::collectives(py, &error, &self.label))
    }

    /// Fail everything under way, here and on the peers; nothing if it is closed.
    fn abort(&self) {
        if let Some(engine) = self.engine.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            engine.abort();
        }
    }

    /// Wait for what is under way, and give the memory back.
    fn close(&self, py: Python<'_>) {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(engine));
    }
}

impl DeviceGroup {
    fn engine(&self, py: Python<'_>) -> PyResult<Arc<Engine>> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone();
        engine.ok_or_else(|| errors::closed_group(py, &self.label))
    }
}
