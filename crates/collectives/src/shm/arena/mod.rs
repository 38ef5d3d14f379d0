//! The memory that the ranks of a group share.
//!
//! ```text
//! header    magic, world, slot size, channels, abort reason (why the group is aborted, written once)
//! flags     one line per rank: what streams of GPUs wait for (see `device::flags`), on pages of their own
//! controls  one per rank: counters, fingerprints, futex
//! rows      one per rank and buffer: sizes for each peer
//! slots     two per rank, each a step's worth of data
//! ```
//! Controls, rows and slots are there once per *channel*: what one thread of every rank works with (see `transport::channels`).
//!
//! An operation is a number of *steps*, the same on every rank; steps are counted through the life of the arena. A rank
//! moves its counters forward with release stores and waits for those of others with acquire loads:
//!
//! 1. `ready > s`: its slot for step `s` is filled (and at the first step of an operation: its fingerprint is written).
//! 2. Between a rank's `ready > s` and its own `done > s` a peer may read that rank's slot for step `s`, and write to the
//!    part of it that the operation gives to this peer alone.
//! 3. `done > s`: it touches no other rank's slot for step `s` any more.
//! 4. A rank reads what others put into its slot for step `s` when every rank's `done > s`, and writes it for step `s`
//!    itself only when every rank's `done > s - 2`.
//! 5. Or the operation gives every rank a part of its own slot, the same in every step, for what it makes of the others': it
//!    writes there when every rank's `ready > s`, and all others read it, from its `done > s` until their `ready > s + 2`.
//!
//! The file is anonymous (memfd), sealed against resizing, and gone with the last process that maps it.
#![expect(unsafe_code, reason = "maps memory that other processes write to")]

mod abort;
pub(crate) mod control;
mod event;
pub(crate) mod late;
#[cfg(all(test, loom))]
pub(crate) mod model;

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;
use crate::abort::ABORT_WORDS;
use crate::partition::step_bytes;
use crate::rank::LocalRank;
use control::Control;
pub(crate) use control::DEPTH;
use event::{AtomicU32, AtomicU64};
pub(crate) use event::{load, store};
use late::LateRanks;

/// More threads of a rank than this are not worth their memory.
pub(crate) const MAX_CHANNELS: usize = 8;

/// Bytes of a rank's line of flags.
pub(crate) const FLAG_LINE: usize = 128;

const MAGIC: u64 = u64::from_le_bytes(*b"instepA3");
const PAGE: usize = 4096;
/// Where the flags lie: behind the header.
const FLAGS: usize = size_of::<ArenaHeader>().next_multiple_of(PAGE);

#[cfg_attr(loom, derive(Default))]
#[repr(C)]
struct ArenaHeader {
    magic: u64,
    world: u64,
    slot_bytes: u64,
    channels: u64,
    abort_state: AtomicU32,
    reason: [AtomicU64; ABORT_WORDS],
    /// Who of other hosts has not come, see `late`.
    late: LateRanks,
}

/// Where everything lies, from the number of ranks, the size of a slot and the number of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    world: usize,
    slot_bytes: usize,
    channels: usize,
}

impl Layout {
    /// The first channel has slots of all their bytes. The others have what a step uses of one when there is a core for every
    /// rank: where there is none, there are no other channels.
    fn channel(self, number: usize) -> ChannelLayout {
        let Layout { world, slot_bytes, .. } = self;
        let first = ChannelLayout { start: FLAGS + self.flag_bytes(), world, slot_bytes };
        let other = ChannelLayout {
            start: 0,
            slot_bytes: step_bytes(slot_bytes, world, world).next_multiple_of(PAGE),
            ..first
        };
        match number.checked_sub(1) {
            None => first,
            Some(before) => ChannelLayout { start: first.end() + before * other.end(), ..other },
        }
    }

    fn total(self) -> usize {
        self.channel(self.channels).start
    }

    fn flag_bytes(self) -> usize {
        (self.world * FLAG_LINE).next_multiple_of(PAGE)
    }
}

/// Where a channel's part of the memory lies.
#[derive(Clone, Copy, Debug)]
struct ChannelLayout {
    start: usize,
    world: usize,
    slot_bytes: usize,
}

impl ChannelLayout {
    const fn controls(self) -> usize {
        self.start
    }
    const fn rows(self) -> usize {
        (self.controls() + self.world * size_of::<Control>()).next_multiple_of(PAGE)
    }
    const fn row_words(self) -> usize {
        2 * self.world
    }
    const fn slots(self) -> usize {
        (self.rows() + self.world * DEPTH as usize * self.row_words() * size_of::<AtomicU64>()).next_multiple_of(PAGE)
    }
    const fn end(self) -> usize {
        self.slots() + self.world * DEPTH as usize * self.slot_bytes
    }
}

