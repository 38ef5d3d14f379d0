//! The file as words: where things lie, and what they become.
//!
//! ```text
//! header   512 words   magic, who writes, clocks, whether it has ended, how many records were begun, the ledger
//! groups   64 × 256    version, state, name, place in it, generation, operations given and ended, its members
//! ring     1024 × 12   version, group and state, sequence, name, element type, bytes, peer, tag, three times
//! ```
//!
//! Words are 64 bits in the order of the machine: nobody reads the file elsewhere.

use serde::{Deserialize, Serialize};

/// "instep", and the version of the layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"instep\0\x01");
pub(crate) const HEADER_WORDS: usize = 512;
pub(crate) const GROUPS: usize = 64;
pub(crate) const GROUP_WORDS: usize = 256;
pub(crate) const RECORDS: usize = 1024;
pub(crate) const RECORD_WORDS: usize = 12;
pub(crate) const FILE_WORDS: usize = HEADER_WORDS + GROUPS * GROUP_WORDS + RECORDS * RECORD_WORDS;
/// How long the file is.
pub(crate) const FILE_BYTES: usize = FILE_WORDS * 8;

/// Words of the header.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const PROCESS: usize = 1;
    pub(crate) const PROCESS_STARTED: usize = 2;
    pub(crate) const RANK: usize = 3;
    pub(crate) const WORLD: usize = 4;
    pub(crate) const INCARNATION: usize = 5;
    pub(crate) const MONOTONIC: usize = 6;
    pub(crate) const WALL: usize = 7;
    pub(crate) const ENDED: usize = 8;
    pub(crate) const CURSOR: usize = 9;
    pub(crate) const LOST: usize = 10;
    pub(crate) const LOST_GROUPS: usize = 11;
    pub(crate) const HOST: usize = 16;
    pub(crate) const JOB: usize = 24;
    pub(crate) const TEXT: usize = 8;
    /// See [`crate::ledger`].
    pub(crate) const LEDGER_VERSION: usize = 64;
    pub(crate) const LEDGER_CHANGES: usize = 65;
    pub(crate) const LEDGER_ACCOUNTS: usize = 66;
}

/// Words of a group. The counters stand outside of what the version guards: each is one word.
pub(crate) mod group {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const STATE: usize = 1;
    pub(crate) const PLACE: usize = 2;
    pub(crate) const GENERATION: usize = 3;
    pub(crate) const NAME: usize = 4;
    pub(crate) const NAME_WORDS: usize = 8;
    pub(crate) const MEMBERS: usize = 12;
    pub(crate) const MEMBER_LIST: usize = 13;
    /// Counts its connections over all groups that had the place: operations of another time are not its own.
    pub(crate) const EPOCH: usize = 253;
    pub(crate) const GIVEN: usize = 254;
    pub(crate) const ENDED: usize = 255;
    /// Ranks that can be listed, two in a word.
    pub(crate) const MOST_MEMBERS: usize = (EPOCH - MEMBER_LIST) * 2;
}

/// Words of a record.
pub(crate) mod record {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const PLACE: usize = 1;
    pub(crate) const SEQUENCE: usize = 2;
    pub(crate) const NAME: usize = 3;
    pub(crate) const NAME_WORDS: usize = 2;
    pub(crate) const DTYPE: usize = 5;
    pub(crate) const BYTES: usize = 6;
    pub(crate) const PEER: usize = 7;
    pub(crate) const TAG: usize = 8;
    pub(crate) const SUBMITTED: usize = 9;
    pub(crate) const STARTED: usize = 10;
    pub(crate) const ENDED: usize = 11;
}

/// Who writes a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Identity {
    /// Its number in the job, if it has one.
    pub rank: Option<u32>,
    /// Ranks of the job; 0 if unknown.
    pub world_size: u32,
    /// How often the workers were restarted before.
    pub incarnation: u64,
    /// Where it runs.
    pub host: String,
    /// The job's name.
    pub job: String,
    pub process: u32,
    /// When that started, in the kernel's ticks since boot: a process id alone may be somebody else's by now.
    pub process_started: u64,
}

/// What kind of operation it is, as far as waiting goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Class {
    /// Every rank of the group takes part.
    Collective = 1,
    /// To one rank.
    Send,
    /// From one rank, or from any.
    Receive,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    /// Given to the group, behind others.
    Submitted = 1,
    /// Under way.
    Started,
    /// Ended well.
    Done,
    /// Ended otherwise.
    Failed,
}

impl State {
    /// Whether it has not ended.
    pub fn is_pending(self) -> bool {
        self <= State::Started
    }
}

/// One operation, as it is read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Operation {
    /// Which of [`crate::Snapshot::groups`].
    pub group: usize,
    /// Which time of that place.
    pub(crate) epoch: u16,
    /// Collectives of a group are counted from 0 since it was connected, and messages by themselves.
    pub sequence: u64,
    /// As torch spells it.
    pub name: String,
    /// Element type; empty for a barrier.
    pub dtype: String,
    /// Of one rank's part; 0 where parts differ.
    pub bytes: u64,
    /// The root, or the other end of a message, as a rank of the group.
    pub peer: Option<u32>,
    /// Of a message.
    pub tag: u64,
    /// Whether it is a message.
    pub class: Class,
    /// How far it is.
    pub state: State,
    /// Monotonic nanoseconds; 0 where that has not happened.
    pub submitted: u64,
    /// Likewise.
    pub started: u64,
    /// Likewise.
    pub ended: u64,
}

