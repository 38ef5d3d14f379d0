//! The operations through the slots of the arena.
//!
//! A slot holds either a step of the whole buffer (`all_reduce`, `broadcast`, `all_gather` …) or one compartment per
//! destination (`scatter`, `reduce_scatter`, `all_to_all`).

use std::ops::Range;
use std::ptr;

use super::{Flow, Move, Needs, View};
use crate::dtype::{DataType, Reduction};
use crate::kernel::{self, copy, copy_of};
use crate::operation::{Operation, Source, Target};
use crate::plan::{Cut, Segments, compartment, results_stay};

// SAFETY (of every block below): source and target ranges come from cuts of the sizes that `Operation::check` compared,
// whose memory the caller of `Engine::run` vouches for. Slots hold `step_bytes`: a step or `world` compartments fit,
// and the counters keep writers and readers of a slot apart (rules 1 to 5 of the arena).

/// The flow of every operation but all_to_all.
pub(super) fn flow<'f>(operation: &Operation, view: &View<'_>, small: bool) -> Flow<'f> {
    match operation {
        Operation::AllReduce { input, output, dtype, reduction } => {
            let reducing = Reducing { input: *input, dtype: *dtype, reduction: *reduction };
            reducing.by_segments(Some(*output), Needs::All, view)
        }
        Operation::Reduce { input, output, dtype, reduction, root } => {
            let reducing = Reducing { input: *input, dtype: *dtype, reduction: *reduction };
            let is_root = root.0 == view.rank;
            let output = is_root.then_some(*output);
            if small { reducing.at_once(output) } else { reducing.by_segments(output, Needs::Only(root.0), view) }
        }
        Operation::Broadcast { buffer, root, .. } => broadcast(*buffer, root.0, view),
        Operation::AllGather { input, outputs, .. } => {
            collect(*input, vec![input.bytes; view.world], outputs.clone(), view)
        }
        Operation::Gather { input, outputs, root, .. } => {
            let outputs = if root.0 == view.rank { outputs.clone() } else { Vec::new() };
            collect(*input, vec![input.bytes; view.world], outputs, view)
        }
        Operation::Scatter { inputs, output, root, .. } => {
            let inputs = if root.0 == view.rank { inputs.clone() } else { Vec::new() };
            scatter(inputs, *output, root.0, compartment(view.step_bytes, view.world))
        }
        Operation::ReduceScatter { inputs, output, dtype, reduction } => {
            spread(inputs.clone(), *output, *dtype, *reduction, view)
        }
        Operation::Barrier => Flow::new(1),
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
        let take = output.map(|output| {
            let take: Move<'f> = Box::new(move |view, step| {
                let slots = (0..view.world).map(|rank| view.slot(rank, step).cast_const());
                with_pointers(ptr::null(), slots, |inputs| {
                    let count = output.bytes / dtype.size();
                    // SAFETY: see the top of this file.
                    unsafe { kernel::reduce(dtype, reduction, inputs, &[output.pointer], count) };
                });
                Ok(())
            });
            take
        });
        let needs = if take.is_some() { Needs::All } else { Needs::Nobody };
        Flow { fill: Some(fill), take, needs, ..Flow::new(1) }
    }

    /// Each rank reduces its segment of a step. Few ranks get the result back in their own slots: the lines are in the cache
    /// of who reduced, and come back to their owner in one trip. Of many, each finds it in the slot of who reduced: to
    /// write it for each of them would be more work than the trips it spares.
    fn by_segments<'f>(self, output: Option<Target>, wanted_by: Needs, view: &View<'_>) -> Flow<'f> {
        let Reducing { input, dtype, reduction } = self;
        let size = dtype.size();
        let segments = Segments::new(input.bytes / size, size, view.step_bytes, view.world);
        let stays = wanted_by == Needs::All && results_stay(view.world);
        // Bytes of a segment, within the step.
        let piece = move |step: usize, rank: usize| -> Range<usize> {
            let range = segments.of(step, rank);
            range.start * size..range.end * size
        };
        let start = move |step: usize| segments.cut.range(step).start * size;
        // What lies before and after the own segment of a step.
        let others = move |view: &View<'_>, step: usize| -> [Range<usize>; 2] {
            let own = piece(step, view.rank);
            [0..own.start, own.end..segments.cut.range(step).len() * size]
        };
        let fill: Move<'f> = Box::new(move |view, step| {
            // The own segment is read where it is.
            for part in others(view, step) {
                let from = input.pointer.wrapping_add(start(step) + part.start);
                // SAFETY: see the top of this file.
                unsafe { copy(from, view.slot(view.rank, step).add(part.start), part.len()) };
            }
            Ok(())
        });
        let take: Move<'f> = Box::new(move |view, step| {
            let piece = piece(step, view.rank);
            let at = start(step) + piece.start;
            let slot = |rank: usize| view.slot(rank, step).wrapping_add(piece.start);
            let pointer =
                |rank: usize| if rank == view.rank { input.pointer.wrapping_add(at) } else { slot(rank).cast_const() };
            let own = output.map(|output| output.pointer.wrapping_add(at));
            let given = view.peers().filter(|peer| !stays && wanted_by.includes(*peer));
            let kept = stays.then_some(view.rank);
            with_pointers(ptr::null_mut(), own.into_iter().chain(given.chain(kept).map(slot)), |outputs| {
                with_pointers(ptr::null(), (0..view.world).map(pointer), |inputs| {
                    // SAFETY: see the top of this file; nobody but this rank touches its segment of any slot until it
                    // says that it is done.
                    unsafe { kernel::reduce(dtype, reduction, inputs, outputs, piece.len() / size) };
                });
            });
            Ok(())
        });
        let collect = output.map(|output| {
            let collect: Move<'f> = Box::new(move |view, step| {
                let take = |rank: usize, part: Range<usize>| {
                    let to = output.pointer.wrapping_add(start(step) + part.start);
                    // SAFETY: see the top of this file.
                    unsafe { copy(view.slot(rank, step).add(part.start), to, part.len()) };
                };
                if stays {
                    view.peers().for_each(|peer| take(peer, piece(step, peer)));
                } else {
                    others(view, step).into_iter().for_each(|part| take(view.rank, part));
                }
                Ok(())
            });
            collect
        });
        Flow { fill: Some(fill), needs: Needs::All, take: Some(take), collect, ..Flow::new(segments.cut.steps()) }
    }
}

