//! What a group can do, on buffers that callers lend it.
//!
//! Buffers are bytes at an address, because tensors come from other languages. An operation on nothing is fine. Output and
//! input may be the same memory where torch allows it (`all_reduce`, `reduce`, the own part of `all_gather`,
//! `reduce_scatter` and `scatter`, all of `all_to_all`); otherwise they must not overlap.
#![expect(unsafe_code, reason = "describes memory that others own")]

use std::ops::Range;
use std::time::Duration;

use crate::call::{Call, Kind};
use crate::dtype::{DataType, Element, Reduction};
use crate::partition::share;
use crate::{Error, Rank};

/// Memory an operation reads.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub(crate) pointer: *const u8,
    pub(crate) bytes: usize,
}

/// Memory an operation writes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub(crate) pointer: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: only addresses; whoever submits an operation vouches for what lies there.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Send for Target {}

impl Source {
    /// These bytes.
    pub const fn new(pointer: *const u8, bytes: usize) -> Source {
        Source { pointer, bytes }
    }

    /// A slice.
    pub fn of<T: Element>(slice: &[T]) -> Source {
        Source { pointer: slice.as_ptr().cast(), bytes: size_of_val(slice) }
    }

    pub(crate) fn part(&self, range: Range<usize>) -> Source {
        Source { pointer: self.pointer.wrapping_add(range.start), bytes: range.len() }
    }

    /// Equal parts, one per rank.
    pub fn split(self, parts: usize) -> Vec<Source> {
        let bytes = self.bytes / parts;
        (0..parts).map(|part| Source { pointer: self.pointer.wrapping_add(part * bytes), bytes }).collect()
    }
}

impl Target {
    /// These bytes.
    pub const fn new(pointer: *mut u8, bytes: usize) -> Target {
        Target { pointer, bytes }
    }

    /// A slice.
    pub fn of<T: Element>(slice: &mut [T]) -> Target {
        Target { pointer: slice.as_mut_ptr().cast(), bytes: size_of_val(slice) }
    }

    /// No memory, where a rank gets nothing.
    pub const fn none() -> Target {
        Target { pointer: std::ptr::null_mut(), bytes: 0 }
    }

    pub(crate) fn part(&self, range: Range<usize>) -> Target {
        Target { pointer: self.pointer.wrapping_add(range.start), bytes: range.len() }
    }

    /// Equal parts, one per rank.
    pub fn split(self, parts: usize) -> Vec<Target> {
        let bytes = self.bytes / parts;
        (0..parts).map(|part| Target { pointer: self.pointer.wrapping_add(part * bytes), bytes }).collect()
    }
}

/// One operation. Lists have one entry per rank, in the order of ranks, and are empty on ranks that do not need them.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum Operation {
    /// `output` is the reduction of all inputs.
    AllReduce { input: Source, output: Target, dtype: DataType, reduction: Reduction },
    /// `output` of the root is the reduction of all inputs.
    Reduce { input: Source, output: Target, dtype: DataType, reduction: Reduction, root: Rank },
    /// `buffer` becomes that of the root.
    Broadcast { buffer: Target, dtype: DataType, root: Rank },
    /// `outputs` become the inputs of all ranks.
    AllGather { input: Source, outputs: Vec<Target>, dtype: DataType },
    /// `outputs` of the root become the inputs of all ranks.
    Gather { input: Source, outputs: Vec<Target>, dtype: DataType, root: Rank },
    /// `output` becomes this rank's entry of the root's `inputs`.
    Scatter { inputs: Vec<Source>, output: Target, dtype: DataType, root: Rank },
    /// `output` is the reduction of all ranks' `inputs[this rank]`.
    ReduceScatter { inputs: Vec<Source>, output: Target, dtype: DataType, reduction: Reduction },
    /// `outputs[r]` becomes `inputs[this rank]` of rank r; sizes may differ from pair to pair.
    AllToAll { inputs: Vec<Source>, outputs: Vec<Target>, dtype: DataType },
    /// Returns when every rank has called it.
    Barrier,
}

impl Operation {
    /// The same operation on other memory. Sources are asked for before targets, each in the order of ranks.
    pub(crate) fn moved(
        &self,
        mut source: impl FnMut(&Source) -> Source,
        mut target: impl FnMut(&Target) -> Target,
    ) -> Operation {
        let mut moved = self.clone();
        match &mut moved {
            Operation::AllReduce { input, output, .. } | Operation::Reduce { input, output, .. } => {
                (*input, *output) = (source(input), target(output));
            }
            Operation::Broadcast { buffer, .. } => *buffer = target(buffer),
            Operation::AllGather { input, outputs, .. } | Operation::Gather { input, outputs, .. } => {
                *input = source(input);
                outputs.iter_mut().for_each(|output| *output = target(output));
            }
            Operation::Scatter { inputs, output, .. } | Operation::ReduceScatter { inputs, output, .. } => {
                inputs.iter_mut().for_each(|input| *input = source(input));
                *output = target(output);
            }
            Operation::AllToAll { inputs, outputs, .. } => {
                inputs.iter_mut().for_each(|input| *input = source(input));
                outputs.iter_mut().for_each(|output| *output = target(output));
            }
            Operation::Barrier => {}
        }
        moved
    }

