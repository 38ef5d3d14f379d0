//! all_to_all: first the sizes, which only pairs of ranks know, then the data.

use super::pipeline::{StepContext, StepError, StepResult};
use super::work::{Exchange, Work};
use super::{ShmTransport, operations};
use crate::DataType;
use crate::abort::AbortReason;
use crate::operation::{Source, Target, hold_apart};
use crate::rank::LocalRank;
use crate::shm::arena::control::Counter;
use crate::shm::arena::{load, store};

impl ShmTransport {
    pub(super) fn perform_all_to_all(
        &mut self,
        inputs: &[Source],
        outputs: &[Target],
        dtype: DataType,
        context: &StepContext,
    ) -> StepResult {
        // What overlaps is sent from a copy: a peer may read a part after this rank has written over it.
        let held = hold_apart(inputs, outputs);
        let inputs = held.as_ref().map_or(inputs, |(_, sources)| sources);
        let row = self.arena.row(self.local_rank(), self.step);
        for peer in LocalRank::all(self.arena.world()) {
            store(row.sends(peer), inputs[peer.0].bytes as u64);
            store(row.expects(peer), outputs[peer.0].bytes as u64);
        }
        let first = self.step;
        let fingerprint = context.call.fingerprint(context.sequence);
        // The sizes are read between ready and done of that step.
        self.start(Some(fingerprint), context)?;
        let largest = self.compare_sizes(first, dtype, context)?;
        self.step += 1;
        self.arena.control(self.local_rank()).publish(Counter::Done, self.step);
        let exchange = Exchange { inputs: inputs.to_vec(), outputs: outputs.to_vec(), largest };
        let channels = self.channels.worth(largest * self.arena.world());
        if channels == 1 {
            return self.exchange(&exchange, None, context);
        }
        let share = |channel: usize| exchange.share(channel, channels, dtype.size());
        let own = |transport: &mut ShmTransport, share: &Exchange| transport.exchange(share, None, context);
        self.in_channels(channels, context, share, |share| Work::Exchange(share), own)
    }

    pub(super) fn exchange(
        &mut self,
        exchange: &Exchange,
        fingerprint: Option<u64>,
        context: &StepContext,
    ) -> StepResult {
        let Exchange { inputs, outputs, largest } = exchange;
        self.run_pipeline(operations::all_to_all(inputs, outputs, &self.view(), *largest), fingerprint, context)
    }

    /// Checks that every pair agrees; returns the most bytes any pair exchanges.
    fn compare_sizes(&self, step: u64, dtype: DataType, context: &StepContext) -> Result<usize, StepError> {
        let world = self.arena.world();
        let mut largest = 0;
        for from in LocalRank::all(world) {
            for to in LocalRank::all(world) {
                let sent = load(self.arena.row(from, step).sends(to));
                let expected = load(self.arena.row(to, step).expects(from));
                if sent != expected {
                    let element = dtype.size() as u64;
                    return Err(StepError::Abort(AbortReason::Mismatch {
                        rank: self.group_rank(from),
                        call: context.call.sending(sent / element, self.group_rank(to)),
                        other_rank: self.group_rank(to),
                        other: context.call.expecting(expected / element, self.group_rank(from)),
                        sequence: context.user_sequence,
                    }));
                }
                largest = largest.max(sent as usize);
            }
        }
        Ok(largest)
    }
}
