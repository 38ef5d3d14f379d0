//! The operations as plans, and where their memory is.

use super::exchange::Progress;
use super::{Engine, Watch};
use crate::dtype::{DataType, Reduction};
use crate::kernel;
use crate::operation::{Operation, Source, Target, hold_apart};
use crate::route::{Action, Place, Sizes, Span, Task, plan};

/// Where plans change, in bytes. Tuned with `bench/collectives.py --hosts`.
const SIZES: Sizes = Sizes { small: 16 << 10, direct: 256 << 10, message: 256 << 10, scratch: 12 << 20 };

/// The memory of an operation. A list of one stands for all parts.
pub(super) struct Memory {
    pub(super) inputs: Vec<Source>,
    pub(super) outputs: Vec<Target>,
    scratch: *mut u8,
    reducing: Option<(DataType, Reduction)>,
    /// How many ranks' values the result is of.
    ranks: usize,
    /// What the ranks of a pair have for each other differs, and is compared.
    pub(super) uneven: bool,
}

impl Memory {
    fn new(operation: &Operation, ranks: usize) -> Memory {
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
        let uneven = matches!(operation, Operation::AllToAll { .. });
        Memory { inputs, outputs, scratch: std::ptr::null_mut(), reducing, ranks, uneven }
    }

    /// Where these bytes are. Empty spans may be of parts that do not exist.
    pub(super) fn at(&self, span: Span) -> *mut u8 {
        let part = |number: usize, parts: usize| if parts == 1 { 0 } else { number };
        let start = match span.place {
            Place::Input(number) => {
                self.inputs.get(part(number, self.inputs.len())).map(|input| input.pointer.cast_mut())
            }
            Place::Output(number) => self.outputs.get(part(number, self.outputs.len())).map(|output| output.pointer),
            Place::Scratch => Some(self.scratch),
        };
        start.unwrap_or(std::ptr::null_mut()).wrapping_add(span.start)
    }

    /// Does one piece of work on memory; whether it wrote to the output.
    ///
    /// # Safety
    /// The action is of a plan for these buffers, and nobody else uses them.
    pub(super) unsafe fn work(&self, action: &Action, rank: usize, world: usize) -> bool {
        let into = match *action {
            Action::Copy { from, into } => {
                let (from, to) = (self.at(from), self.at(into));
                if into.bytes > 0 && from != to {
                    // SAFETY: the plan's ranges lie in the buffers; what overlaps otherwise is held apart.
                    unsafe { std::ptr::copy(from, to, into.bytes) };
                }
                into
            }
            Action::Fold { lanes, lane, own, into } => {
                let place = |peer: usize| {
                    let lane = Span { place: Place::Scratch, start: lanes + peer * lane, bytes: own.bytes };
                    self.at(if peer == rank { own } else { lane }).cast_const()
                };
                if let Some((dtype, reduction)) = self.reducing.filter(|_| own.bytes > 0) {
                    let inputs: Vec<*const u8> = (0..world).map(place).collect();
                    let (count, into) = (own.bytes / dtype.size(), self.at(into));
                    // SAFETY: as above; lanes are as long as the own part.
                    unsafe { kernel::reduce_of(dtype, reduction, &inputs, &[into], count, self.ranks) };
                }
                into
            }
            Action::Send { .. } | Action::Receive { .. } => return false,
        };
        matches!(into.place, Place::Output(_))
    }
}

/// What a plan needs to know of an operation.
fn task(operation: &Operation) -> Task {
    match operation {
        Operation::AllReduce { input, dtype, .. } => {
            Task::AllReduce { count: input.bytes / dtype.size(), element: dtype.size() }
        }
        Operation::Reduce { input, dtype, root, .. } => {
            Task::Reduce { count: input.bytes / dtype.size(), element: dtype.size(), root: root.0 }
        }
        Operation::ReduceScatter { output, dtype, .. } => {
            Task::ReduceScatter { count: output.bytes / dtype.size(), element: dtype.size() }
        }
        Operation::Broadcast { buffer, root, .. } => Task::Broadcast { bytes: buffer.bytes, root: root.0 },
        Operation::AllGather { input, .. } => Task::AllGather { bytes: input.bytes },
        Operation::Gather { input, root, .. } => Task::Gather { bytes: input.bytes, root: root.0 },
        Operation::Scatter { output, root, .. } => Task::Scatter { bytes: output.bytes, root: root.0 },
        Operation::AllToAll { inputs, outputs, .. } => Task::AllToAll {
            sends: inputs.iter().map(|input| input.bytes).collect(),
            expects: outputs.iter().map(|output| output.bytes).collect(),
        },
        Operation::Barrier => Task::Barrier,
    }
}

impl Engine {
    pub(super) fn perform(&mut self, operation: &Operation, watch: &Watch) -> Progress {
        let plan = plan(&task(operation), self.world(), self.rank, &SIZES);
        let mut memory = Memory::new(operation, watch.ranks);
        // What overlaps is sent from a copy: it may be written over before it is all out.
        let held = if memory.uneven { hold_apart(&memory.inputs, &memory.outputs) } else { None };
        if let Some((_, sources)) = &held {
            memory.inputs.clone_from(sources);
        }
        if self.scratch.len() < plan.scratch {
            // Fresh from the kernel: what a plan has room for and does not use takes no memory.
            self.scratch = vec![0; plan.scratch];
        }
        memory.scratch = self.scratch.as_mut_ptr();
        // SAFETY: the caller of `run` vouches for the buffers, whose sizes `Operation::check` has compared; scratch holds
        // what the plan asks for.
        unsafe { self.carry_out(&plan, &memory, watch) }
    }
}
