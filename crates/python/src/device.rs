//! The group of ranks on one GPU as a Python class: memory comes as device addresses, streams as the driver's numbers.
#![expect(unsafe_code, reason = "device memory of tensors comes as addresses")]

use std::sync::{Arc, Mutex, PoisonError};

use instep_collectives as collectives;
use pyo3::prelude::{Py, PyAny, PyRef, PyResult, Python};
use pyo3::{pyclass, pymethods};

use crate::collectives::{CollectiveGroup, Operation, Ticket, data_type, reduction};
use crate::errors;

/// The ranks of a group, on the GPU they share.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct DeviceGroup {
    group: Mutex<Option<Arc<collectives::DeviceGroup>>>,
    stream: usize,
    is_shared: bool,
    label: Arc<str>,
}

/// An operation that the GPU has been given, or will be.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct DeviceTicket {
    ticket: collectives::DeviceTicket,
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
        let outcome = py.detach(|| collectives::DeviceGroup::connect(signals, &home, ordinal, share, pin, timeout));
        match outcome.map_err(|error| errors::collectives(py, &error, &label))? {
            Ok(group) => {
                let (stream, is_shared) = (group.stream(), group.is_shared());
                Ok((Some(DeviceGroup { group: Mutex::new(Some(Arc::new(group))), stream, is_shared, label }), None))
            }
            Err(reason) => Ok((None, Some(reason))),
        }
    }

    /// Whether a type can be reduced so on the GPU.
    #[staticmethod]
    fn can_reduce(dtype: usize, reduce: usize) -> PyResult<bool> {
        Ok(collectives::DeviceGroup::can_reduce(data_type(dtype)?, reduction(reduce, 1.0)?))
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
        let group = self.connected(py)?;
        // Somebody else's operation may be under way, so not with the interpreter's lock.
        // SAFETY: the caller's promise: see the documentation of the module.
        let begun = py.detach(|| unsafe { group.submit(operations, stream, timeout) });
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
        let group = self.connected(py)?;
        // SAFETY: the caller's promise: see the documentation of the module.
        let done = py.detach(|| unsafe { group.run(operations, stream, timeout) });
        done.map_err(|error| errors::collectives(py, &error, &self.label))
    }

    /// Fail everything under way, here and on the peers; nothing if it is closed.
    fn abort(&self) {
        if let Some(group) = self.group.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            group.abort();
        }
    }

    /// Wait for what is under way, and give the memory back.
    fn close(&self, py: Python<'_>) {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(group));
    }
}

impl DeviceGroup {
    fn connected(&self, py: Python<'_>) -> PyResult<Arc<collectives::DeviceGroup>> {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner).clone();
        group.ok_or_else(|| errors::closed_group(py, &self.label))
    }
}
