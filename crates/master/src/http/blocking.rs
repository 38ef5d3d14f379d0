//! Work that takes its time, where others do not wait for it.

use instep_api::error::Code;

use super::failure::Failure;

/// Does work on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    let working = tokio::task::spawn_blocking(work);
    working.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))
}
