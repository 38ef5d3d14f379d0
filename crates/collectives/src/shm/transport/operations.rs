//! The operations through the slots of the arena.
//!
//! A slot holds either a step of the whole buffer (`all_reduce`, `broadcast`, `all_gather` …) or one compartment per
//! destination (`scatter`, `reduce_scatter`, `all_to_all`).

use std::ops::Range;
use std::ptr;

use super::pipeline::{Needs, Pipeline, StepFn, View};
use crate::dtype::{DataType, Reduction};
use crate::kernel::{self, copy, copy_of};
use crate::operation::{Operation, Source, Target};
use crate::partition::{Cut, Segments, compartment, results_stay};
use crate::rank::LocalRank;

// SAFETY (of every block below): source and target ranges come from cuts of the sizes that `Operation::check` compared,
// whose memory the caller of `ShmTransport::run` vouches for. Slots hold `step_bytes`: a step or `world` compartments fit,
// and the counters keep writers and readers of a slot apart (rules 1 to 5 of the arena).

/// The pipeline of every operation but all_to_all.
pub(super) fn pipeline<'f>(operation: &Operation, view: &View<'_>, small: bool) -> Pipeline<'f> {
    match operation {
        Operation::AllReduce { input, output, dtype, reduction } => {
            let reduction_job = ShmReduction { input: *input, dtype: *dtype, reduction: *reduction };
            reduction_job.by_segments(Some(*output), Needs::All, view)
        }
        Operation::Reduce { input, output, dtype, reduction, root } => {
            let reduction_job = ShmReduction { input: *input, dtype: *dtype, reduction: *reduction };
            let root = LocalRank(root.0);
            let output = (root == view.rank).then_some(*output);
            if small {
                reduction_job.at_once(output)
            } else {
                reduction_job.by_segments(output, Needs::Only(root), view)
            }
        }
        Operation::Broadcast { buffer, root, .. } => broadcast(*buffer, LocalRank(root.0), view),
        Operation::AllGather { input, outputs, .. } => {
            gather(*input, vec![input.bytes; view.world], outputs.clone(), view)
        }
        Operation::Gather { input, outputs, root, .. } => {
            let outputs = if root.0 == view.rank.0 { outputs.clone() } else { Vec::new() };
            gather(*input, vec![input.bytes; view.world], outputs, view)
        }
        Operation::Scatter { inputs, output, root, .. } => {
            let inputs = if root.0 == view.rank.0 { inputs.clone() } else { Vec::new() };
            scatter(inputs, *output, LocalRank(root.0), compartment(view.step_bytes, view.world))
        }
        Operation::ReduceScatter { inputs, output, dtype, reduction } => {
            reduce_scatter(inputs.clone(), *output, *dtype, *reduction, view)
        }
        Operation::Barrier => Pipeline::new(1),
        Operation::AllToAll { .. } => unreachable!("all_to_all exchanges sizes first"),
    }
}

/// all_reduce and reduce.
#[derive(Clone, Copy)]
struct ShmReduction {
    input: Source,
    dtype: DataType,
    reduction: Reduction,
}

