//! A rank that is to take another's place, before it is connected: its operations end at once, as if every peer had
//! given what it gives itself.
//!
//! A script builds its model and its optimizer with collectives on the way (DDP compares shapes and broadcasts weights).
//! The peers of a replacement did that long ago and take no part. What it computes here is of the right shape and type,
//! and is overwritten with the peers' state before it counts.
#![expect(unsafe_code, reason = "callers vouch for buffers")]

use crate::dtype::{DataType, Reduction};
use crate::kernel;
use crate::operation::{Operation, Source, Target};
use crate::ticket::{Output, Ticket};
use crate::{Error, Rank};

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Standby {
    rank: Rank,
    world: usize,
}

impl Standby {
    /// To become this rank of so many.
    pub fn new(rank: Rank, world: usize) -> Standby {
        Standby { rank, world }
    }

    /// Does operations, one after the other. What is invalid without looking at peers is refused, as in a group.
    ///
    /// # Safety
    /// The operations' memory is valid and nobody else's meanwhile.
    pub unsafe fn run(&self, operations: &[Operation]) -> Result<(), Error> {
        for operation in operations {
            operation.check(self.rank.0, self.world)?;
            // SAFETY: the caller's promise; the sizes are checked.
            unsafe { self.perform(operation) };
        }
        Ok(())
    }

    /// As [`Standby::run`], for a caller who wants a ticket.
    ///
    /// # Safety
    /// As for [`Standby::run`].
    pub unsafe fn submit(&self, operations: &[Operation]) -> Result<Ticket, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.run(operations) }?;
        Ok(complete(None))
    }

    /// A send or a receive: nobody is there, so what was to be received stays as it is.
    pub fn transfer(&self, peer: Option<Rank>) -> Result<Ticket, Error> {
        match peer {
            Some(peer) if peer.0 >= self.world => {
                Err(Error::invalid(format!("rank {peer} is not in this group of {}", self.world)))
            }
            _ => Ok(complete(Some(peer.unwrap_or(self.rank)))),
        }
    }

    unsafe fn perform(&self, operation: &Operation) {
        let own = self.rank.0;
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match operation {
                Operation::AllReduce { input, output, dtype, reduction } => {
                    self.reduce(*input, *output, *dtype, *reduction);
                }
                Operation::Reduce { input, output, dtype, reduction, root } if *root == self.rank => {
                    self.reduce(*input, *output, *dtype, *reduction);
                }
                Operation::ReduceScatter { inputs, output, dtype, reduction } => {
                    self.reduce(inputs[own], *output, *dtype, *reduction);
                }
                Operation::AllGather { input, outputs, .. } | Operation::Gather { input, outputs, .. } => {
                    outputs.iter().for_each(|output| copy(*input, *output));
                }
                Operation::AllToAll { inputs, outputs, .. } => copy(inputs[own], outputs[own]),
                Operation::Scatter { inputs, output, root, .. } if *root == self.rank => copy(inputs[own], *output),
                Operation::Reduce { .. }
                | Operation::Scatter { .. }
                | Operation::Broadcast { .. }
                | Operation::Barrier => {}
            }
        }
    }

    unsafe fn reduce(&self, input: Source, output: Target, dtype: DataType, reduction: Reduction) {
        let inputs = vec![input.pointer; self.world];
        // SAFETY: the caller's promise; the output is the input or does not overlap it.
        unsafe { kernel::reduce(dtype, reduction, &inputs, &[output.pointer], input.bytes / dtype.size()) };
    }
}

unsafe fn copy(from: Source, to: Target) {
    // SAFETY: the caller's promise.
    unsafe { kernel::copy(from.pointer, to.pointer, from.bytes.min(to.bytes)) };
}

fn complete(source: Option<Rank>) -> Ticket {
    let ticket = Ticket::new();
    ticket.finish_from(Ok(()), Output::Complete, source);
    ticket
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(operation: Operation) -> Result<(), Error> {
        // SAFETY: the tests' buffers outlive the call.
        unsafe { Standby::new(Rank(1), 3).run(&[operation]) }
    }

    #[test]
    fn peers_seem_to_have_given_the_same() {
        let mut sum = [1.0f32, 2.0];
        let (input, output) = (Source::of(&sum), Target::of(&mut sum));
        run(Operation::AllReduce { input, output, dtype: DataType::F32, reduction: Reduction::Sum }).unwrap();
        assert_eq!(sum, [3.0, 6.0]);
        let (given, mut gathered) = ([7i64], [0i64; 3]);
        let outputs = Target::of(&mut gathered).split(3);
        run(Operation::AllGather { input: Source::of(&given), outputs, dtype: DataType::I64 }).unwrap();
        assert_eq!(gathered, [7; 3]);
        let mut part = [0i64];
        let inputs = Source::of(&[1i64, 2, 3]).split(3);
        let operation = Operation::ReduceScatter {
            inputs,
            output: Target::of(&mut part),
            dtype: DataType::I64,
            reduction: Reduction::Max,
        };
        run(operation).unwrap();
        assert_eq!(part, [2]);
        let mut kept = [5.0f32];
        run(Operation::Broadcast { buffer: Target::of(&mut kept), dtype: DataType::F32, root: Rank(0) }).unwrap();
        assert_eq!(kept, [5.0]);
    }

    #[test]
    fn what_no_group_would_take_is_refused() {
        let mut one = [1.0f32];
        let operation =
            |root| Operation::Broadcast { buffer: Target::of(&mut one), dtype: DataType::F32, root: Rank(root) };
        assert!(matches!(run({ operation }(3)), Err(Error::Invalid { .. })));
        assert!(Standby::new(Rank(1), 3).transfer(Some(Rank(3))).is_err());
        assert_eq!(Standby::new(Rank(1), 3).transfer(Some(Rank(2))).unwrap().source(), Some(Rank(2)));
    }
}
