//! The private `instep._native` extension module: what Python needs of the Rust crates, and nothing of its own.
//!
//! Every wait happens with the interpreter released. `python/instep/store.py`, `python/instep/backend` and `python/instep/core`
//! are the public faces and `python/instep/_native.pyi` the types; errors become Python exceptions in `errors` alone.

mod checkpoint;
mod collectives;
mod delivery;
mod device;
mod digest;
mod errors;
mod json;
mod ledger;
mod recorder;
mod store;
mod tracking;

use pyo3::pymodule;

/// The private native part of instep; use `instep.store`, `instep.core`, or `torch.distributed` with `backend="instep"`.
#[pymodule]
mod _native {
    use pyo3::prelude::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use super::checkpoint::CheckpointFolder;
    #[pymodule_export]
    use super::collectives::{CollectiveGroup, Operation, Ticket, stop_callbacks};
    #[pymodule_export]
    use super::device::{DeviceGroup, DeviceTicket};
    #[pymodule_export]
    use super::digest::digest;
    #[pymodule_export]
    use super::ledger::{
        ledger_abort_attempt, ledger_begin_attempt, ledger_begin_training, ledger_begin_wait, ledger_commit,
        ledger_end_wait, ledger_forget, ledger_switch, ledger_take_over,
    };
    #[pymodule_export]
    use super::recorder::FlightRecorder;
    #[pymodule_export]
    use super::store::{StoreClient, StoreServer};
    #[pymodule_export]
    use super::tracking::{MasterClient, Preemption, Reporter};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("DTYPES", super::collectives::data_type_names())?;
        module.add("REDUCTIONS", super::collectives::reduction_names())
    }
}
