//! An operation on device memory as moves: what a rank lays out for the others, and what it makes of what they laid out.
//!
//! Every rank has an arena that all can read. It lays its input into segments of it, one for all or one for each rank,
//! and takes its output from segments of the others: folded over all ranks, or copied from one. What does not fit at
//! once goes in chunks, the same piece of every segment at a time.

use crate::dtype::{DataType, Reduction};
use crate::operation::{Operation, Source, Target};

/// Segments begin at multiples of this, so that every element is where its type wants it.
pub(super) const ALIGNMENT: usize = 256;

/// Device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

/// What a rank takes from the arenas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Take {
    /// The fold of one segment over all ranks.
    Fold { segment: usize, target: Range, dtype: DataType, reduction: Reduction },
    /// A segment of one rank.
    Copy { rank: usize, segment: usize, target: Range },
}

impl Take {
    pub(super) fn target(&self) -> Range {
        match self {
            Take::Fold { target, .. } | Take::Copy { target, .. } => *target,
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Layout {
    /// What this rank lays out, by segment; nothing at all if it gives nothing.
    pub(super) gives: Vec<Range>,
    pub(super) takes: Vec<Take>,
    /// How many segments the arena of every rank has.
    segments: usize,
}

impl Layout {
    pub(super) fn of(operation: &Operation, rank: usize, world: usize) -> Layout {
        let one = |gives, takes| Layout { gives, takes, segments: 1 };
        let each = |gives, takes| Layout { gives, takes, segments: world };
        let copies = |segment: usize, outputs: &[Target]| -> Vec<Take> {
            let copy = |(rank, output): (usize, &Target)| Take::Copy { rank, segment, target: output.range() };
            outputs.iter().enumerate().map(copy).collect()
        };
        match operation {
            Operation::AllReduce { input, output, dtype, reduction } => {
                let (dtype, reduction) = (*dtype, *reduction);
                one(vec![input.range()], vec![Take::Fold { segment: 0, target: output.range(), dtype, reduction }])
            }
            Operation::Reduce { input, output, dtype, reduction, root } => {
                let (dtype, reduction) = (*dtype, *reduction);
                let fold = Take::Fold { segment: 0, target: output.range(), dtype, reduction };
                one(vec![input.range()], (root.0 == rank).then_some(fold).into_iter().collect())
            }
            Operation::Broadcast { buffer, root, .. } if root.0 == rank => one(vec![buffer.range()], Vec::new()),
            Operation::Broadcast { buffer, root, .. } => {
                one(Vec::new(), vec![Take::Copy { rank: root.0, segment: 0, target: buffer.range() }])
            }
            Operation::AllGather { input, outputs, .. } => one(vec![input.range()], copies(0, outputs)),
            Operation::Gather { input, outputs, root, .. } => {
                one(vec![input.range()], if root.0 == rank { copies(0, outputs) } else { Vec::new() })
            }
            Operation::Scatter { inputs, output, root, .. } => {
                let gives = if root.0 == rank { inputs.iter().map(Source::range).collect() } else { Vec::new() };
                each(gives, vec![Take::Copy { rank: root.0, segment: rank, target: output.range() }])
            }
            Operation::ReduceScatter { inputs, output, dtype, reduction } => {
                let (dtype, reduction) = (*dtype, *reduction);
                let fold = Take::Fold { segment: rank, target: output.range(), dtype, reduction };
                each(inputs.iter().map(Source::range).collect(), vec![fold])
            }
            Operation::AllToAll { inputs, outputs, .. } => {
                each(inputs.iter().map(Source::range).collect(), copies(rank, outputs))
            }
            Operation::Barrier => one(Vec::new(), Vec::new()),
        }
    }

    /// How many bytes of a segment go at once.
    pub(super) fn step(&self, arena: usize) -> usize {
        (arena / self.segments) / ALIGNMENT * ALIGNMENT
    }

    /// How many chunks this rank's part takes; one at least, in which nothing may be moved.
    pub(super) fn chunks(&self, arena: usize) -> usize {
        let longest =
            self.gives.iter().map(|range| range.bytes).chain(self.takes.iter().map(|take| take.target().bytes));
        longest.max().unwrap_or(0).div_ceil(self.step(arena)).max(1)
    }
}

impl Range {
    /// The part of it that goes in a chunk; none when the others go on.
    pub(super) fn chunk(&self, number: usize, step: usize) -> Option<Range> {
        let begin = number.checked_mul(step).filter(|begin| *begin < self.bytes)?;
        Some(Range { address: self.address + begin as u64, bytes: step.min(self.bytes - begin) })
    }
}

impl Source {
    pub(super) fn range(&self) -> Range {
        Range { address: self.pointer.addr() as u64, bytes: self.bytes }
    }
}

impl Target {
    pub(super) fn range(&self) -> Range {
        Range { address: self.pointer.addr() as u64, bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, Take};
    use crate::dtype::{DataType, Reduction};
    use crate::operation::{Operation, Source, Target};
    use crate::{DataType as Type, Rank};
    use proptest::prelude::*;

    /// Runs an operation of all ranks on memory of the host, with arenas of so many bytes.
    fn run(operations: &[Operation], arena: usize) {
        let world = operations.len();
        let layouts: Vec<Layout> =
            operations.iter().enumerate().map(|(rank, one)| Layout::of(one, rank, world)).collect();
        let step = layouts[0].step(arena);
        assert!(layouts.iter().all(|layout| layout.step(arena) == step));
        let mut arenas = vec![vec![0u8; arena]; world];
        let chunks = layouts.iter().map(|layout| layout.chunks(arena)).max().expect("ranks");
        for chunk in 0..chunks {
            for (layout, arena) in layouts.iter().zip(&mut arenas) {
                for (segment, give) in layout.gives.iter().enumerate() {
                    let Some(part) = give.chunk(chunk, step) else { continue };
                    arena[segment * step..][..part.bytes].copy_from_slice(&memory(part.address, part.bytes));
                }
            }
            for layout in &layouts {
                for take in &layout.takes {
                    let Some(part) = take.target().chunk(chunk, step) else { continue };
                    let bytes: Vec<u8> = match take {
                        Take::Copy { rank, segment, .. } => arenas[*rank][segment * step..][..part.bytes].to_vec(),
                        Take::Fold { segment, .. } => (0..part.bytes)
                            .map(|at| {
                                arenas.iter().fold(0u8, |sum, arena| sum.wrapping_add(arena[segment * step + at]))
                            })
                            .collect(),
                    };
                    store(part.address, &bytes);
                }
            }
        }
    }

    thread_local! {
        /// Memory by address: layouts only do arithmetic with it.
        static MEMORY: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    fn memory(address: u64, bytes: usize) -> Vec<u8> {
        MEMORY.with_borrow(|memory| memory[address as usize..][..bytes].to_vec())
    }

    fn store(address: u64, bytes: &[u8]) {
        MEMORY.with_borrow_mut(|memory| memory[address as usize..][..bytes.len()].copy_from_slice(bytes));
    }

    /// The next bytes of the memory, filled by this.
    fn place(bytes: usize, mut fill: impl FnMut(usize) -> u8) -> usize {
        MEMORY.with_borrow_mut(|memory| {
            let at = memory.len();
            memory.extend((0..bytes).map(&mut fill));
            at
        })
    }

    fn source(address: usize, bytes: usize) -> Source {
        Source::new(std::ptr::without_provenance(address), bytes)
    }

    fn target(address: usize, bytes: usize) -> Target {
        Target::new(std::ptr::without_provenance_mut(address), bytes)
    }

    fn value(from: usize, to: usize, at: usize) -> u8 {
        (from * 31 + to * 7 + at * 3 + 1) as u8
    }

    proptest! {
        #[test]
        fn everything_arrives_where_it_should(world in 1usize..5, bytes in 0usize..3000, arena in 1usize..5, root: usize) {
            let (arena, root) = (arena * 256 * world, root % world);
            MEMORY.with_borrow_mut(|memory| { memory.clear(); memory.push(0) });
            let (dtype, reduction) = (DataType::U8, Reduction::Sum);
            let inputs: Vec<usize> = (0..world).map(|rank| place(bytes, |at| value(rank, 0, at))).collect();
            let outputs: Vec<usize> = (0..world).map(|_| place(bytes, |_| 99)).collect();
            let reduce: Vec<Operation> = (0..world).map(|rank| Operation::AllReduce {
                input: source(inputs[rank], bytes), output: target(outputs[rank], bytes), dtype, reduction,
            }).collect();
            run(&reduce, arena);
            let sum: Vec<u8> = (0..bytes).map(|at| (0..world).fold(0u8, |sum, rank| sum.wrapping_add(value(rank, 0, at)))).collect();
            for output in &outputs {
                prop_assert_eq!(&memory(*output as u64, bytes), &sum);
            }
            let broadcast: Vec<Operation> = (0..world).map(|rank| Operation::Broadcast {
                buffer: target(inputs[rank], bytes), dtype: Type::Bytes, root: Rank(root),
            }).collect();
            run(&broadcast, arena);
            for input in &inputs {
                prop_assert_eq!(memory(*input as u64, bytes), (0..bytes).map(|at| value(root, 0, at)).collect::<Vec<u8>>());
            }
        }

        #[test]
        fn every_pair_may_have_a_size_of_its_own(world in 1usize..5, sizes in prop::collection::vec(0usize..900, 16), arena in 1usize..4) {
            let arena = arena * 256 * world;
            MEMORY.with_borrow_mut(|memory| { memory.clear(); memory.push(0) });
            let size = |from: usize, to: usize| sizes[from * 4 + to];
            let mut operations = Vec::new();
            let mut expected = Vec::new();
            for rank in 0..world {
                let give = |to: usize| source(place(size(rank, to), |at| value(rank, to, at)), size(rank, to));
                let inputs: Vec<Source> = (0..world).map(give).collect();
                let mut outputs = Vec::new();
                for from in 0..world {
                    let address = place(size(from, rank), |_| 99);
                    outputs.push(target(address, size(from, rank)));
                    expected.push((address, from, rank));
                }
                operations.push(Operation::AllToAll { inputs, outputs, dtype: Type::Bytes });
            }
            run(&operations, arena);
            for (address, from, to) in expected {
                let wanted: Vec<u8> = (0..size(from, to)).map(|at| value(from, to, at)).collect();
                prop_assert_eq!(memory(address as u64, size(from, to)), wanted);
            }
        }
    }
}