impl ShmReduction {
    /// Everybody's whole input lies in its slot; who has an output reduces all of it.
    fn at_once<'f>(self, output: Option<Target>) -> Pipeline<'f> {
        let ShmReduction { input, dtype, reduction } = self;
        let fill: StepFn<'f> = Box::new(move |view, step| {
            // SAFETY: see the top of this file.
            unsafe { copy(input.pointer, view.slot(view.rank, step), input.bytes) };
            Ok(())
        });
        let take = output.map(|output| {
            let take: StepFn<'f> = Box::new(move |view, step| {
                let slots = LocalRank::all(view.world).map(|rank| view.slot(rank, step).cast_const());
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
        Pipeline { fill: Some(fill), take, needs, ..Pipeline::new(1) }
    }

    /// Each rank reduces its segment of a step. Few ranks get the result back in their own slots: the lines are in the cache
    /// of who reduced, and come back to their owner in one trip. Of many, each finds it in the slot of who reduced: to
    /// write it for each of them would be more work than the trips it spares.
    fn by_segments<'f>(self, output: Option<Target>, wanted_by: Needs, view: &View<'_>) -> Pipeline<'f> {
        let ShmReduction { input, dtype, reduction } = self;
        let size = dtype.size();
        let segments = Segments::new(input.bytes / size, size, view.step_bytes, view.world);
        let stays = wanted_by == Needs::All && results_stay(view.world);
        // Bytes of a segment, within the step.
        let piece = move |step: usize, rank: LocalRank| -> Range<usize> {
            let range = segments.of(step, rank.0);
            range.start * size..range.end * size
        };
        let start = move |step: usize| segments.cut.range(step).start * size;
        // What lies before and after the own segment of a step.
        let others = move |view: &View<'_>, step: usize| -> [Range<usize>; 2] {
            let own = piece(step, view.rank);
            [0..own.start, own.end..segments.cut.range(step).len() * size]
        };
        let fill: StepFn<'f> = Box::new(move |view, step| {
            // The own segment is read where it is.
            for part in others(view, step) {
                let from = input.pointer.wrapping_add(start(step) + part.start);
                // SAFETY: see the top of this file.
                unsafe { copy(from, view.slot(view.rank, step).add(part.start), part.len()) };
            }
            Ok(())
        });
        let take: StepFn<'f> = Box::new(move |view, step| {
            let piece = piece(step, view.rank);
            let at = start(step) + piece.start;
            let slot = |rank: LocalRank| view.slot(rank, step).wrapping_add(piece.start);
            let pointer = |rank: LocalRank| {
                if rank == view.rank { input.pointer.wrapping_add(at) } else { slot(rank).cast_const() }
            };
            let own = output.map(|output| output.pointer.wrapping_add(at));
            let given = view.peers().filter(|peer| !stays && wanted_by.includes(*peer));
            let kept = stays.then_some(view.rank);
            with_pointers(ptr::null_mut(), own.into_iter().chain(given.chain(kept).map(slot)), |outputs| {
                with_pointers(ptr::null(), LocalRank::all(view.world).map(pointer), |inputs| {
                    // SAFETY: see the top of this file; nobody but this rank touches its segment of any slot until it
                    // says that it is done.
                    unsafe { kernel::reduce(dtype, reduction, inputs, outputs, piece.len() / size) };
                });
            });
            Ok(())
        });
        let collect = output.map(|output| {
            let collect: StepFn<'f> = Box::new(move |view, step| {
                let take = |rank: LocalRank, part: Range<usize>| {
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
        Pipeline {
            fill: Some(fill),
            needs: Needs::All,
            take: Some(take),
            collect,
            ..Pipeline::new(segments.cut.steps())
        }
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
            Some(entry) => *entry = pointer,
            None if many.is_empty() => many = [&few[..], &[pointer]].concat(),
            None => many.push(pointer),
        }
        count += 1;
    }
    then(if many.is_empty() { &few[..count] } else { &many });
}

fn broadcast<'f>(buffer: Target, root: LocalRank, view: &View<'_>) -> Pipeline<'f> {
    let cut = Cut::new(buffer.bytes, 1, view.step_bytes);
    let mut pipeline = Pipeline { needs: Needs::Only(root), ..Pipeline::new(cut.steps()) };
    if view.rank == root {
        pipeline.fill = Some(Box::new(move |view, step| {
            let range = cut.range(step);
            // SAFETY: see the top of this file.
            unsafe { copy(buffer.pointer.wrapping_add(range.start), view.slot(root, step), range.len()) };
            Ok(())
        }));
    } else {
        let copy = copy_of(buffer.bytes, view.cores);
        pipeline.take = Some(Box::new(move |view, step| {
            let range = cut.range(step);
            // SAFETY: see the top of this file.
            unsafe { copy(view.slot(root, step), buffer.pointer.wrapping_add(range.start), range.len()) };
            Ok(())
        }));
    }
    pipeline
}

fn scatter<'f>(inputs: Vec<Source>, output: Target, root: LocalRank, compartment: usize) -> Pipeline<'f> {
    let cut = Cut::new(output.bytes, 1, compartment);
    let own = inputs.get(root.0).copied();
    let fill = (!inputs.is_empty()).then(|| {
        let fill: StepFn<'f> = Box::new(move |view, step| {
            let range = cut.range(step);
            for peer in view.peers() {
                let to = view.slot(root, step).wrapping_add(peer.0 * compartment);
                // SAFETY: see the top of this file.
                unsafe { copy(inputs[peer.0].pointer.wrapping_add(range.start), to, range.len()) };
            }
            Ok(())
        });
        fill
    });
    let take: StepFn<'f> = Box::new(move |view, step| {
        let range = cut.range(step);
        let from = own.map_or_else(
            || view.slot(root, step).wrapping_add(view.rank.0 * compartment).cast_const(),
            |own| own.pointer.wrapping_add(range.start),
        );
        // SAFETY: see the top of this file.
        unsafe { copy(from, output.pointer.wrapping_add(range.start), range.len()) };
        Ok(())
    });
    Pipeline { fill, needs: Needs::Only(root), take: Some(take), ..Pipeline::new(cut.steps()) }
}

