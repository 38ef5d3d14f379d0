//! Ranks that share one GPU: arenas in device memory that all of them open through the driver (CUDA IPC).
//!
//! What they lay out and take is [`layout`](super::layout)'s. The host only passes signals: that everybody has *ordered*
//! its part. That the parts are *done* is for the GPU to wait for, by counters that all processes and their GPU reach
//! ([`flags`](super::flags)), so that no thread waits for the GPU and a caller's stream runs on as with NCCL. They are not
//! events, because nobody could let a stream pass that waits for an event of a process that was killed.
//!
//! A *turn* is a chunk; the two halves of the arena are used in turns:
//!
//! 1. The stream waits until nobody reads this half of the arena any more, copies the input into it, counts *written*.
//! 2. The signal: calls are compared, and everybody knows that the counts of all are ordered.
//! 3. The stream waits for *written* of all, folds or copies what is wanted into the output, counts *read*.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use super::driver::{CudaError, Gpu, HANDLE_BYTES, Kernel, Memory, Stream, UUID_BYTES};
use super::flags::{Flags, Phase};
use super::kernel;
use super::layout::{Layout, Range, Take};
use super::signal::{Turn, agree, signal};
use crate::Error;
use crate::dtype::{DataType, Reduction};
use crate::operation::Operation;

/// Bytes of one half of a rank's arena: what goes at once. Costs twice this of device memory for each rank and group.
const HALF: usize = 32 << 20;
const HALVES: u32 = 2;

/// What a rank tells of itself: its device and its arena.
pub(super) const HELLO_BYTES: usize = UUID_BYTES + HANDLE_BYTES;

/// What a rank has before it knows the others.
pub(super) struct Prepared {
    gpu: Arc<Gpu>,
    flags: Arc<Flags>,
    memory: Memory,
    pub(super) hello: Vec<u8>,
}

impl Prepared {
    pub(super) fn new(gpu: &Arc<Gpu>, flags: Arc<Flags>) -> Result<Prepared, CudaError> {
        let memory = gpu.allocate(HALF * HALVES as usize)?;
        let mut hello = gpu.uuid()?.to_vec();
        hello.extend(memory.handle()?);
        Ok(Prepared { gpu: Arc::clone(gpu), flags, memory, hello })
    }

    pub(super) fn open(self, hellos: &[Vec<u8>], rank: usize, stream: Arc<Stream>) -> Result<Arena, CudaError> {
        let Prepared { gpu, flags, memory, .. } = self;
        let open = |hello: &Vec<u8>| {
            let mut handle = [0; HANDLE_BYTES];
            handle.copy_from_slice(&hello[UUID_BYTES..HELLO_BYTES]);
            gpu.open_memory(handle)
        };
        let mut halves = hellos[..rank].iter().map(open).collect::<Result<Vec<Memory>, CudaError>>()?;
        halves.push(memory);
        for hello in &hellos[rank + 1..] {
            halves.push(open(hello)?);
        }
        let table = gpu.allocate(halves.len() * HALVES as usize * size_of::<u64>())?;
        let sources =
            (0..HALVES as usize).flat_map(|half| halves.iter().map(move |own| own.address() + (half * HALF) as u64));
        let bytes: Vec<u8> = sources.flat_map(u64::to_ne_bytes).collect();
        gpu.upload(table.address(), &bytes)?;
        Ok(Arena { gpu, flags, rank, halves, table, stream, kernels: BTreeMap::new(), turn: 0 })
    }
}

/// The arenas of all ranks.
pub(super) struct Arena {
    gpu: Arc<Gpu>,
    flags: Arc<Flags>,
    rank: usize,
    /// Both halves of every rank, one behind the other: our own, and the others'.
    halves: Vec<Memory>,
    /// The addresses of all ranks' halves, for the kernels.
    table: Memory,
    stream: Arc<Stream>,
    kernels: BTreeMap<(u8, u8), Kernel>,
    /// Turns so far.
    turn: u32,
}

