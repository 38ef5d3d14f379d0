//! A thread that its owner stops and joins.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread; dropping this stops and joins it.
#[derive(Debug)]
pub(crate) struct BackgroundThread<T> {
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<T>>,
}

/// What the thread asks whether it is to stop.
#[derive(Debug)]
pub(crate) struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Waits; shorter if the thread is to stop.
    pub(crate) fn wait(&self, time: Duration) {
        std::thread::park_timeout(time);
    }
}

impl<T: Send + 'static> BackgroundThread<T> {
    /// Starts a thread with this name, of which the system shows 15 letters.
    pub(crate) fn start(
        name: &str,
        body: impl FnOnce(&StopSignal) -> T + Send + 'static,
    ) -> io::Result<BackgroundThread<T>> {
        let stop = Arc::new(AtomicBool::new(false));
        let signal = StopSignal(stop.clone());
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(move || body(&signal))?;
        Ok(BackgroundThread { stop, handle: Some(handle) })
    }
}

impl<T> BackgroundThread<T> {
    /// Waits for the end of the thread and takes its result, once; an error if it panicked.
    pub(crate) fn join(&mut self) -> Option<std::thread::Result<T>> {
        self.handle.take().map(JoinHandle::join)
    }
}

impl<T> Drop for BackgroundThread<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(handle) = &self.handle {
            handle.thread().unpark();
        }
        // A panic was reported by the thread itself.
        let _ = self.join();
    }
}
