//! Chunks, channels, and ranks whose GPUs take their time.

use std::sync::Arc;

use super::channels::{Channel, ChannelThreads};
use super::chunks::{Chunk, Chunking, Work, channels_for};
use super::layout::{DEPTH, LINE, Layout, MAX_MEMORY, PAGE};
use super::memory::{Counter, Memory, Name, Scratch};
use super::progress::{ChunkIo, Progress};
use crate::dtype::{DataType, Reduction};
use proptest::prelude::*;

#[test]
fn nothing_overlaps_and_memory_is_bounded() {
    for world in [1, 2, 3, 8, 16, 64, 256] {
        let layout = Layout::of(world);
        let mut end = world * LINE;
        for rank in 0..=layout.results() {
            for chunk in 0..DEPTH as u64 {
                let place = layout.place(rank, chunk);
                assert!(place >= end && place.is_multiple_of(PAGE));
                assert_eq!(place, layout.place(rank, chunk + DEPTH as u64));
                end = place + layout.longest;
            }
        }
        assert_eq!(end, layout.total());
        assert!(end <= MAX_MEMORY + (world * LINE).next_multiple_of(PAGE));
    }
}

#[test]
fn chunks_cover_everything_once_and_fit() {
    for layout in [Layout::of(2), Layout::of(8), Layout::of(64), Layout { world: 3, longest: PAGE }] {
        for bytes in [1, 4096, 5000, 512 << 10, (512 << 10) + 1, 1 << 20, (3 << 20) - 7, 100 << 20] {
            let chunking = Chunking::new(bytes, layout);
            let starts: Vec<usize> = (0..=chunking.count()).map(|index| chunking.start(index)).collect();
            assert_eq!((starts[0], starts[chunking.count()]), (0, bytes));
            assert!(starts.windows(2).all(|pair| (1..=layout.longest).contains(&(pair[1] - pair[0]))));
            assert!(starts[..chunking.count()].iter().all(|start| start.is_multiple_of(PAGE)));
        }
    }
    let lengths = |bytes: usize, world: usize| {
        (Chunking::new(bytes, Layout::of(world)).count(), Chunking::new(bytes, Layout::of(world)).step >> 10)
    };
    assert_eq!(
        [256 << 10, 1 << 20, 2 << 20, 8 << 20].map(|bytes| lengths(bytes, 4)),
        [(1, 256), (2, 512), (4, 512), (8, 1024)]
    );
    assert_eq!(
        [256 << 10, 1 << 20, 2 << 20, 8 << 20].map(|bytes| lengths(bytes, 8)),
        [(1, 256), (2, 512), (2, 1024), (8, 1024)]
    );
}

#[test]
fn channels_are_woken_where_they_help() {
    let channels = |bytes: usize, world: usize| channels_for(Chunking::new(bytes, Layout::of(world)), world);
    assert_eq!([8, 64 << 10, 256 << 10, 1 << 20, 3 << 20].map(|bytes| channels(bytes, 2)), [1, 1, 4, 4, 4]);
    assert_eq!([256 << 10, 1 << 20, 4 << 20].map(|bytes| channels(bytes, 4)), [2, 4, 1]);
    assert_eq!([256 << 10, 1 << 20, 2 << 20].map(|bytes| channels(bytes, 8)), [1, 2, 1]);
}

/// A rank whose GPU takes its time: copies happen when they are asked about often enough.
struct Slow<'a> {
    memory: &'a Memory,
    rank: usize,
    work: Work,
    input: &'a [u8],
    output: &'a mut Vec<u8>,
    scratch: Scratch,
    random: u64,
    coming: Option<Chunk>,
    going: Vec<Chunk>,
}

impl Slow<'_> {
    fn now(&mut self) -> bool {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 60 < 4
    }

    fn bytes(&self, slots: usize, chunk: Chunk) -> *mut u8 {
        self.memory.at(self.memory.layout.place(slots, chunk.number))
    }

    fn finish(&mut self, chunk: Chunk) {
        let from = self.bytes(self.memory.layout.results(), chunk);
        // SAFETY: a place is longer than a chunk, the output is the tensor.
        unsafe { std::ptr::copy_nonoverlapping(from, self.output[chunk.start..].as_mut_ptr(), chunk.bytes) };
    }
}