impl Arena {
    pub(super) fn perform(&mut self, operation: &Operation, turn: &Turn<'_>) -> Result<(), Error> {
        let layout = Layout::of(operation, self.rank, self.halves.len());
        let step = layout.step(HALF);
        let mut chunks = layout.chunks(HALF);
        let mut chunk = 0;
        while chunk < chunks {
            self.flags.begin(self.turn);
            self.lay_out(&layout, chunk, step)?;
            chunks = agree(turn, &signal(turn, chunks)?)?.max(chunks);
            self.take(&layout, chunk, step)?;
            self.turn = self.turn.wrapping_add(1);
            chunk += 1;
        }
        Ok(())
    }

    fn half(&self) -> usize {
        (self.turn % HALVES) as usize
    }

    fn lay_out(&self, layout: &Layout, chunk: usize, step: usize) -> Result<(), CudaError> {
        // This half was last used two turns ago.
        self.wait_for_all(Phase::Read, self.turn.wrapping_sub(HALVES - 1))?;
        for (segment, give) in layout.gives.iter().enumerate() {
            if let Some(part) = give.chunk(chunk, step) {
                let target = self.halves[self.rank].address() + (self.half() * HALF + segment * step) as u64;
                self.copy(target, part.address, part.bytes)?;
            }
        }
        self.flags.write(&self.stream, self.rank, Phase::Written, self.turn.wrapping_add(1))
    }

    fn take(&mut self, layout: &Layout, chunk: usize, step: usize) -> Result<(), CudaError> {
        self.wait_for_all(Phase::Written, self.turn.wrapping_add(1))?;
        for take in &layout.takes {
            let Some(part) = take.target().chunk(chunk, step) else { continue };
            match take {
                Take::Copy { rank, segment, .. } => {
                    let source = self.halves[*rank].address() + (self.half() * HALF + segment * step) as u64;
                    self.copy(part.address, source, part.bytes)?;
                }
                Take::Fold { segment, dtype, reduction, .. } => {
                    self.fold(part, (segment * step) as u64, *dtype, *reduction)?;
                }
            }
        }
        self.flags.write(&self.stream, self.rank, Phase::Read, self.turn.wrapping_add(1))
    }

    /// Has the stream wait until every other rank has counted so far.
    fn wait_for_all(&self, phase: Phase, count: u32) -> Result<(), CudaError> {
        let others = (0..self.halves.len()).filter(|rank| *rank != self.rank);
        others.into_iter().try_for_each(|rank| self.flags.wait(&self.stream, rank, phase, count))
    }

    fn copy(&self, target: u64, source: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: one side is a part of an arena, the other of memory that `submit` was promised.
        unsafe { self.stream.copy(target, source, bytes) }
    }

    fn fold(&mut self, target: Range, offset: u64, dtype: DataType, reduction: Reduction) -> Result<(), CudaError> {
        let key = (dtype as u8, reduction.code());
        if !self.kernels.contains_key(&key) {
            let program = kernel::program(dtype, reduction).unwrap_or_default();
            self.kernels.insert(key, self.gpu.kernel(&program, kernel::NAME)?);
        }
        let Some(kernel) = self.kernels.get(&key) else { return Ok(()) };
        let factor = match reduction {
            Reduction::PremultipliedSum(factor) => factor,
            _ => 1.0,
        };
        let mut sources = self.table.address() + (self.half() * self.halves.len() * size_of::<u64>()) as u64;
        let (mut ranks, mut offset, mut to) = (self.halves.len() as u32, offset, target.address);
        let mut count = (target.bytes / kernel::element_size(dtype)) as u64;
        let mut factor = factor;
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut sources).cast(),
            (&raw mut ranks).cast(),
            (&raw mut offset).cast(),
            (&raw mut to).cast(),
            (&raw mut count).cast(),
            (&raw mut factor).cast(),
        ];
        let blocks = count.div_ceil(u64::from(kernel::THREADS)).clamp(1, u64::from(kernel::MOST_BLOCKS)) as u32;
        // SAFETY: the arguments of `kernel::program`; sources are arenas, the target is what `submit` was promised.
        unsafe { kernel.launch(&self.stream, blocks, kernel::THREADS, &mut arguments) }
    }

    /// Has the stream wait until nobody reads our arena any more.
    pub(super) fn retire(&self) {
        // A GPU that takes no orders does nothing to wait for.
        let _ = self.wait_for_all(Phase::Read, self.turn);
    }
}