/// A mapping of the shared memory of one group, and the part of it that is one channel's.
pub(crate) struct Arena {
    memory: Arc<Mapping>,
    layout: Layout,
    channel: ChannelLayout,
}

/// Mapped until nobody has it.
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping lives as long as this. Headers, controls and rows are only touched through atomics (the plain
// words of the header are written before the file is shared); slots only through raw pointers under the protocol above.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Arena {
    /// Makes the memory; the file is what the other ranks need in order to map it too.
    pub(crate) fn create(world: usize, slot_bytes: usize, channels: usize) -> Result<(Arena, OwnedFd), Error> {
        let layout = Layout { world, slot_bytes, channels };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file =
            memfd_create("instep-collectives", flags).map_err(|error| Error::system("create shared memory", error))?;
        let length = layout.total() as i64;
        // Allocated now: memory that runs out later would be a SIGBUS in the middle of an operation.
        fallocate(&file, FallocateFlags::empty(), 0, length)
            .map_err(|error| Error::system("allocate shared memory", error))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(|error| Error::system("seal shared memory", error))?;
        let memory = Mapping::map(&file, layout.total())?;
        // SAFETY: the mapping is at least a header long, page-aligned, zeroed, and nobody else has it yet.
        unsafe {
            let header = memory.base.cast::<ArenaHeader>().as_ptr();
            (*header).magic = MAGIC;
            (*header).world = world as u64;
            (*header).slot_bytes = slot_bytes as u64;
            (*header).channels = channels as u64;
        }
        Ok((Arena::new(memory, layout), file))
    }

    /// Maps what another rank made, with as many channels as that one found right.
    pub(crate) fn open(file: &OwnedFd, world: usize, slot_bytes: usize) -> Result<Arena, Error> {
        let size = nix::sys::stat::fstat(file).map_err(|error| Error::system("look at shared memory", error))?.st_size;
        let size = usize::try_from(size).unwrap_or(0);
        let different =
            || Error::invalid("the shared memory is laid out differently: all ranks must run the same version");
        if size < (Layout { world, slot_bytes, channels: 1 }).total() {
            return Err(different());
        }
        let memory = Mapping::map(file, size)?;
        let header = memory.header();
        let layout = Layout { world, slot_bytes, channels: header.channels as usize };
        let found = (header.magic, header.world, header.slot_bytes);
        // So many channels that their size overflows are none of ours.
        let channels_fit = (1..=MAX_CHANNELS).contains(&layout.channels);
        if found != (MAGIC, world as u64, slot_bytes as u64) || !channels_fit || layout.total() != size {
            return Err(different());
        }
        Ok(Arena::new(memory, layout))
    }

    fn new(memory: Mapping, layout: Layout) -> Arena {
        Arena { memory: Arc::new(memory), layout, channel: layout.channel(0) }
    }

    pub(crate) fn channels(&self) -> usize {
        self.layout.channels
    }

    /// The same group's memory, with the controls, rows and slots of another channel.
    pub(crate) fn channel(&self, number: usize) -> Arena {
        assert!(number < self.layout.channels);
        Arena { memory: Arc::clone(&self.memory), layout: self.layout, channel: self.layout.channel(number) }
    }

    pub(crate) fn world(&self) -> usize {
        self.layout.world
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.channel.slot_bytes
    }

    fn header(&self) -> &ArenaHeader {
        self.memory.header()
    }

    pub(crate) fn control(&self, rank: LocalRank) -> &Control {
        self.control_of(self.channel, rank)
    }

    fn control_of(&self, channel: ChannelLayout, rank: LocalRank) -> &Control {
        assert!(rank.0 < self.layout.world);
        // SAFETY: the controls of all channels and ranks lie inside the mapping, aligned, and consist of atomics.
        unsafe { self.memory.base.add(channel.controls()).cast::<Control>().add(rank.0).as_ref() }
    }

    /// Wakes who sleeps, in every channel.
    fn wake_all(&self) {
        for channel in 0..self.layout.channels {
            LocalRank::all(self.layout.world)
                .for_each(|rank| self.control_of(self.layout.channel(channel), rank).wake());
        }
    }

    /// Sizes that `rank` publishes for the step.
    pub(crate) fn row(&self, rank: LocalRank, step: u64) -> Row<'_> {
        assert!(rank.0 < self.layout.world);
        let words = self.channel.row_words();
        let index = rank.0 * DEPTH as usize + (step % DEPTH) as usize;
        // SAFETY: rows of all ranks and buffers lie inside the mapping, aligned, and consist of atomics.
        let words = unsafe {
            let start = self.memory.base.add(self.channel.rows()).cast::<AtomicU64>().add(index * words);
            std::slice::from_raw_parts(start.as_ptr(), words)
        };
        Row { words, world: self.layout.world }
    }

    /// Whole pages with a line of flags for each rank, zero at first; nobody here reads or writes them.
    pub(crate) fn flags(&self) -> (*mut u8, usize) {
        // SAFETY: the flags lie inside the mapping.
        (unsafe { self.memory.base.add(FLAGS).as_ptr() }, self.layout.flag_bytes())
    }

    /// The slot of `rank` for the step: `slot_bytes` bytes, to be used under the protocol of this module.
    pub(crate) fn slot(&self, rank: LocalRank, step: u64) -> *mut u8 {
        assert!(rank.0 < self.layout.world);
        let index = rank.0 * DEPTH as usize + (step % DEPTH) as usize;
        // SAFETY: slots of all ranks and buffers lie inside the mapping.
        unsafe { self.memory.base.add(self.channel.slots() + index * self.channel.slot_bytes).as_ptr() }
    }
}

