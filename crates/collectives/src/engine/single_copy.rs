//! The operations on large buffers, read straight out of the peers' memory.
//!
//! Every rank publishes where its data lies in its row of the arena, and returns only when nobody reads it any more. The
//! results are the same bits as through the slots.

use super::flow::with_pointers;
use super::{Flow, Needs, Progress, Stop, View};
use crate::arena::{load, remote, store};
use crate::dtype::{DataType, Reduction};
use crate::kernel::{self, copy};
use crate::operation::{Operation, Source, Target};
use crate::plan::Cut;

/// Bytes of peers' memory on the way through the private cache, over all peers.
const SCRATCH_BYTES: usize = 512 << 10;

// SAFETY (of every block below): local ranges come from cuts of sizes that `Operation::check` compared, whose memory the
// caller of `Engine::run` vouches for. Remote ranges are the peers', of the same sizes by the fingerprint; the kernel
// refuses what is not theirs.

/// Reads from what `peer` published for this rank.
///
/// # Safety
/// `to` is writable for `bytes`.
unsafe fn fetch(view: &View<'_>, peer: usize, from: u64, to: *mut u8, bytes: usize) -> Progress {
    if bytes == 0 {
        return Ok(());
    }
    let process = view.arena.control(peer).process();
    // SAFETY: the caller's promise.
    unsafe { remote::read(process, from, to, bytes) }.map_err(|error| Stop::Unreadable(peer, error))
}

/// Where `peer` has what is for this rank.
fn pointer_of(view: &View<'_>, peer: usize) -> u64 {
    load(view.arena.row(peer, view.base).pointer(view.rank))
}

fn publish_same(view: &View<'_>, pointer: *const u8) {
    let row = view.arena.row(view.rank, view.base);
    (0..view.world).for_each(|peer| store(row.pointer(peer), pointer as u64));
}

fn publish_parts(view: &View<'_>, inputs: &[Source]) {
    let row = view.arena.row(view.rank, view.base);
    for (peer, input) in inputs.iter().enumerate() {
        store(row.pointer(peer), input.pointer as u64);
    }
}

/// Whether an operation has such a flow. The reductions that hand results back have none: through the slots they cost
/// fewer trips to memory than the kernel's copies do.
pub(super) fn knows(operation: &Operation) -> bool {
    !matches!(operation, Operation::AllReduce { .. } | Operation::Reduce { .. } | Operation::Barrier)
}

/// The flow of every operation that has one but all_to_all.
pub(super) fn flow<'f>(operation: &Operation, view: &View<'_>, scratch: &'f mut Vec<u8>) -> Flow<'f> {
    let mut flow = Flow { needs: Needs::All, lends_memory: true, ..Flow::new(1) };
    match operation {
        Operation::ReduceScatter { inputs, output, dtype, reduction } => {
            publish_parts(view, inputs);
            let (inputs, output) = (inputs.clone(), *output);
            let (dtype, reduction) = (*dtype, *reduction);
            flow.take = Some(Box::new(move |view, _| {
                let count = output.bytes / dtype.size();
                let own = inputs[view.rank].pointer;
                let from = |peer| pointer_of(view, peer);
                reduce_remote(view, &from, own, output.pointer, count, (dtype, reduction), scratch)
            }));
        }
        Operation::Broadcast { buffer, root, .. } => {
            publish_same(view, buffer.pointer);
            let (buffer, root) = (*buffer, root.0);
            flow.needs = Needs::Only(root);
            if view.rank != root {
                // SAFETY: see the top of this file.
                flow.take = Some(Box::new(move |view, _| unsafe {
                    fetch(view, root, pointer_of(view, root), buffer.pointer, buffer.bytes)
                }));
            }
        }
        Operation::AllGather { input, outputs, .. } => {
            publish_same(view, input.pointer);
            flow.take = Some(Box::new(collect(*input, outputs.clone())));
        }
        Operation::Gather { input, outputs, root, .. } => {
            publish_same(view, input.pointer);
            flow.needs = Needs::Nobody;
            if view.rank == root.0 {
                flow.needs = Needs::All;
                flow.take = Some(Box::new(collect(*input, outputs.clone())));
            }
        }
        Operation::Scatter { inputs, output, root, .. } => {
            let (output, root) = (*output, root.0);
            flow.needs = Needs::Only(root);
            let own = (view.rank == root).then(|| inputs[root]);
            if own.is_some() {
                publish_parts(view, inputs);
            }
            // SAFETY: see the top of this file.
            flow.take = Some(Box::new(move |view, _| unsafe {
                match own {
                    Some(own) => copy(own.pointer, output.pointer, output.bytes),
                    None => fetch(view, root, pointer_of(view, root), output.pointer, output.bytes)?,
                }
                Ok(())
            }));
        }
        Operation::AllReduce { .. } | Operation::Reduce { .. } | Operation::Barrier | Operation::AllToAll { .. } => {
            unreachable!("the engine takes these through the arena")
        }
    }
    flow
}

/// Everybody's input into its output.
fn collect(input: Source, outputs: Vec<Target>) -> impl FnMut(&View<'_>, usize) -> Progress {
    move |view, _| {
        // SAFETY: see the top of this file.
        unsafe {
            copy(input.pointer, outputs[view.rank].pointer, input.bytes);
            for peer in view.peers() {
                fetch(view, peer, pointer_of(view, peer), outputs[peer].pointer, input.bytes)?;
            }
        }
        Ok(())
    }
}

/// The sizes are exchanged already; `pointers` say where each peer has what is for this rank.
pub(super) fn all_to_all<'f>(inputs: &[Source], outputs: &[Target], pointers: Vec<u64>) -> Flow<'f> {
    let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
    let mut flow = Flow { needs: Needs::All, lends_memory: true, ..Flow::new(1) };
    flow.take = Some(Box::new(move |view, _| {
        // SAFETY: see the top of this file.
        unsafe {
            copy(inputs[view.rank].pointer, outputs[view.rank].pointer, outputs[view.rank].bytes);
            for peer in view.peers() {
                fetch(view, peer, pointers[peer], outputs[peer].pointer, outputs[peer].bytes)?;
            }
        }
        Ok(())
    }));
    flow
}

/// Reduces `count` elements of all ranks into `to`, through the scratch.
fn reduce_remote(
    view: &View<'_>,
    from: &dyn Fn(usize) -> u64,
    own: *const u8,
    to: *mut u8,
    count: usize,
    (dtype, reduction): (DataType, Reduction),
    scratch: &mut Vec<u8>,
) -> Progress {
    let size = dtype.size();
    let lane = SCRATCH_BYTES / view.world.max(2);
    let lane = lane - lane % 64;
    scratch.resize(lane * view.world, 0);
    let lanes = scratch.as_mut_ptr();
    let cut = Cut::new(count, size, lane);
    for step in 0..cut.steps() {
        let range = cut.range(step);
        let start = range.start * size;
        for peer in view.peers() {
            // SAFETY: see the top of this file; a lane holds a step.
            unsafe { fetch(view, peer, from(peer) + start as u64, lanes.add(peer * lane), range.len() * size) }?;
        }
        let pointer = |rank: usize| {
            if rank == view.rank { own.wrapping_add(start) } else { lanes.wrapping_add(rank * lane).cast_const() }
        };
        with_pointers(std::ptr::null(), (0..view.world).map(pointer), |inputs| {
            // SAFETY: see the top of this file.
            unsafe { kernel::reduce(dtype, reduction, inputs, &[to.wrapping_add(start)], range.len()) };
        });
    }
    Ok(())
}