impl ChunkIo for Slow<'_> {
    type Error = ();

    fn order(&mut self, chunk: Chunk) -> Result<(), ()> {
        if let Some(before) = self.coming.replace(chunk) {
            assert!(before.number < chunk.number);
        }
        Ok(())
    }

    fn is_here(&mut self, chunk: Chunk) -> Result<bool, ()> {
        if let Some(coming) = self.coming.filter(|_| self.now()) {
            let to = self.bytes(self.rank, coming);
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(self.input[coming.start..].as_ptr(), to, coming.bytes) };
            self.coming = None;
        }
        if self.now()
            && let Some(gone) = self.going.first().copied()
        {
            self.finish(gone);
            self.going.remove(0);
        }
        let place = |one: u64| one % DEPTH as u64;
        Ok(self.coming.is_none() && self.going.iter().all(|gone| place(gone.number) != place(chunk.number)))
    }

    fn publish_here(&mut self, value: u64) {
        self.memory.publish(self.rank, Counter::Here, value);
    }

    fn all_here(&mut self, value: u64) -> bool {
        self.memory.all_here(value)
    }

    fn reduce(&mut self, chunk: Chunk) {
        self.memory.reduce(Channel { rank: self.rank, channel: 0 }, chunk, &self.work, &mut self.scratch);
        self.memory.publish(self.rank, Counter::Done(0), chunk.number + 1);
    }

    fn all_done(&mut self, value: u64) -> bool {
        self.memory.all_done(self.work.channels, value)
    }

    fn take(&mut self, chunk: Chunk) -> Result<(), ()> {
        self.going.push(chunk);
        Ok(())
    }
}

fn value(rank: usize, operation: usize, at: usize) -> u8 {
    (rank * 31 + operation * 17 + at * 7 + at / 251) as u8
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Ranks that share nothing but the memory, with GPUs that take their time, get the sum, operation by operation.
    #[test]
    fn everybody_gets_the_sum(
        world in 1usize..5, channels in 1usize..3, sizes in prop::collection::vec(1usize..60_000, 1..5), seed: u64,
    ) {
        let layout = Layout { world, longest: PAGE };
        let (memory, file) = Memory::create(layout).unwrap();
        let name = Name::read(&Name::of(&file).unwrap().bytes());
        let mut first = Some(memory);
        std::thread::scope(|scope| {
            for rank in 0..world {
                let memory = first.take().unwrap_or_else(|| Memory::open(&name, layout).unwrap());
                let sizes = &sizes;
                scope.spawn(move || rank_main(Arc::new(memory), rank, channels, sizes, seed));
            }
        });
    }
}

fn rank_main(memory: Arc<Memory>, rank: usize, channels: usize, sizes: &[usize], seed: u64) {
    let threads = ChannelThreads::start(&memory, rank, channels).unwrap();
    let (mut first, mut random) = (0, seed ^ rank as u64);
    for (operation, bytes) in sizes.iter().enumerate() {
        let input: Vec<u8> = (0..*bytes).map(|at| value(rank, operation, at)).collect();
        let mut output = vec![0; *bytes];
        let chunking = Chunking::new(*bytes, memory.layout);
        let work = Work { first, chunking, dtype: DataType::U8, reduction: Reduction::Sum, channels };
        let (scratch, coming, going) = (Scratch::new(), None, Vec::new());
        let mut slow =
            Slow { memory: &memory, rank, work, input: &input, output: &mut output, scratch, random, coming, going };
        let mut progress = Progress::new(work);
        progress.begin(&mut slow).unwrap();
        threads.wake(&work);
        while !progress.is_over() {
            if !progress.advance(&mut slow).unwrap() {
                std::thread::yield_now();
            }
        }
        for gone in std::mem::take(&mut slow.going) {
            slow.finish(gone);
        }
        (first, random) = (work.end(), slow.random);
        let world = memory.layout.world;
        let sum = |at: usize| (0..world).fold(0u8, |sum, rank| sum.wrapping_add(value(rank, operation, at)));
        assert!(output.iter().enumerate().all(|(at, found)| *found == sum(at)));
    }
}
