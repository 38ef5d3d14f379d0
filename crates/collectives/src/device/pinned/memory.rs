//! The memory that all ranks map: counters that they publish, and the reduction of its slots.
#![expect(unsafe_code, reason = "memory that other processes and the GPU write to")]

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{FallocateFlags, OFlag, fallocate, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::{Mode, fstat};

use super::channels::Channel;
use super::chunks::{Chunk, Work};
use super::layout::{COUNTER, LINE, Layout};
use crate::{Error, kernel, partition};

/// What is reduced before it is written to the results, past the caches: the bus reads memory faster than caches.
pub(super) const BLOCK: usize = 16 << 10;

/// What a rank says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    Here,
    /// By one of its channels.
    Done(usize),
}

/// The memory, mapped.
pub(super) struct Memory {
    pub(super) base: NonNull<u8>,
    pub(super) layout: Layout,
}

// SAFETY: the mapping lives as long as this; counters are atomics, the rest is used under the rules of the module.
unsafe impl Send for Memory {}

// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn create(layout: Layout) -> Result<(Memory, OwnedFd), Error> {
        let file = memfd_create("instep-device", MFdFlags::MFD_CLOEXEC)
            .map_err(|error| Error::system("create shared memory", error))?;
        // Allocated now: memory that runs out later would be a SIGBUS.
        fallocate(&file, FallocateFlags::empty(), 0, layout.total() as i64)
            .map_err(|error| Error::system("allocate shared memory", error))?;
        Ok((Memory::map(&file, layout)?, file))
    }

    /// Opens what another rank has made and named.
    pub(super) fn open(name: &Name, layout: Layout) -> Result<Memory, Error> {
        let [process, file, ..] = name.0;
        let path = format!("/proc/{process}/fd/{file}");
        let file = open(path.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|error| Error::system("open shared memory", error))?;
        // Processes have other numbers in other containers.
        if Name::of(&file)?.0[2..] != name.0[2..] {
            return Err(Error::invalid("the shared memory is another one"));
        }
        Memory::map(&file, layout)
    }

    pub(super) fn map(file: &OwnedFd, layout: Layout) -> Result<Memory, Error> {
        let size = NonZeroUsize::new(layout.total()).unwrap_or(NonZeroUsize::MIN);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, file.as_fd(), 0) }
            .map_err(|error| Error::system("map shared memory", error))?;
        Ok(Memory { base: base.cast(), layout })
    }

    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset)
    }

    pub(super) fn counter(&self, rank: usize, counter: Counter) -> &AtomicU64 {
        debug_assert!(rank < self.layout.world);
        let offset = match counter {
            Counter::Here => 0,
            Counter::Done(channel) => (1 + channel) * COUNTER,
        };
        // SAFETY: the counters lie at the start of the mapping, aligned, and everybody treats them as atomics.
        unsafe { &*self.at(rank * LINE + offset).cast::<AtomicU64>() }
    }

    pub(super) fn publish(&self, rank: usize, counter: Counter, value: u64) {
        self.counter(rank, counter).store(value, Ordering::Release);
    }

    pub(super) fn has(&self, rank: usize, counter: Counter, value: u64) -> bool {
        self.counter(rank, counter).load(Ordering::Acquire) >= value
    }

    pub(super) fn all_here(&self, value: u64) -> bool {
        (0..self.layout.world).all(|rank| self.has(rank, Counter::Here, value))
    }

    pub(super) fn all_done(&self, channels: usize, value: u64) -> bool {
        let done = |rank: usize| (0..channels).all(|channel| self.has(rank, Counter::Done(channel), value));
        (0..self.layout.world).all(done)
    }

    /// Reduces one channel's segment of a chunk into the results.
    pub(super) fn reduce(&self, who: Channel, chunk: Chunk, work: &Work, scratch: &mut Scratch) {
        let Work { dtype, reduction, channels, .. } = *work;
        let (layout, element) = (self.layout, dtype.size());
        let number = who.rank * channels + who.channel;
        let segment = partition::segment(chunk.bytes / element, element, layout.world * channels, number);
        let stream = kernel::copy_of(usize::MAX, usize::MAX);
        let block = BLOCK / element;
        for start in segment.clone().step_by(block) {
            let count = block.min(segment.end - start);
            scratch.inputs.clear();
            let place = |rank: usize| self.at(layout.place(rank, chunk.number) + start * element);
            scratch.inputs.extend((0..layout.world).map(|rank| place(rank).cast_const()));
            let block = scratch.block.as_mut_ptr().cast::<u8>();
            // SAFETY: rule 2 of the module: all slots are filled, nobody else writes this segment of the results and nobody
            // reads it; the block is as long as what is reduced at a time.
            unsafe {
                kernel::reduce(dtype, reduction, &scratch.inputs, &[block], count);
                stream(block, place(layout.results()), count * element);
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped once, and used by nobody any more.
        let _ = unsafe { munmap(self.base.cast(), self.layout.total()) };
    }
}

/// What a reduction needs, kept from chunk to chunk.
pub(super) struct Scratch {
    pub(super) inputs: Vec<*const u8>,
    pub(super) block: Vec<u64>,
}

// SAFETY: the addresses are only used while a chunk is reduced.
unsafe impl Send for Scratch {}

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch { inputs: Vec::new(), block: vec![0; BLOCK / size_of::<u64>()] }
    }
}

/// What others open the memory by: process, number of the file there, and what tells it from every other file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name([u64; 4]);

impl Name {
    pub(super) const NONE: Name = Name([0; 4]);

    pub(super) fn of(file: &OwnedFd) -> Result<Name, Error> {
        let found = fstat(file).map_err(|error| Error::system("look at shared memory", error))?;
        Ok(Name([std::process::id().into(), file.as_raw_fd() as u64, found.st_dev, found.st_ino]))
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(super) fn read(bytes: &[u8]) -> Name {
        let mut name = Name::NONE;
        for (word, bytes) in name.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        name
    }
}
