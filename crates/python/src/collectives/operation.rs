//! One collective operation, as Python describes it: addresses of memory, and indices of element types and reductions.

use std::sync::{Mutex, MutexGuard, PoisonError};

use instep_collectives::{self as collectives, DataType, Rank, Reduction, Source, Target};
use pyo3::prelude::PyResult;
use pyo3::{pyclass, pymethods};

use crate::errors;

/// Address and bytes.
pub(super) type Memory = (usize, usize);

/// Memory that is read: what an operation is given.
pub(super) fn read((address, bytes): Memory) -> Source {
    Source::new(std::ptr::with_exposed_provenance(address), bytes)
}

/// Memory that is written: what an operation gives.
pub(super) fn written((address, bytes): Memory) -> Target {
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

/// A panic while the lock was held is reported by itself; the data behind it is replaced as a whole, so still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
