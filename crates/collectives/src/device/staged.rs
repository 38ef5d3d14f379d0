//! Ranks that do not share a GPU, and what is small: tensors travel through memory of the host, where the group's own engine takes them on,
//! to the other ranks of the host or to other hosts.
//!
//! That memory is pinned, so that the GPU copies by itself, and there are two pieces of it: while the host works on a
//! chunk in one, the GPU brings the next into the other and takes the one before away. Where the driver refuses to pin it,
//! it is ordinary memory, and copies take longer.
#![expect(unsafe_code, reason = "copies between the GPU and memory that lives here")]

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::driver::{CudaError, Event, Gpu, Stream};
use super::layout::{ALIGNMENT, Range};
use super::signal::{Turn, Until, agree, signal};
use crate::Error;
use crate::operation::{Operation, Source, Target};

/// Bytes of a piece of memory: what goes at once. Every group that needs them has two.
const PIECE: usize = 8 << 20;

/// See the module documentation.
pub(super) struct Stage {
    gpu: Arc<Gpu>,
    /// From the GPU, and where callers' streams wait.
    stream: Arc<Stream>,
    /// Back to the GPU.
    back: Stream,
    /// Whether memory is to be pinned.
    pin: bool,
    pieces: Option<[Piece; 2]>,
}

struct Piece {
    memory: HostMemory,
    /// What comes from the GPU is there.
    here: Event,
    /// What goes to the GPU is there.
    gone: Event,
}

/// A chunk of an operation: the operation on memory of the host, and what comes from and goes to the GPU for it.
struct Chunk {
    operation: Operation,
    gives: Vec<(*mut u8, Range)>,
    takes: Vec<(*mut u8, Range)>,
}

impl Stage {
    pub(super) fn new(gpu: &Arc<Gpu>, stream: Arc<Stream>, pin: bool) -> Result<Stage, CudaError> {
        Ok(Stage { gpu: Arc::clone(gpu), stream, back: gpu.stream()?, pin, pieces: None })
    }

    /// Whether this rank's memory is to be pinned.
    pub(super) fn pins(&self) -> bool {
        self.pin
    }

    /// Does an operation: whether the host has waited for its end.
    pub(super) fn perform(&mut self, operation: &Operation, turn: &Turn<'_>, until: Until) -> Result<bool, Error> {
        let (rank, step) = (turn.group.rank().0, step(operation, turn.group.world_size()));
        if self.pieces.is_none() {
            self.pieces = Some([self.piece()?, self.piece()?]);
        }
        let Some(pieces) = &self.pieces else { return Ok(false) };
        let fetch = |number: usize| {
            let piece = &pieces[number % pieces.len()];
            let chunk = Chunk::of(operation, rank, number, step, piece.memory.start.as_ptr());
            self.stream.wait(&piece.gone)?;
            for (to, from) in &chunk.gives {
                // SAFETY: a part of the piece, which the host does not use now; the other one `submit` was promised.
                unsafe { self.stream.copy_out(*to, from.address, from.bytes)? };
            }
            self.stream.record(&piece.here)?;
            Ok::<Chunk, CudaError>(chunk)
        };
        let mut next = fetch(0)?;
        let chunks = agree(turn, &signal(turn, chunks(operation, step))?)?;
        for number in 0..chunks {
            let piece = &pieces[number % pieces.len()];
            let after = if number + 1 < chunks { Some(fetch(number + 1)?) } else { None };
            piece.here.synchronize()?;
            // SAFETY: the operation is on the piece, which the GPU does not use now.
            unsafe { turn.group.run_within(next.operation.clone(), turn.timeout)? };
            for (from, to) in &next.takes {
                // SAFETY: as above.
                unsafe { self.back.copy_in(to.address, *from, to.bytes)? };
            }
            self.back.record(&piece.gone)?;
            match after {
                Some(after) => next = after,
                None if until == Until::HostKnows => {
                    piece.gone.synchronize()?;
                    return Ok(true);
                }
                None => self.stream.wait(&piece.gone)?,
            }
        }
        Ok(false)
    }

    fn piece(&self) -> Result<Piece, Error> {
        let memory = HostMemory::new(&self.gpu, self.pin)?;
        Ok(Piece { memory, here: self.gpu.event()?, gone: self.gpu.event()? })
    }
}

impl Drop for Stage {
    /// The memory must not go while the GPU uses it.
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
        let _ = self.back.synchronize();
    }
}

impl Chunk {
    /// The same chunk of every buffer of an operation; the buffers lie one after the other in memory of the host.
    fn of(operation: &Operation, rank: usize, number: usize, step: usize, memory: *mut u8) -> Chunk {
        let taken = Cell::new(0);
        let place = |range: Range| {
            let at = memory.wrapping_add(taken.replace(taken.get() + 1) * step);
            (at, range.chunk(number, step).unwrap_or(Range { address: range.address, bytes: 0 }))
        };
        let (mut gives, mut takes) = (Vec::new(), Vec::new());
        let operation = operation.moved(
            |source| {
                let (at, part) = place(source.range());
                gives.push((at, part));
                Source::new(at, part.bytes)
            },
            |target| {
                let (at, part) = place(target.range());
                takes.push((at, part));
                Target::new(at, part.bytes)
            },
        );
        match &operation {
            Operation::Broadcast { root, .. } if root.0 == rank => std::mem::swap(&mut gives, &mut takes),
            Operation::Reduce { root, .. } | Operation::Gather { root, .. } if root.0 != rank => takes.clear(),
            Operation::Scatter { root, .. } if root.0 != rank => gives.clear(),
            _ => {}
        }
        let some = |(_, range): &(*mut u8, Range)| range.bytes > 0;
        gives.retain(some);
        takes.retain(some);
        Chunk { operation, gives, takes }
    }
}