impl Mapping {
    fn map(file: &OwnedFd, length: usize) -> Result<Mapping, Error> {
        let size = NonZeroUsize::new(length).expect("an arena has a header");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap(None, size, protection, flags, file.as_fd(), 0) };
        let base = mapped.map(NonNull::cast).map_err(|error| Error::system("map shared memory", error))?;
        Ok(Mapping { base, length })
    }

    fn header(&self) -> &ArenaHeader {
        // SAFETY: the mapping starts with a header; its plain words do not change once it is shared.
        unsafe { self.base.cast::<ArenaHeader>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no reference outlives this.
        let unmapped = unsafe { munmap(self.base.cast::<c_void>(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// What a rank tells every peer about a step, besides its slot.
pub(crate) struct Row<'a> {
    words: &'a [AtomicU64],
    world: usize,
}

impl Row<'_> {
    fn at(&self, part: usize, peer: LocalRank) -> &AtomicU64 {
        &self.words[part * self.world + peer.0]
    }
    /// Bytes this rank has for `peer`.
    pub(crate) fn sends(&self, peer: LocalRank) -> &AtomicU64 {
        self.at(0, peer)
    }
    /// Bytes this rank expects from `peer`.
    pub(crate) fn expects(&self, peer: LocalRank) -> &AtomicU64 {
        self.at(1, peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_one_memory_and_a_foreign_file_is_refused() {
        let (one, file) = Arena::create(3, PAGE, 2).unwrap();
        let other = Arena::open(&file, 3, PAGE).unwrap();
        assert_eq!(other.channels(), 2);
        store(one.row(LocalRank(2), 1).sends(LocalRank(0)), 77);
        store(one.channel(1).row(LocalRank(2), 1).sends(LocalRank(0)), 78);
        assert_eq!(load(other.row(LocalRank(2), 1).sends(LocalRank(0))), 77);
        assert_eq!(load(other.row(LocalRank(2), 0).sends(LocalRank(0))), 0);
        assert_eq!(load(other.channel(1).row(LocalRank(2), 1).sends(LocalRank(0))), 78);
        assert!(Arena::open(&file, 4, PAGE).is_err());
        let foreign = memfd_create("foreign", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&foreign, Layout { world: 3, slot_bytes: PAGE, channels: 1 }.total() as i64).unwrap();
        assert!(Arena::open(&foreign, 3, PAGE).is_err());
    }

    #[test]
    fn parts_do_not_overlap() {
        for world in [1, 2, 9, 100] {
            let layout = Layout { world, slot_bytes: 4 * PAGE, channels: 3 };
            assert!(size_of::<ArenaHeader>() <= layout.channel(0).controls());
            for number in 0..layout.channels {
                let channel = layout.channel(number);
                assert!(channel.controls() + world * size_of::<Control>() <= channel.rows());
                assert!(channel.rows() + world * 2 * channel.row_words() * 8 <= channel.slots());
                assert_eq!(channel.end(), layout.channel(number + 1).start);
            }
            assert_eq!(layout.channel(2).end(), layout.total());
        }
    }
}
