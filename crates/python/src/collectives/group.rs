//! The ranks that work together, as one of them holds them in Python: connecting, operations, abort and shutdown.
//!
//! Every wait happens with the interpreter released.
#![expect(unsafe_code, reason = "memory of tensors comes as addresses")]

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use instep_collectives::{
    self as collectives, Address, Error, Group, NewestGeneration, Options, Rank, Secret, Standby, TransportChoice,
};
use pyo3::prelude::{Bound, Py, PyAny, PyRef, PyResult, Python};
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use pyo3::{pyclass, pymethods};

use super::operation::{Memory, Operation, read, written};
use super::ticket::Ticket;
use crate::recorder::FlightRecorder;
use crate::{errors, ledger};

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
        Ok(Ticket::new(ticket, Arc::clone(&self.label)))
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
        Ok(Ticket::new(ticket, Arc::clone(&self.label)))
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
