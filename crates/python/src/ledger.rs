//! The ledger for Python: what this rank's time is spent on.
//!
//! There is one for the thread that made the flight recorder, which is the one that trains. What other threads wait for, they
//! wait for beside it: on those, and without a recorder, all of this does nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use instep_recorder::{Account, Activity, Ledger, Recorder};
use pyo3::prelude::{PyResult, pyfunction};

use crate::errors;

thread_local! {
    static LEDGER: RefCell<Option<Rc<Ledger>>> = const { RefCell::new(None) };
}

/// Begins the ledger of this thread.
pub(crate) fn begin(recorder: &Arc<Recorder>) {
    LEDGER.set(Some(Rc::new(Ledger::new(recorder))));
}

fn change<T>(change: impl FnOnce(&mut Account, u64) -> T) -> Option<T> {
    LEDGER.with_borrow(|ledger| Some(ledger.as_ref()?.change(change)))
}

/// Does what the caller waits for.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let counts = change(Account::begin_wait).unwrap_or(false);
    let result = wait();
    if counts {
        change(Account::end_wait);
    }
    result
}

/// The process is about to end by itself.
pub(crate) fn end() {
    change(|account, now| account.switch(Activity::Idle, now));
}

/// The activity with this index in `ACTIVITIES`.
fn activity(index: usize) -> PyResult<Activity> {
    Activity::ALL.get(index).copied().ok_or_else(|| errors::no_such("activity", index))
}

/// From now on this rank does that; gives what it did.
#[pyfunction]
pub(crate) fn ledger_switch(index: usize) -> PyResult<usize> {
    let activity = activity(index)?;
    Ok(change(|account, now| account.switch(activity, now)).map_or(index, |before| before as usize))
}

/// The caller begins to wait for other ranks; whether `ledger_end_wait` is to be called.
#[pyfunction]
pub(crate) fn ledger_begin_wait() -> bool {
    change(Account::begin_wait).unwrap_or(false)
}

/// The caller has waited for other ranks.
#[pyfunction]
pub(crate) fn ledger_end_wait() {
    change(Account::end_wait);
}

/// A hot spare becomes a rank: what it did before is no rank's time.
#[pyfunction]
pub(crate) fn ledger_take_over() {
    change(|account, now| *account = Account::new(now));
}

/// The training's loop begins, after so many steps.
#[pyfunction]
pub(crate) fn ledger_begin_training(steps: u64) {
    change(|account, now| account.begin_training(steps, now));
}

/// A step begins.
#[pyfunction]
pub(crate) fn ledger_begin_attempt() {
    change(Account::begin_attempt);
}

/// The step counts, which makes so many.
#[pyfunction]
pub(crate) fn ledger_commit(steps: u64) {
    change(|account, _| account.commit(steps));
}

/// The step has to be done again.
#[pyfunction]
pub(crate) fn ledger_abort_attempt() {
    change(Account::abort_attempt);
}

/// A child that was forked has no ledger: that of its parent is none of its business.
#[pyfunction]
pub(crate) fn ledger_forget() {
    // Not dropped: what it would unmap is the child's own view, and somebody may be using it.
    LEDGER.with_borrow_mut(|ledger| std::mem::forget(ledger.take()));
}
