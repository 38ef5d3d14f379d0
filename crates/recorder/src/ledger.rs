//! The ledger: what a rank has spent its time on, in the header of its file.
//!
//! A rank has one activity at a time and the moment since when, so the seconds of all activities add up to its age by
//! construction. [`Account`] is the arithmetic, which knows no clock; [`Ledger`] writes it; [`Account::read`] reads it
//! while the rank runs, or after it was killed in the middle of writing.
//!
//! ```text
//! version   1; 0 where there is no ledger
//! changes   counts; the lowest bit says which of the two accounts is valid
//! account   × 2: born, activity, since, 8 × nanoseconds, an attempt's beginning, steps
//! ```
//!
//! The account that is not valid is written, then the counter is raised: whatever the moment at which a rank is killed, one
//! account is whole. A switch costs some tens of nanoseconds and no system call.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;

use crate::format::{MAGIC, header};
use crate::{Recorder, clock};

/// The version of the layout.
const VERSION: u64 = 1;
/// Words of an account.
pub(crate) const ACCOUNT_WORDS: usize = 24;
const WORDS: usize = header::LEDGER_ACCOUNTS + 2 * ACCOUNT_WORDS;
/// Nobody does more: who adds such numbers up need not fear for the sum.
const MOST_STEPS: u64 = 1 << 48;
/// How often a reader tries to find an account that is not being replaced.
const TRIES: usize = 16;

/// What a rank does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Activity {
    /// Until it trains.
    Start,
    /// Everything that is nothing else.
    Compute,
    /// The caller waits for a collective or a message.
    Communication,
    /// The caller waits for a batch.
    Data,
    /// Saving and restoring.
    Checkpoint,
    /// Another rank was lost, and the ranks meet again.
    Restart,
    /// Attempts of steps that had to be done again; nobody switches to it.
    Lost,
    /// The process is about to end by itself.
    Idle,
}

impl Activity {
    /// All, in the order of their numbers.
    pub const ALL: [Activity; 8] = [
        Activity::Start,
        Activity::Compute,
        Activity::Communication,
        Activity::Data,
        Activity::Checkpoint,
        Activity::Restart,
        Activity::Lost,
        Activity::Idle,
    ];
    /// What an attempt of a step consists of.
    pub const PRODUCTIVE: [Activity; 3] = [Activity::Compute, Activity::Communication, Activity::Data];
}

/// How far a session is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Steps that were done when this process began to train.
    pub first: u64,
    /// Steps that are done.
    pub done: u64,
    /// Attempts of this process that were given up.
    pub redone: u64,
}

/// What a rank has spent its time on, in monotonic nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// When it began.
    pub born: u64,
    /// What it does.
    pub activity: Activity,
    /// Since when.
    pub since: u64,
    spent: [u64; Activity::ALL.len()],
    /// What [`Activity::PRODUCTIVE`] had when the step began that is under way.
    attempt: Option<[u64; 3]>,
    /// None without a session.
    pub steps: Option<Steps>,
}

impl Account {
    /// A rank that starts.
    pub fn new(now: u64) -> Account {
        let spent = [0; Activity::ALL.len()];
        Account { born: now, activity: Activity::Start, since: now, spent, attempt: None, steps: None }
    }

    /// Nanoseconds of an activity until [`Account::since`].
    pub fn spent(&self, activity: Activity) -> u64 {
        self.spent[activity as usize]
    }

    /// Of the productive activities, in their order, what belongs to the attempt that is under way; the last one's time since
    /// [`Account::since`] is not in it.
    pub fn attempt(&self) -> Option<[u64; 3]> {
        let before = self.attempt?;
        Some(std::array::from_fn(|at| self.spent(Activity::PRODUCTIVE[at]).saturating_sub(before[at])))
    }

    fn charge(&mut self, now: u64) {
        // A clock that all processes of the machine share does not go back.
        let passed = now.saturating_sub(self.since);
        self.spent[self.activity as usize] += passed;
        self.since += passed;
    }

    /// From now on the rank does this; gives what it did.
    pub fn switch(&mut self, activity: Activity, now: u64) -> Activity {
        self.charge(now);
        std::mem::replace(&mut self.activity, activity)
    }

    /// The caller waits for others; whether that is to be told to [`Account::end_wait`]. What waits in a checkpoint or a
    /// recovery stays that.
    pub fn begin_wait(&mut self, now: u64) -> bool {
        match self.activity {
            Activity::Start => true,
            Activity::Compute => {
                self.switch(Activity::Communication, now);
                true
            }
            _ => false,
        }
    }

    /// The wait has ended. The first of a process ends its start, where no session says when that ends.
    pub fn end_wait(&mut self, now: u64) {
        self.switch(Activity::Compute, now);
    }

    /// A session's loop begins, after so many steps: what was before belonged to the start.
    pub fn begin_training(&mut self, steps: u64, now: u64) {
        self.switch(Activity::Compute, now);
        for activity in Activity::PRODUCTIVE {
            self.spent[Activity::Start as usize] += std::mem::take(&mut self.spent[activity as usize]);
        }
        self.steps = Some(Steps { first: steps, done: steps, redone: 0 });
        self.attempt = None;
    }

