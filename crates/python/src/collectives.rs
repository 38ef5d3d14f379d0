//! The collectives as Python classes: memory comes as addresses, what goes wrong as exceptions.
//!
//! Nothing here knows torch. Callers give the address and the length of memory that they keep valid until the operation
//! has ended; `submit` and its kin also hold on to an object until then, so that a caller who forgets cannot crash.
//!
//! Every wait happens with the interpreter released, and threads of the collectives never take it: see [`crate::delivery`].
#![expect(unsafe_code, reason = "memory of tensors comes as addresses")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use instep_collectives::{
    self as collectives, Address, DataType, Error, Group, NewestGeneration, Options, Rank, Reduction, Secret, Source,
    Standby, Target, TransportChoice,
};
use pyo3::prelude::{Bound, Py, PyAny, PyRef, PyResult, Python, pyfunction};
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use pyo3::{pyclass, pymethods};

use crate::recorder::FlightRecorder;
use crate::{delivery, errors, ledger};

/// How often a wait on the main thread looks whether a signal came.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Address and bytes.
type Memory = (usize, usize);

/// Memory that is read: what an operation is given.
fn read((address, bytes): Memory) -> Source {
    Source::new(std::ptr::with_exposed_provenance(address), bytes)
}

fn written((address, bytes): Memory) -> Target {
    Target::new(std::ptr::with_exposed_provenance_mut(address), bytes)
}

fn sources(memory: Vec<Memory>) -> Vec<Source> {
    memory.into_iter().map(read).collect()
}

fn targets(memory: Vec<Memory>) -> Vec<Target> {
    memory.into_iter().map(written).collect()
}

/// The type with this index in `DTYPES`.
pub(crate) fn data_type(index: usize) -> PyResult<DataType> {
    DataType::ALL.get(index).copied().ok_or_else(|| errors::no_such("element type", index))
}

/// The reduction with this index in `REDUCTIONS`.
pub(crate) fn reduction(index: usize, factor: f64) -> PyResult<Reduction> {
    match Reduction::ALL.get(index) {
        Some(Reduction::PremultipliedSum(_)) => Ok(Reduction::PremultipliedSum(factor)),
        Some(other) => Ok(*other),
        None => Err(errors::no_such("reduction", index)),
    }
}

/// Names of the element types; an operation is given the index.
pub(crate) fn data_type_names() -> [&'static str; DataType::ALL.len()] {
    DataType::ALL.map(DataType::name)
}

/// Names of the reductions; an operation is given the index.
pub(crate) fn reduction_names() -> [&'static str; Reduction::ALL.len()] {
    Reduction::ALL.map(Reduction::name)
}

/// One collective operation, not yet begun.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct Operation(Mutex<collectives::Operation>);

impl Operation {
    fn new(operation: collectives::Operation) -> Operation {
        Operation(Mutex::new(operation))
    }

    pub(crate) fn get(&self) -> collectives::Operation {
        lock(&self.0).clone()
    }
}

#[pymethods]
impl Operation {
    /// In state: the memory becomes the reduction of all ranks' memory.
    #[staticmethod]
    #[pyo3(signature = (address, length, dtype, reduce, factor=1.0))]
    fn all_reduce(address: usize, length: usize, dtype: usize, reduce: usize, factor: f64) -> PyResult<Operation> {
        let memory = (address, length);
        Ok(Operation::new(collectives::Operation::AllReduce {
            input: read(memory),
            output: written(memory),
            dtype: data_type(dtype)?,
            reduction: reduction(reduce, factor)?,
        }))
    }

    /// In state on the root: its memory becomes the reduction of all ranks' memory.
    #[staticmethod]
    #[pyo3(signature = (memory, dtype, reduce, root, factor=1.0))]
    fn reduce(memory: Memory, dtype: usize, reduce: usize, root: usize, factor: f64) -> PyResult<Operation> {
        Ok(Operation::new(collectives::Operation::Reduce {
            input: read(memory),
            output: written(memory),
            dtype: data_type(dtype)?,
            reduction: reduction(reduce, factor)?,
            root: Rank(root),
        }))
    }

