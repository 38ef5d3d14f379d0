//! all_reduce of small buffers: one exchange of flags, after which everybody reduces everything.
//!
//! What training does most often beside gradients: a loss, a norm, a flag. A few bytes travel in the cache line of the
//! counter that announces them; up to the limit for small buffers they lie in the slot. Nothing is allocated.

use std::ptr;

use super::ShmTransport;
use super::operations::with_pointers;
use super::pipeline::{StepContext, StepResult};
use crate::dtype::{DataType, Reduction};
use crate::kernel::{self, copy};
use crate::operation::{Source, Target};
use crate::rank::LocalRank;
use crate::shm::arena::control::{CARRIED_WORDS, Counter};

/// What fits the line.
const CARRIED_BYTES: usize = 8 * CARRIED_WORDS;
/// Ranks up to which the line is used.
const FEW: usize = 16;

impl ShmTransport {
    pub(super) fn all_reduce_small(
        &mut self,
        input: Source,
        output: Target,
        (dtype, reduction): (DataType, Reduction),
        fingerprint: u64,
        context: &StepContext,
    ) -> StepResult {
        let (rank, world, step) = (self.local_rank(), self.arena.world(), self.step);
        let carried = input.bytes <= CARRIED_BYTES && world <= FEW;
        // SAFETY: the caller of `ShmTransport::run` vouches for the input; a slot holds more than what is small.
        unsafe {
            if carried {
                let mut words = [0u64; CARRIED_WORDS];
                copy(input.pointer, words.as_mut_ptr().cast(), input.bytes);
                self.arena.control(rank).carry(step, words);
            } else {
                copy(input.pointer, self.arena.slot(rank, step), input.bytes);
            }
        }
        self.start(Some(fingerprint), context)?;
        self.touched = true;
        let mut lines = [[0u64; CARRIED_WORDS]; FEW];
        if carried {
            for (peer, words) in LocalRank::all(world).zip(&mut lines) {
                *words = self.arena.control(peer).carried(step);
            }
        }
        let input_of = |peer: LocalRank| {
            if carried { lines[peer.0].as_ptr().cast() } else { self.arena.slot(peer, step).cast_const() }
        };
        with_pointers(ptr::null(), LocalRank::all(world).map(input_of), |inputs| {
            let count = output.bytes / dtype.size();
            // SAFETY: the caller of `ShmTransport::run` vouches for the output; the inputs hold as many bytes, which nobody
            // changes before this rank is done (rule 4 of the arena).
            unsafe { kernel::reduce(dtype, reduction, inputs, &[output.pointer], count) };
        });
        self.step = step + 1;
        self.arena.control(rank).publish(Counter::Done, self.step);
        Ok(())
    }
}
