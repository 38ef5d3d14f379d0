//! The processes of this node's ranks, one after the other, with the accounts that they leave.

use std::collections::BTreeMap;
use std::path::Path;

use instep_recorder::{Account, folder};

use super::{Goodput, Span, tally};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Book {
    began: u64,
    ended: Vec<Span>,
    /// By local rank.
    running: BTreeMap<usize, Span>,
}

impl Book {
    /// The launcher started.
    pub(crate) fn new(now: u64) -> Book {
        Book { began: now, ended: Vec::new(), running: BTreeMap::new() }
    }

    /// The first process of a rank in a round was started; the one before has ended, whether that was noticed or not.
    pub(crate) fn started(&mut self, local_rank: usize, rank: usize, round: u64, now: u64) {
        self.begin(local_rank, rank, round, false, now);
    }

    /// A process took the place of another of its rank; if none of that rank has been here, of one on a lost node.
    pub(crate) fn replaced(&mut self, local_rank: usize, rank: usize, round: u64, now: u64) {
        let was_here =
            self.running.contains_key(&local_rank) || self.ended.iter().any(|span| span.local_rank == local_rank);
        self.begin(local_rank, rank, round, !was_here, now);
    }

    fn begin(&mut self, local_rank: usize, rank: usize, round: u64, moved: bool, now: u64) {
        self.end(local_rank, true, now, None);
        let span = Span { local_rank, rank, round, moved, started: now, ended: now, failed: false, account: None };
        self.running.insert(local_rank, span);
    }

    /// The process of a rank has ended, and left this.
    pub(crate) fn end(&mut self, local_rank: usize, failed: bool, now: u64, account: Option<Account>) {
        if let Some(span) = self.running.remove(&local_rank) {
            self.ended.push(Span { ended: now, failed, account, ..span });
        }
    }

    /// Ranks with a process, and the ranks of the job that they are.
    pub(crate) fn running(&self) -> Vec<(usize, usize)> {
        self.running.values().map(|span| (span.local_rank, span.rank)).collect()
    }

    /// What became of the time until so many nanoseconds after the start; `None` if nothing was ever started.
    pub(crate) fn goodput(&self, wall: u64) -> Option<Goodput> {
        (!self.ended.is_empty()).then(|| tally(self.began, self.began.saturating_add(wall), &self.ended))
    }
}

/// The account that a rank's process has left in the folder of its flight recorder. A wrapper around the script has another
/// process id than the script: then the rank's only file is meant.
pub(crate) fn account_of(folder: &Path, rank: usize, process: Option<i32>) -> Option<Account> {
    let prefix = format!("rank-{rank}-");
    let own = process.map(|process| format!("{prefix}{process}.{}", folder::EXTENSION));
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut found = folder::records(folder);
    found.retain(|path| name(path).starts_with(&prefix));
    let path = match found.iter().find(|path| Some(name(path)) == own) {
        Some(path) => path,
        None if found.len() == 1 => &found[0],
        None => return None,
    };
    // What cannot be read is not known.
    Account::read(path).ok().flatten()
}