    /// What one of so many channels does of it.
    pub(crate) fn channel_share(&self, channel: usize, channels: usize) -> Operation {
        let element = self.dtype().size();
        let range = |bytes: usize| share(bytes, element, channels, channel);
        self.moved(|source| source.part(range(source.bytes)), |target| target.part(range(target.bytes)))
    }

    fn dtype(&self) -> DataType {
        match self {
            Operation::AllReduce { dtype, .. }
            | Operation::Reduce { dtype, .. }
            | Operation::Broadcast { dtype, .. }
            | Operation::AllGather { dtype, .. }
            | Operation::Gather { dtype, .. }
            | Operation::Scatter { dtype, .. }
            | Operation::ReduceScatter { dtype, .. }
            | Operation::AllToAll { dtype, .. } => *dtype,
            Operation::Barrier => DataType::Bytes,
        }
    }

    /// Bytes that a rank has of all ranks' parts; 0 where parts may differ.
    pub(crate) fn bytes_of_all(&self, world: usize) -> usize {
        match self {
            Operation::AllReduce { .. } | Operation::Reduce { .. } | Operation::Broadcast { .. } => self.bytes(),
            _ => self.bytes() * world,
        }
    }

    /// Bytes of one rank's part; 0 where parts may differ.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Operation::AllReduce { input, .. }
            | Operation::Reduce { input, .. }
            | Operation::AllGather { input, .. }
            | Operation::Gather { input, .. } => input.bytes,
            Operation::Scatter { output, .. } | Operation::ReduceScatter { output, .. } => output.bytes,
            Operation::Broadcast { buffer, .. } => buffer.bytes,
            Operation::AllToAll { .. } | Operation::Barrier => 0,
        }
    }

    /// The fingerprint, after checking everything that can be checked without the other ranks.
    pub(crate) fn check(&self, rank: usize, world: usize) -> Result<Call, Error> {
        let checks = Checks { rank, world };
        match self {
            Operation::AllReduce { input, output, dtype, reduction } => {
                let count = checks.elements("input", input.bytes, *dtype)?;
                checks.same("output", output.bytes, "input", input.bytes)?;
                Call::new(Kind::AllReduce, *dtype, count).reducing(*reduction)
            }
            Operation::Reduce { input, output, dtype, reduction, root } => {
                checks.root(*root)?;
                let count = checks.elements("input", input.bytes, *dtype)?;
                if root.0 == rank {
                    checks.same("output", output.bytes, "input", input.bytes)?;
                }
                Call::new(Kind::Reduce, *dtype, count).rooted(*root).reducing(*reduction)
            }
            Operation::Broadcast { buffer, dtype, root } => {
                checks.root(*root)?;
                let count = checks.elements("buffer", buffer.bytes, *dtype)?;
                Ok(Call::new(Kind::Broadcast, *dtype, count).rooted(*root))
            }
            Operation::AllGather { input, outputs, dtype } => {
                let count = checks.elements("input", input.bytes, *dtype)?;
                checks.list("outputs", outputs.iter().map(|output| output.bytes), Some(input.bytes))?;
                Ok(Call::new(Kind::AllGather, *dtype, count))
            }
            Operation::Gather { input, outputs, dtype, root } => {
                checks.root(*root)?;
                let count = checks.elements("input", input.bytes, *dtype)?;
                if root.0 == rank {
                    checks.list("outputs", outputs.iter().map(|output| output.bytes), Some(input.bytes))?;
                }
                Ok(Call::new(Kind::Gather, *dtype, count).rooted(*root))
            }
            Operation::Scatter { inputs, output, dtype, root } => {
                checks.root(*root)?;
                let count = checks.elements("output", output.bytes, *dtype)?;
                if root.0 == rank {
                    checks.list("inputs", inputs.iter().map(|input| input.bytes), Some(output.bytes))?;
                }
                Ok(Call::new(Kind::Scatter, *dtype, count).rooted(*root))
            }
            Operation::ReduceScatter { inputs, output, dtype, reduction } => {
                let count = checks.elements("output", output.bytes, *dtype)?;
                checks.list("inputs", inputs.iter().map(|input| input.bytes), Some(output.bytes))?;
                Call::new(Kind::ReduceScatter, *dtype, count).reducing(*reduction)
            }
            Operation::AllToAll { inputs, outputs, dtype } => {
                checks.list("inputs", inputs.iter().map(|input| input.bytes), None)?;
                checks.list("outputs", outputs.iter().map(|output| output.bytes), None)?;
                for bytes in inputs.iter().map(|input| input.bytes).chain(outputs.iter().map(|output| output.bytes)) {
                    checks.elements("a part", bytes, *dtype)?;
                }
                Ok(Call::new(Kind::AllToAll, *dtype, 0))
            }
            Operation::Barrier => Ok(Call::new(Kind::Barrier, DataType::Bytes, 0)),
        }
    }
}

