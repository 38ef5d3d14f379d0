//! The operations through the slots of the arena.
//!
//! A slot holds either a step of the whole buffer (`all_reduce`, `broadcast`, `all_gather` …) or one compartment per
//! destination (`scatter`, `reduce_scatter`, `all_to_all`).

use std::ops::Range;

use super::{Flow, Move, Needs, View};
use crate::dtype::{DataType, Reduction};
use crate::kernel;
use crate::operation::{Operation, Source, Target};
use crate::plan::{Cut, Path, compartment, segment};

/// Copies unless both are the same memory.
///
/// # Safety
/// `bytes` are readable at `from` and writable at `to`; the two are equal or do not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes > 0 && !std::ptr::eq(from, to) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
}

// SAFETY (of every block below): source and target ranges come from cuts of the sizes that `Operation::check` compared,
// whose memory the caller of `Engine::run` vouches for. Slots hold `step_bytes`: a step or `world` compartments fit,
// and the counters keep writers and readers of a slot apart (rules 1 to 4 of the arena).

/// The flow of every operation but all_to_all.
pub(super) fn flow<'f>(operation: &Operation, view: &View<'_>, path: Path) -> Flow<'f> {
    let step_bytes = view.step_bytes;
    match operation {
        Operation::AllReduce { input, output, dtype, reduction } => {
            let reducing = Reducing { input: *input, dtype: *dtype, reduction: *reduction };
            if path == Path::Small {
                reducing.at_once(Some(*output))
            } else {
                reducing.by_segments(Some(*output), Needs::All, step_bytes)
            }
        }
        Operation::Reduce { input, output, dtype, reduction, root } => {
            let reducing = Reducing { input: *input, dtype: *dtype, reduction: *reduction };
            let is_root = root.0 == view.rank;
            let output = is_root.then_some(*output);
            if path == Path::Small {
                reducing.at_once(output)
            } else {
                let needs = if is_root { Needs::All } else { Needs::Nobody };
                reducing.by_segments(output, needs, step_bytes)
            }
        }
        Operation::Broadcast { buffer, root, .. } => broadcast(*buffer, root.0, view.rank, step_bytes),
        Operation::AllGather { input, outputs, .. } => gather(*input, outputs.clone(), Needs::All, step_bytes),
        Operation::Gather { input, outputs, root, .. } => {
            let is_root = root.0 == view.rank;
            let outputs = if is_root { outputs.clone() } else { Vec::new() };
            gather(*input, outputs, if is_root { Needs::All } else { Needs::Nobody }, step_bytes)
        }
        Operation::Scatter { inputs, output, root, .. } => {
            let inputs = if root.0 == view.rank { inputs.clone() } else { Vec::new() };
            scatter(inputs, *output, root.0, compartment(step_bytes, view.world))
        }
        Operation::ReduceScatter { inputs, output, dtype, reduction } => {
            reduce_scatter(inputs.clone(), *output, *dtype, *reduction, compartment(step_bytes, view.world))
        }
        Operation::Barrier => {
            Flow { steps: 1, fill: None, reduce: None, needs: Needs::Nobody, drain: None, lends_memory: false }
        }
        Operation::AllToAll { .. } => unreachable!("the engine exchanges sizes first"),
    }
}

/// all_reduce and reduce.
#[derive(Clone, Copy)]
struct Reducing {
    input: Source,
    dtype: DataType,
    reduction: Reduction,
}