    /// The memory becomes that of the root.
    #[staticmethod]
    fn broadcast(memory: Memory, dtype: usize, root: usize) -> PyResult<Operation> {
        let dtype = data_type(dtype)?;
        Ok(Operation::new(collectives::Operation::Broadcast { buffer: written(memory), dtype, root: Rank(root) }))
    }

    /// The outputs become the inputs of all ranks.
    #[staticmethod]
    fn all_gather(source: Memory, outputs: Vec<Memory>, dtype: usize) -> PyResult<Operation> {
        let dtype = data_type(dtype)?;
        Ok(Operation::new(collectives::Operation::AllGather { input: read(source), outputs: targets(outputs), dtype }))
    }

    /// The root's outputs become the inputs of all ranks; elsewhere there are none.
    #[staticmethod]
    fn gather(source: Memory, outputs: Vec<Memory>, dtype: usize, root: usize) -> PyResult<Operation> {
        Ok(Operation::new(collectives::Operation::Gather {
            input: read(source),
            outputs: targets(outputs),
            dtype: data_type(dtype)?,
            root: Rank(root),
        }))
    }

    /// The output becomes this rank's part of the root's inputs; elsewhere there are none.
    #[staticmethod]
    fn scatter(inputs: Vec<Memory>, output: Memory, dtype: usize, root: usize) -> PyResult<Operation> {
        Ok(Operation::new(collectives::Operation::Scatter {
            inputs: sources(inputs),
            output: written(output),
            dtype: data_type(dtype)?,
            root: Rank(root),
        }))
    }

    /// The output becomes the reduction of all ranks' inputs for this rank.
    #[staticmethod]
    #[pyo3(signature = (inputs, output, dtype, reduce, factor=1.0))]
    fn reduce_scatter(
        inputs: Vec<Memory>,
        output: Memory,
        dtype: usize,
        reduce: usize,
        factor: f64,
    ) -> PyResult<Operation> {
        Ok(Operation::new(collectives::Operation::ReduceScatter {
            inputs: sources(inputs),
            output: written(output),
            dtype: data_type(dtype)?,
            reduction: reduction(reduce, factor)?,
        }))
    }

    /// The outputs become all ranks' inputs for this rank; lengths may differ from pair to pair.
    #[staticmethod]
    fn all_to_all(inputs: Vec<Memory>, outputs: Vec<Memory>, dtype: usize) -> PyResult<Operation> {
        let dtype = data_type(dtype)?;
        Ok(Operation::new(collectives::Operation::AllToAll {
            inputs: sources(inputs),
            outputs: targets(outputs),
            dtype,
        }))
    }

    /// Done when every rank has come.
    #[staticmethod]
    fn barrier() -> Operation {
        Operation::new(collectives::Operation::Barrier)
    }
}

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

/// The ranks that work together, as one of them holds them.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct CollectiveGroup {
    state: RwLock<GroupState>,
    newest: NewestGeneration,
    label: Arc<str>,
}

enum GroupState {
    Bound(Box<collectives::Bound>),
    /// Bound, and not to wait for its peers: operations end at once.
    Standby(Box<collectives::Bound>, Standby),
    Connected(Arc<Group>),
    /// After `shutdown`, or when connecting failed.
    Closed,
}

impl CollectiveGroup {
    pub(crate) fn label(&self) -> Arc<str> {
        Arc::clone(&self.label)
    }

