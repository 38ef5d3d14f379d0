//! The memory of an operation, and what a schedule needs to know of it.

use crate::dtype::{DataType, Reduction};
use crate::kernel;
use crate::operation::{Operation, Source, Target};
use crate::schedule::{Buffer, Collective, Primitive, Span};

/// The memory of an operation. A list of one stands for all parts.
pub(super) struct OperationBuffers {
    pub(super) inputs: Vec<Source>,
    pub(super) outputs: Vec<Target>,
    pub(super) scratch: *mut u8,
    reducing: Option<(DataType, Reduction)>,
    /// How many ranks' values the result is of.
    ranks: usize,
    /// See [`totals`].
    pub(super) totals: Vec<(u64, u64)>,
}

impl OperationBuffers {
    pub(super) fn new(operation: &Operation, ranks: usize) -> OperationBuffers {
        let (inputs, outputs, reducing) = match operation {
            Operation::AllReduce { input, output, dtype, reduction }
            | Operation::Reduce { input, output, dtype, reduction, .. } => {
                (vec![*input], vec![*output], Some((*dtype, *reduction)))
            }
            Operation::ReduceScatter { inputs, output, dtype, reduction } => {
                (inputs.clone(), vec![*output], Some((*dtype, *reduction)))
            }
            Operation::Broadcast { buffer, .. } => {
                (vec![Source::new(buffer.pointer, buffer.bytes)], vec![*buffer], None)
            }
            Operation::AllGather { input, outputs, .. } | Operation::Gather { input, outputs, .. } => {
                (vec![*input], outputs.clone(), None)
            }
            Operation::Scatter { inputs, output, .. } => (inputs.clone(), vec![*output], None),
            Operation::AllToAll { inputs, outputs, .. } => (inputs.clone(), outputs.clone(), None),
            Operation::Barrier => (Vec::new(), Vec::new(), None),
        };
        OperationBuffers { inputs, outputs, scratch: std::ptr::null_mut(), reducing, ranks, totals: Vec::new() }
    }

    /// Where these bytes are. Empty spans may be of parts that do not exist.
    pub(super) fn at(&self, span: Span) -> *mut u8 {
        let part = |number: usize, parts: usize| if parts == 1 { 0 } else { number };
        let start = match span.buffer {
            Buffer::Input(number) => {
                self.inputs.get(part(number, self.inputs.len())).map(|input| input.pointer.cast_mut())
            }
            Buffer::Output(number) => self.outputs.get(part(number, self.outputs.len())).map(|output| output.pointer),
            Buffer::Scratch => Some(self.scratch),
        };
        start.unwrap_or(std::ptr::null_mut()).wrapping_add(span.start)
    }

    /// Does one piece of work on memory; whether it wrote to the output.
    ///
    /// # Safety
    /// The action is of a schedule for these buffers, and nobody else uses them.
    pub(super) unsafe fn work(&self, primitive: &Primitive, rank: usize, world: usize) -> bool {
        let into = match *primitive {
            Primitive::Copy { from, into } => {
                let (from, to) = (self.at(from), self.at(into));
                if into.bytes > 0 && from != to {
                    // SAFETY: the schedule's ranges lie in the buffers; what overlaps otherwise is held apart.
                    unsafe { std::ptr::copy(from, to, into.bytes) };
                }
                into
            }
            Primitive::Fold { base, stride, own, into } => {
                let contribution = |peer: usize| {
                    let other = Span { buffer: Buffer::Scratch, start: base + peer * stride, bytes: own.bytes };
                    self.at(if peer == rank { own } else { other }).cast_const()
                };
                if let Some((dtype, reduction)) = self.reducing.filter(|_| own.bytes > 0) {
                    let inputs: Vec<*const u8> = (0..world).map(contribution).collect();
                    let (count, into) = (own.bytes / dtype.size(), self.at(into));
                    // SAFETY: as above; contributions are as long as the own part.
                    unsafe { kernel::reduce_of(dtype, reduction, &inputs, &[into], count, self.ranks) };
                }
                into
            }
            Primitive::Send { .. } | Primitive::Receive { .. } => return false,
        };
        matches!(into.buffer, Buffer::Output(_))
    }
}

/// All bytes for every peer and from it, in all channels, where the call does not say it: ranks compare them. Nothing elsewhere.
pub(super) fn totals(operation: &Operation) -> Vec<(u64, u64)> {
    let Operation::AllToAll { inputs, outputs, .. } = operation else { return Vec::new() };
    inputs.iter().zip(outputs).map(|(input, output)| (input.bytes as u64, output.bytes as u64)).collect()
}

/// What a schedule needs to know of an operation, or of a channel's share of one.
pub(super) fn collective(operation: &Operation, first_channel: bool) -> Collective {
    match operation {
        Operation::AllReduce { input, dtype, .. } => {
            Collective::AllReduce { count: input.bytes / dtype.size(), element: dtype.size() }
        }
        Operation::Reduce { input, dtype, root, .. } => {
            Collective::Reduce { count: input.bytes / dtype.size(), element: dtype.size(), root: root.0 }
        }
        Operation::ReduceScatter { output, dtype, .. } => {
            Collective::ReduceScatter { count: output.bytes / dtype.size(), element: dtype.size() }
        }
        Operation::Broadcast { buffer, root, .. } => Collective::Broadcast { bytes: buffer.bytes, root: root.0 },
        Operation::AllGather { input, .. } => Collective::AllGather { bytes: input.bytes },
        Operation::Gather { input, root, .. } => Collective::Gather { bytes: input.bytes, root: root.0 },
        Operation::Scatter { output, root, .. } => Collective::Scatter { bytes: output.bytes, root: root.0 },
        Operation::AllToAll { inputs, outputs, .. } => Collective::AllToAll {
            sends: inputs.iter().map(|input| input.bytes).collect(),
            expects: outputs.iter().map(|output| output.bytes).collect(),
            with_all: first_channel,
        },
        Operation::Barrier => Collective::Barrier,
    }
}
