//! Memory that the GPU copies to and from by itself.
#![expect(unsafe_code, reason = "an address that another thread may hold")]

use std::sync::Arc;

use super::super::driver::{CudaError, Gpu};

/// A part of the memory that the GPU copies to and from by itself.
pub(super) struct Pin {
    pub(super) gpu: Arc<Gpu>,
    pub(super) start: *mut u8,
}

// SAFETY: only an address.
unsafe impl Send for Pin {}

impl Pin {
    pub(super) fn new(gpu: &Arc<Gpu>, start: *mut u8, bytes: usize) -> Result<Pin, CudaError> {
        gpu.pin(start.cast(), bytes)?;
        Ok(Pin { gpu: Arc::clone(gpu), start })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            self.gpu.unpin(self.start.cast());
        }
    }
}