    pub(crate) fn connected(&self, py: Python<'_>) -> PyResult<Arc<Group>> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            GroupState::Connected(group) => Ok(Arc::clone(group)),
            _ => Err(errors::closed_group(py, &self.label)),
        }
    }

    fn standby(&self) -> Option<Standby> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            GroupState::Standby(_, standby) => Some(*standby),
            _ => None,
        }
    }

    fn ticket(&self, py: Python<'_>, result: Result<collectives::Ticket, Error>) -> PyResult<Ticket> {
        let ticket = result.map_err(|error| errors::collectives(py, &error, &self.label))?;
        Ok(Ticket { ticket, label: Arc::clone(&self.label) })
    }

    fn replace(&self, state: GroupState) -> GroupState {
        std::mem::replace(&mut *self.state.write().unwrap_or_else(PoisonError::into_inner), state)
    }

    fn address_of(&self, py: Python<'_>) -> PyResult<Address> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            GroupState::Bound(bound) | GroupState::Standby(bound, _) => Ok(bound.address().clone()),
            GroupState::Connected(group) => Ok(group.address().clone()),
            GroupState::Closed => Err(errors::closed_group(py, &self.label)),
        }
    }

    fn parse(&self, py: Python<'_>, addresses: &[PyBackedBytes]) -> PyResult<Vec<Address>> {
        let parsed: Result<Vec<Address>, Error> = addresses.iter().map(|bytes| Address::from_bytes(bytes)).collect();
        parsed.map_err(|error| errors::collectives(py, &error, &self.label))
    }

    /// Begins something with the interpreter released, and holds on to `keep` until it has ended.
    fn begin(
        &self,
        py: Python<'_>,
        timeout: f64,
        keep: Py<PyAny>,
        begin: impl FnOnce(&Group, Duration) -> Result<collectives::Ticket, Error> + Send,
    ) -> PyResult<Ticket> {
        let timeout = errors::duration(timeout)?;
        let group = self.connected(py)?;
        let result = py.detach(|| begin(&group, timeout));
        let ticket = result.map_err(|error| errors::collectives(py, &error, &self.label))?;
        // On a thread without the interpreter this only notes that the object can go.
        ticket.when_finished(move |_| drop(keep));
        Ok(Ticket { ticket, label: Arc::clone(&self.label) })
    }
}