/// What an operation is a part of, where ranks of one host, or one rank of each, do a part of what all ranks called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    /// What the ranks called: they compare it, and errors show it.
    pub(crate) call: Call,
    /// Which operation of the group.
    pub(crate) sequence: u64,
    /// How many ranks' values the result is of.
    pub(crate) ranks: usize,
    /// How long all of it may take; errors show it.
    pub(crate) timeout: Duration,
}

/// A copy of the inputs, if an output lies in the same memory.
pub(crate) fn hold_apart(inputs: &[Source], outputs: &[Target]) -> Option<(Vec<u8>, Vec<Source>)> {
    let span = |pointer: *const u8, bytes: usize| pointer as usize..pointer as usize + bytes;
    let overlap = inputs.iter().any(|input| {
        let input = span(input.pointer, input.bytes);
        let overlaps = |output: &Target| {
            let output = span(output.pointer, output.bytes);
            input.start < output.end && output.start < input.end
        };
        outputs.iter().any(overlaps)
    });
    if !overlap {
        return None;
    }
    let mut held = vec![0; inputs.iter().map(|input| input.bytes).sum()];
    let mut sources = Vec::with_capacity(inputs.len());
    let mut start = 0;
    for input in inputs {
        let copy = &mut held[start..start + input.bytes];
        if !copy.is_empty() {
            // SAFETY: whoever gave the operation vouches for the input; the copy is new memory.
            unsafe { std::ptr::copy_nonoverlapping(input.pointer, copy.as_mut_ptr(), input.bytes) };
        }
        sources.push(Source::new(copy.as_ptr(), input.bytes));
        start += input.bytes;
    }
    Some((held, sources))
}

/// What every rank can check alone.
struct Checks {
    rank: usize,
    world: usize,
}

impl Checks {
    fn root(&self, root: Rank) -> Result<(), Error> {
        if root.0 < self.world {
            return Ok(());
        }
        Err(Error::invalid(format!("root {root} is not one of the {} ranks", self.world)))
    }

    fn elements(&self, name: &str, bytes: usize, dtype: DataType) -> Result<usize, Error> {
        if bytes.is_multiple_of(dtype.size()) {
            return Ok(bytes / dtype.size());
        }
        Err(Error::invalid(format!("{name} has {bytes} bytes, no whole number of {} elements", dtype.name())))
    }

    fn same(&self, name: &str, bytes: usize, other: &str, expected: usize) -> Result<(), Error> {
        if bytes == expected {
            return Ok(());
        }
        Err(Error::invalid(format!("{name} has {bytes} bytes, {other} {expected} (rank {})", self.rank)))
    }

    fn list(&self, name: &str, sizes: impl ExactSizeIterator<Item = usize>, each: Option<usize>) -> Result<(), Error> {
        if sizes.len() != self.world {
            return Err(Error::invalid(format!("{name}: {} parts given, there are {} ranks", sizes.len(), self.world)));
        }
        for (part, bytes) in sizes.enumerate() {
            self.same(&format!("{name}[{part}]"), bytes, "the own part", each.unwrap_or(bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_found_before_anything_is_sent() {
        let input = Source::of(&[1f32; 4]);
        let mut memory = [0f32; 8];
        let output = Target::of(&mut memory);
        let dtype = DataType::F32;
        let cases: Vec<(Operation, &str)> = vec![
            (Operation::AllReduce { input, output, dtype, reduction: Reduction::Sum }, "output has 32 bytes, input 16"),
            (Operation::Broadcast { buffer: output, dtype, root: Rank(2) }, "root 2 is not one of the 2 ranks"),
            (Operation::AllGather { input, outputs: output.split(4), dtype }, "4 parts given, there are 2 ranks"),
            (
                Operation::Broadcast { buffer: Target::new(std::ptr::null_mut(), 7), dtype, root: Rank(0) },
                "7 bytes, no whole number",
            ),
            (
                Operation::AllReduce { input, output: output.split(2)[0], dtype, reduction: Reduction::BitOr },
                "BOR is not defined for f32",
            ),
        ];
        for (operation, expected) in cases {
            let error = operation.check(0, 2).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(Operation::AllGather { input, outputs: output.split(2), dtype }.check(1, 2).is_ok());
    }
}