/// How many bytes of a buffer go at once: the same on every rank, whatever it gives and gets.
fn step(operation: &Operation, world: usize) -> usize {
    let buffers = match operation {
        Operation::Broadcast { .. } | Operation::Barrier => 1,
        Operation::AllReduce { .. } | Operation::Reduce { .. } => 2,
        Operation::AllToAll { .. } => 2 * world,
        _ => world + 1,
    };
    (PIECE / buffers) / ALIGNMENT * ALIGNMENT
}

/// How many chunks this rank's part takes; one at least, in which nothing may be moved.
fn chunks(operation: &Operation, step: usize) -> usize {
    let longest = Cell::new(0);
    let see = |bytes: usize| longest.set(longest.get().max(bytes));
    operation.moved(
        |source| {
            see(source.bytes);
            *source
        },
        |target| {
            see(target.bytes);
            *target
        },
    );
    longest.get().div_ceil(step).max(1)
}

/// Memory of this process, pinned where the driver permits it.
struct HostMemory {
    start: NonNull<u8>,
    pinned: Option<Arc<Gpu>>,
}

// SAFETY: plain memory, used by whoever holds it.
unsafe impl Send for HostMemory {}

impl HostMemory {
    fn new(gpu: &Arc<Gpu>, pin: bool) -> Result<HostMemory, Error> {
        let length = NonZeroUsize::new(PIECE).unwrap_or(NonZeroUsize::MIN);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // Not what the driver would allocate: other ranks must be able to read it.
        // SAFETY: new memory, which nobody else has.
        let start = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) }
            .map_err(|error| Error::system("take memory for tensors of the GPU", error))?
            .cast::<u8>();
        let pinned = pin && gpu.pin(start.as_ptr().cast(), PIECE).is_ok();
        Ok(HostMemory { start, pinned: pinned.then(|| Arc::clone(gpu)) })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(gpu) = &self.pinned
            && gpu.enter().is_ok()
        {
            gpu.unpin(self.start.as_ptr().cast());
        }
        // SAFETY: mapped once, and used by nobody any more.
        let _ = unsafe { munmap(self.start.cast(), PIECE) };
    }
}

#[cfg(test)]
mod tests {
    use super::{Chunk, PIECE, chunks, step};
    use crate::operation::{Operation, Source, Target};
    use crate::{DataType, Rank, Reduction};
    use proptest::prelude::*;

    fn source(address: usize, bytes: usize) -> Source {
        Source::new(std::ptr::without_provenance(address), bytes)
    }

    fn target(address: usize, bytes: usize) -> Target {
        Target::new(std::ptr::without_provenance_mut(address), bytes)
    }

    proptest! {
        /// Chunk by chunk everything is given and taken once, and buffers lie apart inside the piece.
        #[test]
        fn chunks_cover_every_buffer(world in 1usize..9, sizes in prop::collection::vec(0usize..9 << 20, 8), kind in 0..4) {
            let (dtype, reduction, root) = (DataType::U8, Reduction::Sum, Rank(0));
            let (far, each) = (1usize << 40, 1usize << 30);
            let outputs: Vec<Target> = (0..world).map(|to| target(far + to * each, sizes[to % 8])).collect();
            let inputs: Vec<Source> = (0..world).map(|from| source(each * (from + 1), sizes[(from + 3) % 8])).collect();
            let operation = match kind {
                0 => Operation::AllReduce { input: inputs[0], output: target(far, inputs[0].bytes), dtype, reduction },
                1 => Operation::Broadcast { buffer: outputs[0], dtype, root },
                2 => Operation::AllToAll { inputs: inputs.clone(), outputs: outputs.clone(), dtype },
                _ => Operation::Gather { input: inputs[0], outputs: outputs.clone(), dtype, root },
            };
            let step = step(&operation, world);
            let (mut given, mut taken) = (0, 0);
            for number in 0..chunks(&operation, step) {
                let chunk = Chunk::of(&operation, 0, number, step, std::ptr::without_provenance_mut(0));
                let mut slot_events: Vec<(usize, usize)> =
                    chunk.gives.iter().chain(&chunk.takes).map(|(at, range)| (at.addr(), range.bytes)).collect();
                slot_events.sort_unstable();
                prop_assert!(slot_events.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                prop_assert!(slot_events.iter().all(|(at, bytes)| at + bytes <= PIECE));
                given += chunk.gives.iter().map(|(_, range)| range.bytes).sum::<usize>();
                taken += chunk.takes.iter().map(|(_, range)| range.bytes).sum::<usize>();
            }
            let sum = |bytes: &mut dyn Iterator<Item = usize>| bytes.sum::<usize>();
            let (all_in, all_out) = (sum(&mut inputs.iter().map(|one| one.bytes)), sum(&mut outputs.iter().map(|one| one.bytes)));
            let expected = match kind {
                0 => (inputs[0].bytes, inputs[0].bytes),
                1 => (outputs[0].bytes, 0),
                2 => (all_in, all_out),
                _ => (inputs[0].bytes, all_out),
            };
            prop_assert_eq!((given, taken), expected);
        }
    }
}
