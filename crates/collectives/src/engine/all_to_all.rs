//! all_to_all: first the sizes, which only pairs of ranks know, then the data.

use super::{Engine, Progress, Stop, Watch, Work, flow};
use crate::arena::control::Counter;
use crate::arena::verdict::Verdict;
use crate::arena::{load, store};
use crate::operation::{Source, Target, hold_apart};
use crate::plan::share;
use crate::{DataType, Rank};

/// What ranks have for each other: parts of different lengths.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    inputs: Vec<Source>,
    outputs: Vec<Target>,
    /// The most bytes any two ranks exchange.
    largest: usize,
}

impl Exchange {
    /// What one of so many lanes moves.
    fn share(&self, lane: usize, lanes: usize, element: usize) -> Exchange {
        let range = |bytes: usize| share(bytes, element, lanes, lane);
        Exchange {
            inputs: self.inputs.iter().map(|input| input.part(range(input.bytes))).collect(),
            outputs: self.outputs.iter().map(|output| output.part(range(output.bytes))).collect(),
            // That of the first lane: no other has more of anything.
            largest: share(self.largest, element, lanes, 0).len(),
        }
    }
}

impl Engine {
    pub(super) fn perform_all_to_all(
        &mut self,
        inputs: &[Source],
        outputs: &[Target],
        dtype: DataType,
        watch: &Watch,
    ) -> Progress {
        // What overlaps is sent from a copy: a peer may read a part after this rank has written over it.
        let held = hold_apart(inputs, outputs);
        let inputs = held.as_ref().map_or(inputs, |(_, sources)| sources);
        let row = self.arena.row(self.rank(), self.step);
        for peer in 0..self.arena.world() {
            store(row.sends(peer), inputs[peer].bytes as u64);
            store(row.expects(peer), outputs[peer].bytes as u64);
        }
        let first = self.step;
        let fingerprint = watch.call.fingerprint(watch.sequence);
        // The sizes are read between ready and done of that step.
        self.start(Some(fingerprint), watch)?;
        let largest = self.compare_sizes(first, dtype, watch)?;
        self.step += 1;
        self.arena.control(self.rank()).publish(Counter::Done, self.step);
        let exchange = Exchange { inputs: inputs.to_vec(), outputs: outputs.to_vec(), largest };
        let lanes = self.lanes.worth(largest * self.arena.world());
        if lanes == 1 {
            return self.exchange(&exchange, None, watch);
        }
        let share = |lane: usize| exchange.share(lane, lanes, dtype.size());
        let own = |engine: &mut Engine, share: &Exchange| engine.exchange(share, None, watch);
        self.in_lanes(lanes, watch, share, |share| Work::Exchange(share), own)
    }

    pub(super) fn exchange(&mut self, exchange: &Exchange, fingerprint: Option<u64>, watch: &Watch) -> Progress {
        let Exchange { inputs, outputs, largest } = exchange;
        self.run_flow(flow::all_to_all(inputs, outputs, &self.view(), *largest), fingerprint, watch)
    }

    /// Checks that every pair agrees; returns the most bytes any pair exchanges.
    fn compare_sizes(&self, step: u64, dtype: DataType, watch: &Watch) -> Result<usize, Stop> {
        let world = self.arena.world();
        let mut largest = 0;
        for from in 0..world {
            for to in 0..world {
                let sent = load(self.arena.row(from, step).sends(to));
                let expected = load(self.arena.row(to, step).expects(from));
                if sent != expected {
                    let element = dtype.size() as u64;
                    return Err(Stop::Verdict(Verdict::Mismatch {
                        rank: self.members[from],
                        call: watch.call.sending(sent / element, Rank(self.members[to])),
                        other_rank: self.members[to],
                        other: watch.call.expecting(expected / element, Rank(self.members[from])),
                        sequence: watch.shown,
                    }));
                }
                largest = largest.max(sent as usize);
            }
        }
        Ok(largest)
    }
}