    /// A step begins.
    pub fn begin_attempt(&mut self, now: u64) {
        self.charge(now);
        self.attempt = Some(Activity::PRODUCTIVE.map(|activity| self.spent(activity)));
    }

    /// The step counts, which makes so many.
    pub fn commit(&mut self, steps: u64) {
        self.attempt = None;
        if let Some(known) = &mut self.steps {
            known.done = steps;
        }
    }

    /// The step has to be done again: what it has cost is lost.
    pub fn abort_attempt(&mut self, now: u64) {
        self.charge(now);
        let Some(lost) = self.attempt() else { return };
        self.attempt = None;
        for (activity, nanoseconds) in Activity::PRODUCTIVE.into_iter().zip(lost) {
            self.spent[activity as usize] -= nanoseconds;
            self.spent[Activity::Lost as usize] += nanoseconds;
        }
        if let Some(steps) = &mut self.steps {
            steps.redone += 1;
        }
    }

    fn to_words(&self) -> [u64; ACCOUNT_WORDS] {
        let mut words = [0; ACCOUNT_WORDS];
        words[..3].copy_from_slice(&[self.born, self.activity as u64, self.since]);
        words[3..3 + self.spent.len()].copy_from_slice(&self.spent);
        if let Some(attempt) = self.attempt {
            words[11] = 1;
            words[12..15].copy_from_slice(&attempt);
        }
        if let Some(Steps { first, done, redone }) = self.steps {
            words[15..19].copy_from_slice(&[1, first, done, redone]);
        }
        words
    }

    /// An account, if its words make sense.
    fn from_words(words: &[u64]) -> Option<Account> {
        let activity = Activity::ALL.into_iter().find(|activity| *activity as u64 == words[1])?;
        let spent: [u64; Activity::ALL.len()] = words[3..3 + Activity::ALL.len()].try_into().ok()?;
        let age = words[2].checked_sub(words[0])?;
        let sum = spent.iter().try_fold(0u64, |sum, each| sum.checked_add(*each))?;
        let attempt = (words[11] == 1).then(|| [words[12], words[13], words[14]]);
        let counts = words[15] == 1 && words[16..19].iter().all(|count| *count <= MOST_STEPS);
        let steps = counts.then(|| Steps { first: words[16], done: words[17], redone: words[18] });
        let account = Account { born: words[0], activity, since: words[2], spent, attempt, steps };
        (sum == age).then_some(account)
    }

    /// What three readings of a file's header, one after the other, say together.
    pub fn from_readings(first: &[u8], middle: &[u8], last: &[u8]) -> Option<Account> {
        let word = |bytes: &[u8], at: usize| Some(u64::from_ne_bytes(bytes.get(at * 8..at * 8 + 8)?.try_into().ok()?));
        let changes = word(first, header::LEDGER_CHANGES)?;
        let known = word(middle, header::MAGIC)? == MAGIC && word(middle, header::LEDGER_VERSION)? == VERSION;
        if !known || word(last, header::LEDGER_CHANGES)? != changes {
            return None;
        }
        let from = header::LEDGER_ACCOUNTS + (changes % 2) as usize * ACCOUNT_WORDS;
        let words: Option<Vec<u64>> = (from..from + ACCOUNT_WORDS).map(|at| word(middle, at)).collect();
        Account::from_words(&words?)
    }

    /// Reads the account in a recorder's file; none if it has none that makes sense.
    pub fn read(path: &Path) -> io::Result<Option<Account>> {
        // Of a named pipe or a device nothing is read, and nothing waited for.
        let file =
            File::options().read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits()).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        for _ in 0..TRIES {
            let mut readings = [[0; WORDS * 8]; 3];
            for reading in &mut readings {
                match file.read_exact_at(reading, 0) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                    other => other?,
                }
                fence(Ordering::SeqCst);
            }
            let [first, middle, last] = &readings;
            let found = Account::from_readings(first, middle, last);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// The account of this process, kept in its file.
#[derive(Debug)]
pub struct Ledger {
    recorder: Arc<Recorder>,
    account: Mutex<(Account, u64)>,
}

impl Ledger {
    /// Begins the ledger of a process.
    pub fn new(recorder: &Arc<Recorder>) -> Ledger {
        let ledger =
            Ledger { recorder: Arc::clone(recorder), account: Mutex::new((Account::new(clock::monotonic()), 0)) };
        ledger.change(|_, _| ());
        recorder.words()[header::LEDGER_VERSION].store(VERSION, Ordering::Release);
        ledger
    }

    /// Changes the account at this moment.
    pub fn change<T>(&self, change: impl FnOnce(&mut Account, u64) -> T) -> T {
        let mut guard = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        let (account, changes) = &mut *guard;
        let result = change(account, clock::monotonic());
        *changes += 1;
        let words = self.recorder.words();
        let from = header::LEDGER_ACCOUNTS + (*changes % 2) as usize * ACCOUNT_WORDS;
        // The counter says by now that this account is not the valid one.
        fence(Ordering::Release);
        for (at, word) in account.to_words().into_iter().enumerate() {
            words[from + at].store(word, Ordering::Relaxed);
        }
        words[header::LEDGER_CHANGES].store(*changes, Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests;
