//! Writing: stores into mapped memory.
//!
//! A record is claimed by making its version odd, with an exchange that only one thread wins, and given back by making it
//! even again. Groups change seldom and have the same.
#![expect(unsafe_code, reason = "the file is memory")]

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::clock;
use crate::format::{
    self, Class, FILE_BYTES, FILE_WORDS, GROUP_WORDS, GROUPS, HEADER_WORDS, Identity, MAGIC, RECORD_WORDS, RECORDS,
    State, group, header, record, text_to_words,
};

/// Records that are looked at for a free one.
const TRIES: usize = 64;

/// The file of this process.
#[derive(Debug)]
pub struct Recorder {
    memory: NonNull<AtomicU64>,
    path: PathBuf,
    /// Who made it: a forked child has the same memory and must not speak for its parent.
    process: u32,
}

// SAFETY: the memory is only used as atomics, and is unmapped when nobody has the recorder any more.
unsafe impl Send for Recorder {}
// SAFETY: as above.
unsafe impl Sync for Recorder {}

impl Recorder {
    /// Makes the file of this process in a folder. It appears complete or not at all.
    pub fn create(folder: &Path, identity: &Identity) -> io::Result<Arc<Recorder>> {
        let rank = identity.rank.map_or_else(|| "none".to_owned(), |rank| rank.to_string());
        let path = folder.join(format!("rank-{rank}-{}.{}", identity.process, crate::folder::EXTENSION));
        let unfinished = path.with_extension("new");
        let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        // Now, while a full disk is an error: later it would be a signal that ends the process.
        fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES as i64)?;
        let length = NonZeroUsize::new(FILE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is as long.
        let memory = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, &file, 0) }?;
        let recorder = Recorder { memory: memory.cast(), path, process: std::process::id() };
        recorder.write_header(identity);
        std::fs::rename(&unfinished, &recorder.path)?;
        Ok(Arc::new(recorder))
    }

    fn write_header(&self, identity: &Identity) {
        let words = self.words();
        let set = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        set(header::PROCESS, u64::from(identity.process));
        set(header::PROCESS_STARTED, identity.process_started);
        set(header::RANK, identity.rank.map_or(0, |rank| u64::from(rank) + 1));
        set(header::WORLD, u64::from(identity.world_size));
        set(header::INCARNATION, identity.incarnation);
        set(header::MONOTONIC, clock::monotonic());
        set(header::WALL, clock::wall());
        for (from, text) in [(header::HOST, &identity.host), (header::JOB, &identity.job)] {
            for (index, word) in text_to_words::<{ header::TEXT }>(text).into_iter().enumerate() {
                set(from + index, word);
            }
        }
        words[header::MAGIC].store(MAGIC, Ordering::Release);
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, and lives as long as this.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), FILE_WORDS) }
    }

    fn group_words(&self, index: usize) -> &[AtomicU64] {
        &self.words()[HEADER_WORDS + index * GROUP_WORDS..][..GROUP_WORDS]
    }

    fn record_words(&self, index: usize) -> &[AtomicU64] {
        &self.words()[HEADER_WORDS + GROUPS * GROUP_WORDS + index * RECORD_WORDS..][..RECORD_WORDS]
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process is about to end by itself.
    pub fn end(&self) {
        if self.process == std::process::id() {
            self.words()[header::ENDED].store(1, Ordering::Release);
        }
    }

    /// A place for a group. Members are ranks of the job in the group's order, none for the group of all.
    pub fn group(self: &Arc<Recorder>, name: &str, members: &[u32]) -> GroupRecorder {
        let free = (0..GROUPS).find(|index| self.claim_group(*index, name, members));
        if free.is_none() {
            self.words()[header::LOST_GROUPS].fetch_add(1, Ordering::Relaxed);
        }
        GroupRecorder { recorder: Arc::clone(self), place: free, messages: AtomicU64::new(0) }
    }

    fn claim_group(&self, index: usize, name: &str, members: &[u32]) -> bool {
        let words = self.group_words(index);
        let version = words[group::VERSION].load(Ordering::Relaxed);
        if words[group::STATE].load(Ordering::Relaxed) == 1 || !claim(&words[group::VERSION], version) {
            return false;
        }
        let listed = if members.len() <= group::MOST_MEMBERS { members } else { &[] };
        let set = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        set(group::STATE, 1);
        set(group::PLACE, 0);
        set(group::GENERATION, 0);
        set(group::MEMBERS, listed.len() as u64);
        for (at, word) in text_to_words::<{ group::NAME_WORDS }>(name).into_iter().enumerate() {
            set(group::NAME + at, word);
        }
        for (at, pair) in listed.chunks(2).enumerate() {
            set(group::MEMBER_LIST + at, u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32);
        }
        set(group::GIVEN, 0);
        set(group::ENDED, 0);
        words[group::EPOCH].fetch_add(1, Ordering::Relaxed);
        words[group::VERSION].store(version + 2, Ordering::Release);
        true
    }

    /// A record that nobody needs any more, with its version, which is odd now.
    fn free_record(&self) -> Option<(usize, u64)> {
        for _ in 0..TRIES {
            let index = self.words()[header::CURSOR].fetch_add(1, Ordering::Relaxed) as usize % RECORDS;
            let words = self.record_words(index);
            let version = words[record::VERSION].load(Ordering::Relaxed);
            let pending = format::state(words[record::PLACE].load(Ordering::Relaxed)).is_some_and(State::is_pending);
            if !pending && claim(&words[record::VERSION], version) {
                return Some((index, version + 1));
            }
        }
        self.words()[header::LOST].fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // SAFETY: nobody has the memory any more. A forked child unmaps its own view alone.
        let _ = unsafe { munmap(self.memory.cast(), FILE_BYTES) };
    }
}