/// A group, as it is read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Group {
    /// Its place in the file.
    pub index: usize,
    pub(crate) epoch: u16,
    /// The same on all of its ranks; groups of other ranks may have it, too.
    pub name: String,
    /// This process's number in it.
    pub rank: u32,
    /// Ranks in it.
    pub size: u32,
    /// Counts its connections.
    pub generation: u64,
    /// Whether the process has left it.
    pub left: bool,
    /// Ranks of the job, in the order of the group; empty: the job's own ranks, or too many to list.
    pub members: Vec<u32>,
    /// Collectives given to it since it was connected.
    pub given: u64,
    /// Collectives ended: the next has this number.
    pub ended: u64,
}

impl Group {
    /// The job's rank of a rank of the group; none when they were too many to list.
    pub fn job_rank(&self, rank: u32) -> Option<u32> {
        if self.members.is_empty() { Some(rank) } else { self.members.get(rank as usize).copied() }
    }

    /// Whether another rank's record is of the same group.
    pub fn is(&self, other: &Self) -> bool {
        (&self.name, self.generation, &self.members) == (&other.name, other.generation, &other.members)
    }
}

/// Why a file says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is shorter than every record file.
    TooShort,
    /// It begins otherwise: something else, or of another version.
    NotARecord,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Unreadable::TooShort => "the file is shorter than a recorder's",
            Unreadable::NotARecord => "the file is not a recorder of this version",
        })
    }
}

impl std::error::Error for Unreadable {}

/// Text in words, cut at a character.
pub(crate) fn text_to_words<const WORDS: usize>(text: &str) -> [u64; WORDS] {
    let mut end = text.len().min(WORDS * 8);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = &text.as_bytes()[..end];
    std::array::from_fn(|word| {
        u64::from_le_bytes(std::array::from_fn(|byte| bytes.get(word * 8 + byte).copied().unwrap_or(0)))
    })
}

/// Text from words. What people could mistake for something else, control characters say, is replaced.
pub(crate) fn words_to_text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// The group's place in the file and epoch, class and state of a record.
pub(crate) fn place(group: usize, epoch: u64, class: Class, state: State) -> u64 {
    group as u64 | epoch << 48 | u64::from(class as u8) << 32 | u64::from(state as u8) << 40
}

/// The state in a record's place; none where nothing was ever written.
pub(crate) fn state(place: u64) -> Option<State> {
    [State::Submitted, State::Started, State::Done, State::Failed]
        .into_iter()
        .find(|state| *state as u8 == (place >> 40) as u8)
}

/// A record, if its words make sense.
pub(crate) fn operation(words: &[u64]) -> Option<Operation> {
    let place = words[record::PLACE];
    let class = [Class::Collective, Class::Send, Class::Receive]
        .into_iter()
        .find(|class| *class as u8 == (place >> 32) as u8)?;
    let group = place as u32 as usize;
    if group >= GROUPS {
        return None;
    }
    Some(Operation {
        group,
        epoch: (place >> 48) as u16,
        sequence: words[record::SEQUENCE],
        name: words_to_text(&words[record::NAME..record::NAME + record::NAME_WORDS]),
        dtype: words_to_text(&words[record::DTYPE..=record::DTYPE]),
        bytes: words[record::BYTES],
        peer: u32::try_from(words[record::PEER]).ok().and_then(|peer| peer.checked_sub(1)),
        tag: words[record::TAG],
        class,
        state: state(place)?,
        submitted: words[record::SUBMITTED],
        started: words[record::STARTED],
        ended: words[record::ENDED],
    })
}

/// A group, if its words make sense.
pub(crate) fn group_of(index: usize, words: &[u64]) -> Option<Group> {
    let left = match words[group::STATE] {
        1 => false,
        2 => true,
        _ => return None,
    };
    let listed = usize::try_from(words[group::MEMBERS]).ok().filter(|count| *count <= group::MOST_MEMBERS)?;
    let member = |at: usize| (words[group::MEMBER_LIST + at / 2] >> (32 * (at % 2))) as u32;
    Some(Group {
        index,
        epoch: words[group::EPOCH] as u16,
        name: words_to_text(&words[group::NAME..group::NAME + group::NAME_WORDS]),
        rank: words[group::PLACE] as u32,
        size: (words[group::PLACE] >> 32) as u32,
        generation: words[group::GENERATION],
        left,
        members: (0..listed).map(member).collect(),
        given: words[group::GIVEN],
        ended: words[group::ENDED],
    })
}

/// What the header says of the writer.
pub(crate) fn identity(words: &[u64]) -> Identity {
    let text = |from: usize| words_to_text(&words[from..from + header::TEXT]);
    Identity {
        rank: u32::try_from(words[header::RANK]).ok().and_then(|rank| rank.checked_sub(1)),
        world_size: words[header::WORLD] as u32,
        incarnation: words[header::INCARNATION],
        host: text(header::HOST),
        job: text(header::JOB),
        process: words[header::PROCESS] as u32,
        process_started: words[header::PROCESS_STARTED],
    }
}