impl Reducing {
    /// Everybody's whole input lies in its slot; who has an output reduces all of it.
    fn at_once<'f>(self, output: Option<Target>) -> Flow<'f> {
        let Reducing { input, dtype, reduction } = self;
        let fill: Move<'f> = Box::new(move |view, step| {
            // SAFETY: see the top of this file.
            unsafe { copy(input.pointer, view.slot(view.rank, step), input.bytes) };
            Ok(())
        });
        let drain = output.map(|output| {
            let drain: Move<'f> = Box::new(move |view, step| {
                with_pointers(
                    view.world,
                    |rank| view.slot(rank, step).cast_const(),
                    |inputs| {
                        // SAFETY: see the top of this file.
                        unsafe {
                            kernel::reduce(dtype, reduction, inputs, output.pointer, output.bytes / dtype.size())
                        };
                    },
                );
                Ok(())
            });
            drain
        });
        let needs = if drain.is_some() { Needs::All } else { Needs::Nobody };
        Flow { steps: 1, fill: Some(fill), reduce: None, needs, drain, lends_memory: false }
    }

    /// Each rank reduces its segment of a step into its own slot, where the others fetch it.
    fn by_segments<'f>(self, output: Option<Target>, needs: Needs, step_bytes: usize) -> Flow<'f> {
        let Reducing { input, dtype, reduction } = self;
        let size = dtype.size();
        let cut = Cut::new(input.bytes / size, size, step_bytes);
        // Segments of a step in bytes, within the step.
        let piece = move |view: &View<'_>, step: usize, rank: usize| -> Range<usize> {
            let range = segment(cut.range(step).len(), size, view.world, rank);
            range.start * size..range.end * size
        };
        let start = move |step: usize| cut.range(step).start * size;
        let fill: Move<'f> = Box::new(move |view, step| {
            let own = view.slot(view.rank, step);
            // The own segment is read where it is.
            for peer in view.peers() {
                let piece = piece(view, step, peer);
                let from = input.pointer.wrapping_add(start(step) + piece.start);
                // SAFETY: see the top of this file.
                unsafe { copy(from, own.add(piece.start), piece.len()) };
            }
            Ok(())
        });
        let reduce: Move<'f> = Box::new(move |view, step| {
            let piece = piece(view, step, view.rank);
            let own = view.slot(view.rank, step).wrapping_add(piece.start);
            let at = start(step) + piece.start;
            let result = output.map_or(own, |output| output.pointer.wrapping_add(at));
            let pointer = |rank: usize| {
                if rank == view.rank {
                    input.pointer.wrapping_add(at)
                } else {
                    view.slot(rank, step).wrapping_add(piece.start).cast_const()
                }
            };
            with_pointers(view.world, pointer, |inputs| {
                // SAFETY: see the top of this file; nobody but this rank touches its own segment of its own slot.
                unsafe {
                    kernel::reduce(dtype, reduction, inputs, result, piece.len() / size);
                    copy(result, own, piece.len());
                }
            });
            Ok(())
        });
        let drain = output.map(|output| {
            let drain: Move<'f> = Box::new(move |view, step| {
                for peer in view.peers() {
                    let piece = piece(view, step, peer);
                    let to = output.pointer.wrapping_add(start(step) + piece.start);
                    // SAFETY: see the top of this file.
                    unsafe { copy(view.slot(peer, step).add(piece.start), to, piece.len()) };
                }
                Ok(())
            });
            drain
        });
        Flow { steps: cut.steps(), fill: Some(fill), reduce: Some(reduce), needs, drain, lends_memory: false }
    }
}

/// Collects one pointer per rank, without a heap for the usual numbers of ranks.
pub(super) fn with_pointers(world: usize, pointer: impl Fn(usize) -> *const u8, then: impl FnOnce(&[*const u8])) {
    const USUAL: usize = 64;
    if world <= USUAL {
        let mut pointers = [std::ptr::null(); USUAL];
        for (rank, place) in pointers[..world].iter_mut().enumerate() {
            *place = pointer(rank);
        }
        then(&pointers[..world]);
    } else {
        then(&(0..world).map(pointer).collect::<Vec<_>>());
    }
}

fn broadcast<'f>(buffer: Target, root: usize, rank: usize, step_bytes: usize) -> Flow<'f> {
    let cut = Cut::new(buffer.bytes, 1, step_bytes);
    let mut flow = Flow {
        steps: cut.steps(),
        fill: None,
        reduce: None,
        needs: Needs::Only(root),
        drain: None,
        lends_memory: false,
    };
    if rank == root {
        flow.fill = Some(Box::new(move |view, step| {
            let range = cut.range(step);
            // SAFETY: see the top of this file.
            unsafe { copy(buffer.pointer.wrapping_add(range.start), view.slot(root, step), range.len()) };
            Ok(())
        }));
    } else {
        flow.drain = Some(Box::new(move |view, step| {
            let range = cut.range(step);
            // SAFETY: see the top of this file.
            unsafe { copy(view.slot(root, step), buffer.pointer.wrapping_add(range.start), range.len()) };
            Ok(())
        }));
    }
    flow
}

/// all_gather, and gather with outputs on the root only.
fn gather<'f>(input: Source, outputs: Vec<Target>, needs: Needs, step_bytes: usize) -> Flow<'f> {
    let cut = Cut::new(input.bytes, 1, step_bytes);
    let fill: Move<'f> = Box::new(move |view, step| {
        let range = cut.range(step);
        // SAFETY: see the top of this file.
        unsafe { copy(input.pointer.wrapping_add(range.start), view.slot(view.rank, step), range.len()) };
        Ok(())
    });
    let drain = (!outputs.is_empty()).then(|| {
        let drain: Move<'f> = Box::new(move |view, step| {
            let range = cut.range(step);
            let to = |rank: usize| outputs[rank].pointer.wrapping_add(range.start);
            // SAFETY: see the top of this file.
            unsafe {
                copy(input.pointer.wrapping_add(range.start), to(view.rank), range.len());
                for peer in view.peers() {
                    copy(view.slot(peer, step), to(peer), range.len());
                }
            }
            Ok(())
        });
        drain
    });
    Flow { steps: cut.steps(), fill: Some(fill), reduce: None, needs, drain, lends_memory: false }
}