/// Makes a version odd, if nobody else did.
fn claim(version: &AtomicU64, seen: u64) -> bool {
    let won = seen.is_multiple_of(2)
        && version.compare_exchange(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
    // What follows must not be seen before the odd version.
    fence(Ordering::Release);
    won
}

/// What a caller begins.
#[derive(Clone, Copy, Debug)]
pub struct Started<'a> {
    /// Whether it is a message.
    pub class: Class,
    /// As torch spells it.
    pub name: &'a str,
    /// Element type.
    pub dtype: &'a str,
    /// Of one rank's part.
    pub bytes: u64,
    /// The root, or the other end.
    pub peer: Option<u32>,
    /// Of a message.
    pub tag: u64,
}

/// A record in the hands of whoever does the operation.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    place: Option<(usize, u64)>,
    epoch: u64,
    class: Class,
    started: bool,
}

/// Where the operations of one group are written.
#[derive(Debug)]
pub struct GroupRecorder {
    recorder: Arc<Recorder>,
    /// None where there were too many groups.
    place: Option<usize>,
    messages: AtomicU64,
}

impl GroupRecorder {
    /// The group has these ranks now, and begins to count again.
    pub fn connected(&self, rank: usize, size: usize, generation: u64) {
        self.messages.store(0, Ordering::Relaxed);
        self.change(|words| {
            words[group::PLACE].store(rank as u64 & 0xffff_ffff | (size as u64) << 32, Ordering::Relaxed);
            words[group::GENERATION].store(generation, Ordering::Relaxed);
            words[group::GIVEN].store(0, Ordering::Relaxed);
            words[group::ENDED].store(0, Ordering::Relaxed);
            words[group::EPOCH].fetch_add(1, Ordering::Relaxed);
        });
    }

    fn change(&self, change: impl FnOnce(&[AtomicU64])) {
        let Some(index) = self.place else { return };
        let words = self.recorder.group_words(index);
        let version = words[group::VERSION].load(Ordering::Relaxed);
        if claim(&words[group::VERSION], version) {
            change(words);
            words[group::VERSION].store(version + 2, Ordering::Release);
        }
    }

    /// An operation waits for its turn. Collectives of a group must come one after the other.
    pub fn submitted(&self, operation: &Started<'_>) -> Entry {
        self.write(operation, State::Submitted)
    }

    /// An operation begins at once.
    pub fn begun(&self, operation: &Started<'_>) -> Entry {
        self.write(operation, State::Started)
    }

    fn write(&self, operation: &Started<'_>, state: State) -> Entry {
        let class = operation.class;
        let Some(index) = self.place else { return Entry { place: None, epoch: 0, class, started: true } };
        let epoch = self.recorder.group_words(index)[group::EPOCH].load(Ordering::Relaxed);
        let nowhere = Entry { place: None, epoch, class, started: true };
        let given = match class {
            Class::Collective => &self.recorder.group_words(index)[group::GIVEN],
            _ => &self.messages,
        };
        let sequence = given.fetch_add(1, Ordering::Relaxed);
        let Some((at, version)) = self.recorder.free_record() else { return nowhere };
        let words = self.recorder.record_words(at);
        let set = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        let now = clock::monotonic();
        set(record::PLACE, format::place(index, epoch, class, state));
        set(record::SEQUENCE, sequence);
        for (index, word) in text_to_words::<{ record::NAME_WORDS }>(operation.name).into_iter().enumerate() {
            set(record::NAME + index, word);
        }
        set(record::DTYPE, text_to_words::<1>(operation.dtype)[0]);
        set(record::BYTES, operation.bytes);
        set(record::PEER, operation.peer.map_or(0, |peer| u64::from(peer) + 1));
        set(record::TAG, operation.tag);
        set(record::SUBMITTED, now);
        set(record::STARTED, if state == State::Started { now } else { 0 });
        set(record::ENDED, 0);
        words[record::VERSION].store(version + 1, Ordering::Release);
        Entry { place: Some((at, version + 1)), epoch, class, started: state == State::Started }
    }

    /// Its turn has come; nothing for one that began at once.
    pub fn started(&self, entry: &mut Entry) {
        if !std::mem::replace(&mut entry.started, true) {
            self.change_state(entry, State::Started, record::STARTED);
        }
    }

    /// It has ended, well or not.
    pub fn ended(&self, mut entry: Entry, well: bool) {
        if let (Some(index), Class::Collective) = (self.place, entry.class) {
            let words = self.recorder.group_words(index);
            // What failed because the group got other ranks is none of theirs.
            if words[group::EPOCH].load(Ordering::Relaxed) == entry.epoch {
                words[group::ENDED].fetch_add(1, Ordering::Relaxed);
            }
        }
        self.change_state(&mut entry, if well { State::Done } else { State::Failed }, record::ENDED);
    }

    fn change_state(&self, entry: &mut Entry, state: State, time: usize) {
        let (Some(index), Some((at, version))) = (self.place, entry.place) else { return };
        let words = self.recorder.record_words(at);
        if claim(&words[record::VERSION], version) {
            words[time].store(clock::monotonic(), Ordering::Relaxed);
            words[record::PLACE].store(format::place(index, entry.epoch, entry.class, state), Ordering::Relaxed);
            words[record::VERSION].store(version + 2, Ordering::Release);
            entry.place = Some((at, version + 2));
        }
    }
}

impl Drop for GroupRecorder {
    fn drop(&mut self) {
        if self.recorder.process == std::process::id() {
            self.change(|words| words[group::STATE].store(2, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests;