/// Collects pointers, without a heap for the usual numbers of ranks.
pub(super) fn with_pointers<P: Copy>(none: P, pointers: impl Iterator<Item = P>, then: impl FnOnce(&[P])) {
    const USUAL: usize = 64;
    let mut few = [none; USUAL];
    let mut many = Vec::new();
    let mut count = 0;
    for pointer in pointers {
        match few.get_mut(count) {
            Some(place) => *place = pointer,
            None if many.is_empty() => many = [&few[..], &[pointer]].concat(),
            None => many.push(pointer),
        }
        count += 1;
    }
    then(if many.is_empty() { &few[..count] } else { &many });
}

fn broadcast<'f>(buffer: Target, root: usize, view: &View<'_>) -> Flow<'f> {
    let cut = Cut::new(buffer.bytes, 1, view.step_bytes);
    let mut flow = Flow { needs: Needs::Only(root), ..Flow::new(cut.steps()) };
    if view.rank == root {
        flow.fill = Some(Box::new(move |view, step| {
            let range = cut.range(step);
            // SAFETY: see the top of this file.
            unsafe { copy(buffer.pointer.wrapping_add(range.start), view.slot(root, step), range.len()) };
            Ok(())
        }));
    } else {
        let copy = copy_of(buffer.bytes, view.cores);
        flow.take = Some(Box::new(move |view, step| {
            let range = cut.range(step);
            // SAFETY: see the top of this file.
            unsafe { copy(view.slot(root, step), buffer.pointer.wrapping_add(range.start), range.len()) };
            Ok(())
        }));
    }
    flow
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
    let take: Move<'f> = Box::new(move |view, step| {
        let range = cut.range(step);
        let from = own.map_or_else(
            || view.slot(root, step).wrapping_add(view.rank * compartment).cast_const(),
            |own| own.pointer.wrapping_add(range.start),
        );
        // SAFETY: see the top of this file.
        unsafe { copy(from, output.pointer.wrapping_add(range.start), range.len()) };
        Ok(())
    });
    Flow { fill, needs: Needs::Only(root), take: Some(take), ..Flow::new(cut.steps()) }
}