#[pymethods]
impl CollectiveGroup {
    /// Listen for the other ranks. `label` is added to errors; `single_copy`: whether peers may read each other's memory; `channels`:
    /// how many threads share the work of a large operation inside a host, `network_channels` between hosts, and `local_world`, how many
    /// ranks of the job share the cores if those are not given; `tcp`: TCP also inside a host; `interface`: the network interfaces to be reached at; `secret`: what ranks of other hosts must
    /// know; `canonical`: sums in the order of ranks whatever the hosts; `recorder`: where operations are
    /// written down, as those of the group `name` with these ranks of the job, none for all.
    #[new]
    #[pyo3(signature = (*, timeout, label="", single_copy=true, channels=None, network_channels=None, local_world=None, tcp=false, interface=None, secret=None,
        encrypt=false, canonical=false, recorder=None, name="", ranks=Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        timeout: f64,
        label: &str,
        single_copy: bool,
        channels: Option<usize>,
        network_channels: Option<usize>,
        local_world: Option<usize>,
        tcp: bool,
        interface: Option<String>,
        secret: Option<&str>,
        encrypt: bool,
        canonical: bool,
        recorder: Option<PyRef<'_, FlightRecorder>>,
        name: &str,
        ranks: Vec<u32>,
    ) -> PyResult<CollectiveGroup> {
        let recorder = recorder.map(|recorder| recorder.group(name, &ranks));
        let (timeout, secret) = (errors::duration(timeout)?, secret.map(Secret::new));
        let mut options = Options {
            timeout,
            single_copy,
            channels,
            network_channels,
            local_world,
            interface,
            secret,
            encrypt,
            canonical,
            recorder,
            ..Options::default()
        };
        let newest = options.newest.clone();
        if tcp {
            options.transport = TransportChoice::Tcp;
        }
        let bound = Group::bind(options).map_err(|error| errors::collectives(py, &error, label))?;
        let state = RwLock::new(GroupState::Bound(Box::new(bound)));
        Ok(CollectiveGroup { state, newest, label: label.into() })
    }

    /// Answer operations as if all peers gave what this rank gives, until `connect` is called.
    fn stand_by(&self, rank: usize, world: usize) {
        match self.replace(GroupState::Closed) {
            GroupState::Bound(bound) => self.replace(GroupState::Standby(bound, Standby::new(Rank(rank), world))),
            other => self.replace(other),
        };
    }

    /// Have `connect` fail that waits for ranks of a generation before this one: one of them is lost.
    fn supersede(&self, generation: u64) {
        self.newest.announce(generation);
    }

    /// Where this rank listens, for the other ranks.
    fn address<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.address_of(py)?.to_bytes()))
    }

    /// Whether these ranks, this one among them, can only be connected over the network.
    fn needs_network(&self, py: Python<'_>, addresses: Vec<PyBackedBytes>) -> PyResult<bool> {
        let addresses = self.parse(py, &addresses)?;
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            GroupState::Bound(bound) | GroupState::Standby(bound, _) => Ok(bound.needs_network(&addresses)),
            GroupState::Connected(group) => Ok(group.needs_network(&addresses)),
            GroupState::Closed => Err(errors::closed_group(py, &self.label)),
        }
    }

    /// Listen on the network too; the address changes.
    fn open_to_network(&self, py: Python<'_>) -> PyResult<()> {
        let result = match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            GroupState::Bound(bound) | GroupState::Standby(bound, _) => bound.open_to_network(),
            GroupState::Connected(group) => group.open_to_network(),
            GroupState::Closed => return Err(errors::closed_group(py, &self.label)),
        };
        result.map_err(|error| errors::collectives(py, &error, &self.label))
    }

    /// Connect to the other ranks, whose addresses are given in the order of ranks; a connected group gets other peers.
    ///
    /// Gives how many operations of the generation before every survivor completed, None if nobody survived it.
    fn connect(
        &self,
        py: Python<'_>,
        rank: usize,
        addresses: Vec<PyBackedBytes>,
        generation: u64,
        timeout: f64,
    ) -> PyResult<Option<u64>> {
        let timeout = errors::duration(timeout)?;
        let addresses = self.parse(py, &addresses)?;
        let outcome = match self.replace(GroupState::Closed) {
            GroupState::Closed => return Err(errors::closed_group(py, &self.label)),
            GroupState::Bound(bound) | GroupState::Standby(bound, _) => {
                let result = py.detach(|| bound.connect(Rank(rank), &addresses, generation, timeout));
                result.map(|group| (Arc::new(group), None))
            }
            GroupState::Connected(group) => {
                // Back at once: others may abort, and see that it is being rebuilt.
                self.replace(GroupState::Connected(Arc::clone(&group)));
                let result = py.detach(|| group.reconfigure(Rank(rank), &addresses, generation, timeout));
                result.map(|agreed| (group, agreed.completed_by_all))
            }
        };
        match outcome {
            Ok((group, completed_by_all)) => {
                self.replace(GroupState::Connected(group));
                Ok(completed_by_all)
            }
            Err(error) => Err(errors::collectives(py, &error, &self.label)),
        }
    }

    /// Do an operation and return when it is done; on this thread, unless others are queued.
    fn run(&self, py: Python<'_>, operation: &Operation, timeout: f64) -> PyResult<()> {
        let timeout = errors::duration(timeout)?;
        let operation = operation.get();
        if let Some(standby) = self.standby() {
            // SAFETY: the caller keeps the memory valid until this returns.
            let result = py.detach(|| unsafe { standby.run(&[operation]) });
            return result.map_err(|error| errors::collectives(py, &error, &self.label));
        }
        let group = self.connected(py)?;
        // SAFETY: the caller keeps the memory valid until this returns.
        let result = ledger::waiting(|| py.detach(|| unsafe { group.run_within(operation, timeout) }));
        result.map_err(|error| errors::collectives(py, &error, &self.label))
    }

    /// Queue an operation. `keep` is held until it has ended.
    fn submit(&self, py: Python<'_>, operation: &Operation, timeout: f64, keep: Py<PyAny>) -> PyResult<Ticket> {
        let operation = operation.get();
        if let Some(standby) = self.standby() {
            // SAFETY: the caller keeps the memory valid until this returns.
            return self.ticket(py, unsafe { standby.submit(&[operation]) });
        }
        // SAFETY: what is kept keeps the memory valid until the ticket is finished.
        self.begin(py, timeout, keep, move |group, timeout| unsafe { group.submit_within(operation, timeout) })
    }

    /// Queue several: one after the other, nothing in between, the time for all together.
    fn submit_together(
        &self,
        py: Python<'_>,
        operations: Vec<PyRef<'_, Operation>>,
        timeout: f64,
        keep: Py<PyAny>,
    ) -> PyResult<Ticket> {
        let operations: Vec<collectives::Operation> = operations.iter().map(|operation| operation.get()).collect();
        if let Some(standby) = self.standby() {
            // SAFETY: the caller keeps the memory valid until this returns.
            return self.ticket(py, unsafe { standby.submit(&operations) });
        }
        // SAFETY: what is kept keeps the memory valid until the ticket is finished.
        self.begin(py, timeout, keep, move |group, timeout| unsafe { group.submit_together(operations, timeout) })
    }

    /// Send to one rank, whatever collectives are under way.
    fn send(
        &self,
        py: Python<'_>,
        memory: Memory,
        to: usize,
        tag: u64,
        timeout: f64,
        keep: Py<PyAny>,
    ) -> PyResult<Ticket> {
        if let Some(standby) = self.standby() {
            return self.ticket(py, standby.transfer(Some(Rank(to))));
        }
        let memory = read(memory);
        // SAFETY: what is kept keeps the memory valid until the ticket is finished.
        self.begin(py, timeout, keep, move |group, timeout| unsafe { group.send(memory, Rank(to), tag, timeout) })
    }

    /// Receive from one rank, or from whoever sends first.
    #[pyo3(signature = (memory, source, tag, timeout, keep))]
    fn receive(
        &self,
        py: Python<'_>,
        memory: Memory,
        source: Option<usize>,
        tag: u64,
        timeout: f64,
        keep: Py<PyAny>,
    ) -> PyResult<Ticket> {
        let from = source.map(Rank);
        if let Some(standby) = self.standby() {
            return self.ticket(py, standby.transfer(from));
        }
        let memory = written(memory);
        // SAFETY: what is kept keeps the memory valid until the ticket is finished.
        self.begin(py, timeout, keep, move |group, timeout| unsafe { group.receive(memory, from, tag, timeout) })
    }

    /// Fail everything under way, here and on the peers. Returns at once; does nothing when there is no group.
    fn abort(&self, py: Python<'_>) {
        if let Ok(group) = self.connected(py) {
            py.detach(|| group.abort());
        }
    }

    /// Why the group is aborted, as an exception, or None.
    fn failure(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let error = self.connected(py).ok()?.failure()?;
        Some(errors::collectives(py, &error, &self.label).into_value(py).into_any())
    }

    /// The generation it was last connected at.
    fn generation(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.connected(py)?.generation())
    }

    /// Whether long messages are read straight out of the peers' memory.
    fn uses_single_copy(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.connected(py)?.uses_single_copy())
    }

    /// Leave the group. What is under way fails; does nothing the second time.
    fn shutdown(&self, py: Python<'_>) {
        let state = self.replace(GroupState::Closed);
        py.detach(|| {
            // Another thread may be inside an operation and hold the group: it must come back before the group can go.
            if let GroupState::Connected(group) = &state
                && Arc::strong_count(group) > 1
            {
                group.abort();
            }
            drop(state);
        });
    }
}

impl Drop for CollectiveGroup {
    /// With the interpreter released, because dropping a group joins its threads.
    fn drop(&mut self) {
        let state = self.replace(GroupState::Closed);
        Python::attach(|py| py.detach(|| drop(state)));
    }
}

/// End the threads for callbacks, before the interpreter ends.
#[pyfunction]
pub(crate) fn stop_callbacks(py: Python<'_>) {
    py.detach(delivery::stop);
}

/// A panic while the lock was held is reported by itself; the data behind it is replaced as a whole, so still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
