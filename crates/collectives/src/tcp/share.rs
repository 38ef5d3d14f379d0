//! What one channel does of an operation: pure.
//!
//! Ranks divide alike without a word. What a rank gives and what it takes follows from the call, which all compare, except in
//! all_to_all: there each pair of ranks divides by what one has for the other, which both know. Two ranks that have little for each other
//! meet in the first channel alone, also where they have much for others.

use crate::operation::Operation;
use crate::partition::{NetworkChannels, share};

/// One channel's part of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    channel: usize,
    channels: NetworkChannels,
}

impl Share {
    /// All of it, in the first channel.
    pub(super) const WHOLE: Share = Share { channel: 0, channels: NetworkChannels::ONE };

    pub(super) fn new(channel: usize, channels: NetworkChannels) -> Share {
        Share { channel, channels }
    }

    /// How many channels take part in an operation, as one of so many members sees it.
    pub(super) fn count(channels: NetworkChannels, operation: &Operation, world: usize) -> usize {
        match operation {
            Operation::AllToAll { inputs, outputs, .. } => {
                let sizes = inputs.iter().map(|input| input.bytes).chain(outputs.iter().map(|output| output.bytes));
                sizes.map(|bytes| channels.worth(bytes.saturating_mul(world))).max().unwrap_or(1)
            }
            _ => channels.worth(operation.bytes_of_all(world)),
        }
    }

    /// In the first channel every member hears from every other.
    pub(super) fn is_first(self) -> bool {
        self.channel == 0
    }

    /// What the channel does of this operation of so many members.
    pub(super) fn of(self, operation: &Operation, world: usize) -> Operation {
        let &Operation::AllToAll { dtype, .. } = operation else {
            return operation.channel_share(self.channel, Share::count(self.channels, operation, world));
        };
        let range = |bytes: usize| {
            let channels = self.channels.worth(bytes.saturating_mul(world));
            if self.channel < channels { share(bytes, dtype.size(), channels, self.channel) } else { 0..0 }
        };
        operation.moved(|source| source.part(range(source.bytes)), |target| target.part(range(target.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::operation::{Source, Target};
    use crate::{DataType, Rank, Reduction};

    /// Memory that is never touched, from this address on.
    fn source(start: usize, bytes: usize) -> Source {
        Source::new(std::ptr::without_provenance(start), bytes)
    }

    fn target(start: usize, bytes: usize) -> Target {
        Target::new(std::ptr::without_provenance_mut(start), bytes)
    }

    /// What an operation reads and writes, by buffer.
    fn spans(operation: &Operation) -> Vec<(usize, usize)> {
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        operation.moved(
            |source| {
                sources.push((source.pointer as usize, source.bytes));
                *source
            },
            |target| {
                targets.push((target.pointer as usize, target.bytes));
                *target
            },
        );
        sources.extend(targets);
        sources
    }

    fn operations(sizes: &[usize]) -> Vec<Operation> {
        let (dtype, reduction, root, bytes) = (DataType::F32, Reduction::Sum, Rank(0), sizes[0]);
        let (input, output) = (source(1 << 40, bytes), target(1 << 41, bytes));
        let inputs = vec![input; sizes.len()];
        let outputs = vec![output; sizes.len()];
        let uneven = |base: usize| sizes.iter().enumerate().map(move |(at, bytes)| (base << 40 | at << 32, *bytes));
        vec![
            Operation::AllReduce { input, output, dtype, reduction },
            Operation::Reduce { input, output, dtype, reduction, root },
            Operation::Broadcast { buffer: output, dtype, root },
            Operation::AllGather { input, outputs: outputs.clone(), dtype },
            Operation::Gather { input, outputs, dtype, root },
            Operation::Scatter { inputs: inputs.clone(), output, dtype, root },
            Operation::ReduceScatter { inputs, output, dtype, reduction },
            Operation::AllToAll {
                inputs: uneven(1).map(|(start, bytes)| source(start, bytes)).collect(),
                outputs: uneven(2).map(|(start, bytes)| target(start, bytes)).collect(),
                dtype,
            },
            Operation::Barrier,
        ]
    }

    proptest! {
        #[test]
        fn shares_cover_every_byte_once(
            sizes in proptest::collection::vec((0usize..5000).prop_map(|count| 4 * count), 1..5),
            channels in 1usize..8,
            least_bytes in 1usize..9000,
        ) {
            let (world, channels) = (sizes.len(), NetworkChannels::new(channels, least_bytes));
            for operation in operations(&sizes) {
                let count = Share::count(channels, &operation, world);
                prop_assert!((1..=channels.count()).contains(&count));
                let mut next = spans(&operation);
                for channel in 0..channels.count() {
                    for ((start, left), (at, bytes)) in
                        next.iter_mut().zip(spans(&Share::new(channel, channels).of(&operation, world)))
                    {
                        if channel >= count {
                            prop_assert_eq!(bytes, 0);
                            continue;
                        }
                        prop_assert!(bytes == 0 || at == *start);
                        (*start, *left) = (*start + bytes, *left - bytes);
                    }
                }
                prop_assert!(next.iter().all(|(_, left)| *left == 0));
            }
        }

        #[test]
        fn two_ranks_divide_what_one_has_for_the_other_alike(
            bytes in (0usize..5000).prop_map(|count| 4 * count),
            others in proptest::collection::vec((0usize..5000).prop_map(|count| 4 * count), 4),
            least_bytes in 1usize..9000,
        ) {
            let (dtype, channels) = (DataType::F32, NetworkChannels::new(4, least_bytes));
            let nothing = || target(0, 0);
            let sender = Operation::AllToAll {
                inputs: [others[0], bytes, others[1]].map(|bytes| source(0, bytes)).to_vec(),
                outputs: vec![nothing(); 3],
                dtype,
            };
            let receiver = Operation::AllToAll {
                inputs: vec![source(0, 0); 3],
                outputs: [bytes, others[2], others[3]].map(|bytes| target(0, bytes)).to_vec(),
                dtype,
            };
            for channel in 0..4 {
                let share = |operation: &Operation| spans(&Share::new(channel, channels).of(operation, 3));
                prop_assert_eq!(share(&sender)[1], share(&receiver)[3]);
            }
        }
    }
}
