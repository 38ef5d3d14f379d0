//! Hashing of passwords, which takes 19 MiB and a core for each: only as many at a time as there are cores.

use std::sync::LazyLock;

use instep_api::error::Code;
use tokio::sync::Semaphore;

use super::failure::Failure;

static PLACES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(2, usize::from)));

/// Does work on a password where blocking is allowed, once there is room for it.
pub(super) async fn work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Code::Internal, error.to_string());
    // Held until the work is done, also if nobody waits for it any more.
    let place = PLACES.acquire().await.map_err(|error| failed(&error))?;
    let working = tokio::task::spawn_blocking(move || {
        let outcome = work();
        drop(place);
        outcome
    });
    working.await.map_err(|error| failed(&error))
}