/// `largest` is the most that any pair of ranks exchanges: it gives the number of steps.
pub(super) fn all_to_all<'f>(inputs: &[Source], outputs: &[Target], view: &View<'_>, largest: usize) -> Flow<'f> {
    let compartment = compartment(view.step_bytes, view.world);
    let part = move |bytes: usize, step: usize| Cut::new(bytes, 1, compartment).range(step);
    let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
    let own = inputs[view.rank];
    let copy_out = copy_of(outputs.iter().map(|output| output.bytes).sum(), view.cores);
    let fill: Move<'f> = Box::new(move |view, step| {
        for peer in view.peers() {
            let range = part(inputs[peer].bytes, step);
            let to = view.slot(view.rank, step).wrapping_add(peer * compartment);
            // SAFETY: see the top of this file.
            unsafe { copy(inputs[peer].pointer.wrapping_add(range.start), to, range.len()) };
        }
        Ok(())
    });
    let take: Move<'f> = Box::new(move |view, step| {
        for (rank, output) in outputs.iter().enumerate() {
            let range = part(output.bytes, step);
            let from = if rank == view.rank {
                own.pointer.wrapping_add(range.start)
            } else {
                view.slot(rank, step).wrapping_add(view.rank * compartment).cast_const()
            };
            // SAFETY: see the top of this file.
            unsafe { copy_out(from, output.pointer.wrapping_add(range.start), range.len()) };
        }
        Ok(())
    });
    let steps = Cut::new(largest, 1, compartment).steps();
    Flow { fill: Some(fill), needs: Needs::All, take: Some(take), ..Flow::new(steps) }
}

/// reduce_scatter; parts may differ in length.
pub(super) fn spread<'f>(
    parts: Vec<Source>,
    output: Target,
    dtype: DataType,
    reduction: Reduction,
    view: &View<'_>,
) -> Flow<'f> {
    let size = dtype.size();
    let compartment = compartment(view.step_bytes, view.world);
    let cut = move |bytes: usize| Cut::new(bytes / size, size, compartment);
    let steps = parts.iter().map(|part| cut(part.bytes).steps()).max().unwrap_or(1);
    let sources = parts.clone();
    let fill: Move<'f> = Box::new(move |view, step| {
        for peer in view.peers() {
            let range = cut(sources[peer].bytes).range(step);
            let from = sources[peer].pointer.wrapping_add(range.start * size);
            let to = view.slot(view.rank, step).wrapping_add(peer * compartment);
            // SAFETY: see the top of this file.
            unsafe { copy(from, to, range.len() * size) };
        }
        Ok(())
    });
    let take: Move<'f> = Box::new(move |view, step| {
        let range = cut(output.bytes).range(step);
        let pointer = |rank: usize| {
            if rank == view.rank {
                parts[rank].pointer.wrapping_add(range.start * size)
            } else {
                view.slot(rank, step).wrapping_add(view.rank * compartment).cast_const()
            }
        };
        with_pointers(ptr::null(), (0..view.world).map(pointer), |pointers| {
            let to = output.pointer.wrapping_add(range.start * size);
            // SAFETY: see the top of this file.
            unsafe { kernel::reduce(dtype, reduction, pointers, &[to], range.len()) };
        });
        Ok(())
    });
    Flow { fill: Some(fill), needs: Needs::All, take: Some(take), ..Flow::new(steps) }
}

/// all_gather and gather; inputs may differ in length, and who has no outputs takes nothing.
pub(super) fn collect<'f>(input: Source, lengths: Vec<usize>, outputs: Vec<Target>, view: &View<'_>) -> Flow<'f> {
    let step_bytes = view.step_bytes;
    let cut = move |bytes: usize| Cut::new(bytes, 1, step_bytes);
    let steps = lengths.iter().map(|bytes| cut(*bytes).steps()).max().unwrap_or(1);
    let fill: Move<'f> = Box::new(move |view, step| {
        let range = cut(input.bytes).range(step);
        // SAFETY: see the top of this file.
        unsafe { copy(input.pointer.wrapping_add(range.start), view.slot(view.rank, step), range.len()) };
        Ok(())
    });
    let needs = if outputs.is_empty() { Needs::Nobody } else { Needs::All };
    let take = (!outputs.is_empty()).then(|| {
        let copy = copy_of(outputs.iter().map(|output| output.bytes).sum(), view.cores);
        let take: Move<'f> = Box::new(move |view, step| {
            for (rank, output) in outputs.iter().enumerate() {
                let range = cut(output.bytes).range(step);
                let from = if rank == view.rank {
                    input.pointer.wrapping_add(range.start)
                } else {
                    view.slot(rank, step).cast_const()
                };
                // SAFETY: see the top of this file.
                unsafe { copy(from, output.pointer.wrapping_add(range.start), range.len()) };
            }
            Ok(())
        });
        take
    });
    Flow { fill: Some(fill), needs, take, ..Flow::new(steps) }
}
