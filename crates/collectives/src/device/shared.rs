//! Ranks that share one GPU: arenas in device memory that all of them open through the driver (CUDA IPC).
//!
//! What they lay out and take is [`layout`](super::layout)'s. The host only passes signals: that everybody has *ordered*
//! its part. That the parts are *done* is for the GPU to wait for, by events that all processes share, so that no thread
//! waits for the GPU and a caller's stream goes on as with NCCL.
//!
//! In a chunk, with the two halves of the arena in turns:
//!
//! 1. The stream waits until nobody reads this half of the arena any more, copies the input into it, marks *written*.
//! 2. The signal: calls are compared, and everybody knows that the marks of all are set.
//! 3. The stream waits for *written* of all, folds or copies what is wanted into the output, marks *read*.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use super::Turn;
use super::driver::{Event, Gpu, HANDLE_BYTES, Kernel, Memory, Stream, Trouble, UUID_BYTES};
use super::kernel;
use super::layout::{Layout, Range, Take};
use super::signal::{agree, signal};
use crate::Error;
use crate::dtype::{DataType, Reduction};
use crate::operation::Operation;

/// Bytes of one half of a rank's arena: what goes at once. Costs twice this of device memory for each rank and group.
const HALF: usize = 32 << 20;
const HALVES: usize = 2;

/// What a rank tells of itself: its device, its arena, its two marks for each half.
pub(super) const GREETING: usize = UUID_BYTES + HANDLE_BYTES * (1 + 2 * HALVES);

/// What a rank has before it knows the others.
pub(super) struct Prepared {
    gpu: Arc<Gpu>,
    memory: Memory,
    written: Vec<Event>,
    read: Vec<Event>,
    pub(super) greeting: Vec<u8>,
}

impl Prepared {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Prepared, Trouble> {
        let memory = gpu.allocate(HALF * HALVES)?;
        let marks = || (0..HALVES).map(|_| gpu.event(true)).collect::<Result<Vec<Event>, Trouble>>();
        let (written, read) = (marks()?, marks()?);
        let mut greeting = gpu.uuid()?.to_vec();
        greeting.extend(memory.handle()?);
        for event in written.iter().chain(&read) {
            greeting.extend(event.shared()?);
        }
        Ok(Prepared { gpu: Arc::clone(gpu), memory, written, read, greeting })
    }

    pub(super) fn open(self, greetings: &[Vec<u8>], rank: usize, stream: Arc<Stream>) -> Result<Arena, Trouble> {
        let Prepared { gpu, memory, written, read, .. } = self;
        let open = |greeting: &Vec<u8>| Peer::open(&gpu, greeting);
        let mut peers = greetings[..rank].iter().map(open).collect::<Result<Vec<Peer>, Trouble>>()?;
        peers.push(Peer { memory, written, read });
        for greeting in &greetings[rank + 1..] {
            peers.push(open(greeting)?);
        }
        let table = gpu.allocate(peers.len() * HALVES * size_of::<u64>())?;
        let sources =
            (0..HALVES).flat_map(|half| peers.iter().map(move |peer| peer.memory.address() + (half * HALF) as u64));
        let bytes: Vec<u8> = sources.flat_map(u64::to_ne_bytes).collect();
        gpu.upload(table.address(), &bytes)?;
        Ok(Arena { gpu, rank, peers, table, stream, kernels: BTreeMap::new(), turn: 0 })
    }
}

/// One rank's arena and marks, our own or another's.
struct Peer {
    memory: Memory,
    written: Vec<Event>,
    read: Vec<Event>,
}

impl Peer {
    fn open(gpu: &Arc<Gpu>, greeting: &[u8]) -> Result<Peer, Trouble> {
        let mut handles = greeting[UUID_BYTES..].chunks_exact(HANDLE_BYTES).map(|bytes| {
            let mut handle = [0; HANDLE_BYTES];
            handle.copy_from_slice(bytes);
            handle
        });
        let mut next = || handles.next().unwrap_or([0; HANDLE_BYTES]);
        let memory = gpu.open_memory(next())?;
        let mut marks = || (0..HALVES).map(|_| gpu.open_event(next())).collect::<Result<Vec<Event>, Trouble>>();
        let (written, read) = (marks()?, marks()?);
        Ok(Peer { memory, written, read })
    }
}

/// The arenas of all ranks.
pub(super) struct Arena {
    gpu: Arc<Gpu>,
    rank: usize,
    peers: Vec<Peer>,
    /// The addresses of all ranks' halves, for the kernels.
    table: Memory,
    stream: Arc<Stream>,
    kernels: BTreeMap<(u8, u8), Kernel>,
    turn: usize,
}

impl Arena {
    pub(super) fn perform(&mut self, operation: &Operation, turn: &Turn<'_>) -> Result<(), Error> {
        let layout = Layout::of(operation, self.rank, self.peers.len());
        let step = layout.step(HALF);
        let mut chunks = layout.chunks(HALF);
        let mut chunk = 0;
        while chunk < chunks {
            let half = self.turn % HALVES;
            self.turn += 1;
            self.lay_out(&layout, chunk, step, half)?;
            chunks = agree(turn, &signal(turn, chunks)?)?.max(chunks);
            self.take(&layout, chunk, step, half)?;
            chunk += 1;
        }
        Ok(())
    }

    fn lay_out(&self, layout: &Layout, chunk: usize, step: usize, half: usize) -> Result<(), Trouble> {
        for peer in &self.peers {
            self.stream.wait(&peer.read[half])?;
        }
        let own = &self.peers[self.rank];
        for (segment, give) in layout.gives.iter().enumerate() {
            if let Some(part) = give.chunk(chunk, step) {
                let target = own.memory.address() + (half * HALF + segment * step) as u64;
                self.copy(target, part.address, part.bytes)?;
            }
        }
        self.stream.record(&own.written[half])
    }

    fn take(&mut self, layout: &Layout, chunk: usize, step: usize, half: usize) -> Result<(), Trouble> {
        for peer in &self.peers {
            self.stream.wait(&peer.written[half])?;
        }
        for take in &layout.takes {
            let Some(part) = take.target().chunk(chunk, step) else { continue };
            match take {
                Take::Copy { rank, segment, .. } => {
                    let source = self.peers[*rank].memory.address() + (half * HALF + segment * step) as u64;
                    self.copy(part.address, source, part.bytes)?;
                }
                Take::Fold { segment, dtype, reduction, .. } => {
                    self.fold(part, (segment * step) as u64, half, *dtype, *reduction)?;
                }
            }
        }
        self.stream.record(&self.peers[self.rank].read[half])
    }

    fn copy(&self, target: u64, source: u64, bytes: usize) -> Result<(), Trouble> {
        // SAFETY: one side is a part of an arena, the other of memory that `submit` was promised.
        unsafe { self.stream.copy(target, source, bytes) }
    }

    fn fold(
        &mut self,
        target: Range,
        offset: u64,
        half: usize,
        dtype: DataType,
        reduction: Reduction,
    ) -> Result<(), Trouble> {
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
        let mut sources = self.table.address() + (half * self.peers.len() * size_of::<u64>()) as u64;
        let (mut ranks, mut offset, mut to) = (self.peers.len() as u32, offset, target.address);
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
        for event in self.peers.iter().flat_map(|peer| &peer.read) {
            if self.stream.wait(event).is_err() {
                return;
            }
        }
    }
}