/// `largest` is the most that any pair of ranks exchanges: it gives the number of steps.
pub(super) fn all_to_all<'f>(inputs: &[Source], outputs: &[Target], view: &View<'_>, largest: usize) -> Pipeline<'f> {
    let compartment = compartment(view.step_bytes, view.world);
    let part = move |bytes: usize, step: usize| Cut::new(bytes, 1, compartment).range(step);
    let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
    let own = inputs[view.rank.0];
    let copy_out = copy_of(outputs.iter().map(|output| output.bytes).sum(), view.cores);
    let fill: StepFn<'f> = Box::new(move |view, step| {
        for peer in view.peers() {
            let range = part(inputs[peer.0].bytes, step);
            let to = view.slot(view.rank, step).wrapping_add(peer.0 * compartment);
            // SAFETY: see the top of this file.
            unsafe { copy(inputs[peer.0].pointer.wrapping_add(range.start), to, range.len()) };
        }
        Ok(())
    });
    let take: StepFn<'f> = Box::new(move |view, step| {
        for (rank, output) in LocalRank::all(view.world).zip(&outputs) {
            let range = part(output.bytes, step);
            let from = if rank == view.rank {
                own.pointer.wrapping_add(range.start)
            } else {
                view.slot(rank, step).wrapping_add(view.rank.0 * compartment).cast_const()
            };
            // SAFETY: see the top of this file.
            unsafe { copy_out(from, output.pointer.wrapping_add(range.start), range.len()) };
        }
        Ok(())
    });
    let steps = Cut::new(largest, 1, compartment).steps();
    Pipeline { fill: Some(fill), needs: Needs::All, take: Some(take), ..Pipeline::new(steps) }
}

/// reduce_scatter; parts may differ in length.
pub(super) fn reduce_scatter<'f>(
    parts: Vec<Source>,
    output: Target,
    dtype: DataType,
    reduction: Reduction,
    view: &View<'_>,
) -> Pipeline<'f> {
    let size = dtype.size();
    let compartment = compartment(view.step_bytes, view.world);
    let cut = move |bytes: usize| Cut::new(bytes / size, size, compartment);
    let steps = parts.iter().map(|part| cut(part.bytes).steps()).max().unwrap_or(1);
    let sources = parts.clone();
    let fill: StepFn<'f> = Box::new(move |view, step| {
        for peer in view.peers() {
            let range = cut(sources[peer.0].bytes).range(step);
            let from = sources[peer.0].pointer.wrapping_add(range.start * size);
            let to = view.slot(view.rank, step).wrapping_add(peer.0 * compartment);
            // SAFETY: see the top of this file.
            unsafe { copy(from, to, range.len() * size) };
        }
        Ok(())
    });
    let take: StepFn<'f> = Box::new(move |view, step| {
        let range = cut(output.bytes).range(step);
        let pointer = |rank: LocalRank| {
            if rank == view.rank {
                parts[rank.0].pointer.wrapping_add(range.start * size)
            } else {
                view.slot(rank, step).wrapping_add(view.rank.0 * compartment).cast_const()
            }
        };
        with_pointers(ptr::null(), LocalRank::all(view.world).map(pointer), |pointers| {
            let to = output.pointer.wrapping_add(range.start * size);
            // SAFETY: see the top of this file.
            unsafe { kernel::reduce(dtype, reduction, pointers, &[to], range.len()) };
        });
        Ok(())
    });
    Pipeline { fill: Some(fill), needs: Needs::All, take: Some(take), ..Pipeline::new(steps) }
}

/// all_gather and gather; inputs may differ in length, and who has no outputs takes nothing.
pub(super) fn gather<'f>(input: Source, lengths: Vec<usize>, outputs: Vec<Target>, view: &View<'_>) -> Pipeline<'f> {
    let step_bytes = view.step_bytes;
    let cut = move |bytes: usize| Cut::new(bytes, 1, step_bytes);
    let steps = lengths.iter().map(|bytes| cut(*bytes).steps()).max().unwrap_or(1);
    let fill: StepFn<'f> = Box::new(move |view, step| {
        let range = cut(input.bytes).range(step);
        // SAFETY: see the top of this file.
        unsafe { copy(input.pointer.wrapping_add(range.start), view.slot(view.rank, step), range.len()) };
        Ok(())
    });
    let needs = if outputs.is_empty() { Needs::Nobody } else { Needs::All };
    let take = (!outputs.is_empty()).then(|| {
        let copy = copy_of(outputs.iter().map(|output| output.bytes).sum(), view.cores);
        let take: StepFn<'f> = Box::new(move |view, step| {
            for (rank, output) in LocalRank::all(view.world).zip(&outputs) {
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
    Pipeline { fill: Some(fill), needs, take, ..Pipeline::new(steps) }
}
