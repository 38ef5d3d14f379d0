//! What ranks of a host do together: an operation, or a part of one that several hosts do.

use crate::operation::{Operation, Source, Target};
use crate::partition::share;
use crate::{DataType, Reduction};

/// What ranks of a host do together.
#[derive(Clone, Debug)]
pub(crate) enum Work<'a> {
    Operation(&'a Operation),
    /// Each rank gets the reduction of its part of all inputs; parts differ in length.
    ReduceScatter {
        parts: Vec<Source>,
        output: Target,
        dtype: DataType,
        reduction: Reduction,
    },
    /// Each rank that wants them (and has a list) gets all inputs; they differ in length, and all ranks know them.
    Gather {
        input: Source,
        lengths: Vec<usize>,
        outputs: Vec<Target>,
    },
    /// The bytes of an all_to_all, when the sizes are known.
    Exchange(&'a Exchange),
}

/// What ranks have for each other: parts of different lengths.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(super) inputs: Vec<Source>,
    pub(super) outputs: Vec<Target>,
    /// The most bytes any two ranks exchange.
    pub(super) largest: usize,
}

impl Exchange {
    /// What one of so many channels moves.
    pub(super) fn share(&self, channel: usize, channels: usize, element: usize) -> Exchange {
        let range = |bytes: usize| share(bytes, element, channels, channel);
        Exchange {
            inputs: self.inputs.iter().map(|input| input.part(range(input.bytes))).collect(),
            outputs: self.outputs.iter().map(|output| output.part(range(output.bytes))).collect(),
            // That of the first channel: no other has more of anything.
            largest: share(self.largest, element, channels, 0).len(),
        }
    }
}
