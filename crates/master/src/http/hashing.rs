//! Hashing of passwords, which takes 19 MiB and a core for each: only as many at a time as there are cores.

use std::sync::LazyLock;

use instep_api::error::Code;
use tokio::sync::Semaphore;

use super::blocking::blocking;
use super::failure::Failure;

static PLACES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(2, usize::from)));

/// Does work on a password where blocking is allowed, once there is room for it.
pub(super) async fn work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    // Held until the work is done, also if nobody waits for it any more.
    let place = PLACES.acquire().await.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    blocking(move || {
        let outcome = work();
        drop(place);
        outcome
    })
    .await
}