fn scatter<'f>(inputs: Vec<Source>, output: Target, root: usize, compartment: usize) -> Flow<'f> {
    let cut = Cut::new(output.bytes, 1, compartment);
    let own = inputs.get(root).copied();
    let fill = (!inputs.is_empty()).then(|| {
        let fill: Move<'f> = Box::new(move |view, step| {
            let range = cut.range(step);
            for peer in view.peers() {
                let to = view.slot(root, step).wrapping_add(peer * compartment);
                // SAFETY: see the top of this file.
                unsafe { copy(inputs[peer].pointer.wrapping_add(range.start), to, range.len()) };
            }
            Ok(())
        });
        fill
    });
    let drain: Move<'f> = Box::new(move |view, step| {
        let range = cut.range(step);
        let from = own.map_or_else(
            || view.slot(root, step).wrapping_add(view.rank * compartment).cast_const(),
            |own| own.pointer.wrapping_add(range.start),
        );
        // SAFETY: see the top of this file.
        unsafe { copy(from, output.pointer.wrapping_add(range.start), range.len()) };
        Ok(())
    });
    Flow { steps: cut.steps(), fill, reduce: None, needs: Needs::Only(root), drain: Some(drain), lends_memory: false }
}

fn reduce_scatter<'f>(
    inputs: Vec<Source>,
    output: Target,
    dtype: DataType,
    reduction: Reduction,
    compartment: usize,
) -> Flow<'f> {
    let size = dtype.size();
    let cut = Cut::new(output.bytes / size, size, compartment);
    let sources = inputs.clone();
    let fill: Move<'f> = Box::new(move |view, step| {
        let range = cut.range(step);
        for peer in view.peers() {
            let from = sources[peer].pointer.wrapping_add(range.start * size);
            let to = view.slot(view.rank, step).wrapping_add(peer * compartment);
            // SAFETY: see the top of this file.
            unsafe { copy(from, to, range.len() * size) };
        }
        Ok(())
    });
    let drain: Move<'f> = Box::new(move |view, step| {
        let range = cut.range(step);
        let pointer = |rank: usize| {
            if rank == view.rank {
                inputs[rank].pointer.wrapping_add(range.start * size)
            } else {
                view.slot(rank, step).wrapping_add(view.rank * compartment).cast_const()
            }
        };
        with_pointers(view.world, pointer, |pointers| {
            let to = output.pointer.wrapping_add(range.start * size);
            // SAFETY: see the top of this file.
            unsafe { kernel::reduce(dtype, reduction, pointers, to, range.len()) };
        });
        Ok(())
    });
    let (fill, drain) = (Some(fill), Some(drain));
    Flow { steps: cut.steps(), fill, reduce: None, needs: Needs::All, drain, lends_memory: false }
}

/// `largest` is the most that any pair of ranks exchanges: it gives the number of steps.
pub(super) fn all_to_all<'f>(inputs: &[Source], outputs: &[Target], view: &View<'_>, largest: usize) -> Flow<'f> {
    let compartment = compartment(view.step_bytes, view.world);
    let part = move |bytes: usize, step: usize| Cut::new(bytes, 1, compartment).range(step);
    let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
    let own = inputs[view.rank];
    let fill: Move<'f> = Box::new(move |view, step| {
        for peer in view.peers() {
            let range = part(inputs[peer].bytes, step);
            let to = view.slot(view.rank, step).wrapping_add(peer * compartment);
            // SAFETY: see the top of this file.
            unsafe { copy(inputs[peer].pointer.wrapping_add(range.start), to, range.len()) };
        }
        Ok(())
    });
    let drain: Move<'f> = Box::new(move |view, step| {
        for (rank, output) in outputs.iter().enumerate() {
            let range = part(output.bytes, step);
            let from = if rank == view.rank {
                own.pointer.wrapping_add(range.start)
            } else {
                view.slot(rank, step).wrapping_add(view.rank * compartment).cast_const()
            };
            // SAFETY: see the top of this file.
            unsafe { copy(from, output.pointer.wrapping_add(range.start), range.len()) };
        }
        Ok(())
    });
    let steps = Cut::new(largest, 1, compartment).steps();
    Flow { steps, fill: Some(fill), reduce: None, needs: Needs::All, drain: Some(drain), lends_memory: false }
}

/// A copy of the inputs, if an output lies in the same memory.
pub(super) fn hold_apart(inputs: &[Source], outputs: &[Target]) -> Option<(Vec<u8>, Vec<Source>)> {
    let span = |pointer: *const u8, bytes: usize| pointer as usize..pointer as usize + bytes;
    let overlap = inputs.iter().any(|input| {
        let input = span(input.pointer, input.bytes);
        let meets = |output: &Target| {
            let output = span(output.pointer, output.bytes);
            input.start < output.end && output.start < input.end
        };
        outputs.iter().any(meets)
    });
    if !overlap {
        return None;
    }
    let mut held = vec![0; inputs.iter().map(|input| input.bytes).sum()];
    let mut sources = Vec::with_capacity(inputs.len());
    let mut start = 0;
    for input in inputs {
        let place = &mut held[start..start + input.bytes];
        // SAFETY: the caller of `Engine::run` vouches for the input; the copy is new memory.
        unsafe { copy(input.pointer, place.as_mut_ptr(), input.bytes) };
        sources.push(Source::new(place.as_ptr(), input.bytes));
        start += input.bytes;
    }
    Some((held, sources))
}
