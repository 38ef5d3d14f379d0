//! Folds identical lines of several ranks into one (`--fold`).
//!
//! [`Fold`] keeps a queue of pending entries. An entry is a line and the ranks that have said it; a rank that says the same
//! line within the window joins the entry instead of starting its own.
//!
//! 1. A rank joins only entries behind the last one it is part of, and entries leave from the front only. So the lines of
//!    one rank always come out in the order in which it wrote them, each exactly once.
//! 2. An entry leaves as soon as no rank can join it any more: every rank on the node is part of it or of a later one. In
//!    particular it leaves at once when all ranks have said it.
//! 3. An entry leaves at the latest when its window, counted from its first line, has passed. Nothing waits longer: the
//!    entries in front of it are older.
//! 4. At most [`MAX_PENDING_LINES`] lines and [`MAX_PENDING_BYTES`] bytes are pending; beyond that the oldest leave early.
//!
//! No clock is read: `now` is the time since any fixed moment, and the caller sleeps until [`Fold::wake_at`].

use std::collections::hash_map::{DefaultHasher, Entry as Slot};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

/// How long a line waits for the other ranks, unless the user says otherwise.
pub const DEFAULT_WINDOW: Duration = Duration::from_millis(200);

/// Bound on the number of pending lines.
pub const MAX_PENDING_LINES: usize = 4096;

/// Bound on the bytes of pending lines.
pub const MAX_PENDING_BYTES: usize = 8 << 20;

/// A line and everyone who said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// The ranks, ascending.
    pub ranks: Vec<usize>,
    /// The line as it was given.
    pub line: Vec<u8>,
}

/// Lines that wait for other ranks to say the same.
#[derive(Debug)]
pub struct Fold {
    ranks_on_this_node: usize,
    window: Duration,
    pending: VecDeque<Entry>,
    pending_bytes: usize,
    /// Number of the entry at the front of `pending`; numbers are given in order of arrival and never reused.
    front: u64,
    /// For each rank, the number of the last entry it is part of.
    last_of_rank: HashMap<usize, u64>,
    /// Numbers of the pending entries by the hash of their line, ascending.
    by_hash: HashMap<u64, VecDeque<u64>>,
    now: Duration,
}

#[derive(Debug)]
struct Entry {
    line: Vec<u8>,
    hash: u64,
    ranks: BTreeSet<usize>,
    first_seen: Duration,
}

impl Fold {
    /// For a node with this many ranks. The window is measured from the first rank that says a line.
    pub fn new(ranks_on_this_node: usize, window: Duration) -> Self {
        Self {
            ranks_on_this_node: ranks_on_this_node.max(1),
            window,
            pending: VecDeque::new(),
            pending_bytes: 0,
            front: 0,
            last_of_rank: HashMap::new(),
            by_hash: HashMap::new(),
            now: Duration::ZERO,
        }
    }

    /// There is one more rank on this node.
    pub fn add_rank(&mut self) {
        self.ranks_on_this_node += 1;
    }

    /// Takes a line of a rank; returns what is ready to be shown, in order.
    pub fn line(&mut self, rank: usize, line: &[u8], now: Duration) -> Vec<Folded> {
        self.now = self.now.max(now);
        let mut ready = Vec::new();
        let mut hasher = DefaultHasher::new();
        line.hash(&mut hasher);
        let hash = hasher.finish();
        let number = match self.joinable(rank, line, hash) {
            Some(number) => number,
            None => self.push(line, hash, &mut ready),
        };
        let position = self.position(number);
        self.pending[position].ranks.insert(rank);
        self.last_of_rank.insert(rank, number);
        if self.last_of_rank.len() >= self.ranks_on_this_node {
            let reached_by_all = self.last_of_rank.values().copied().min().unwrap_or(0);
            while self.front <= reached_by_all && self.pop(&mut ready) {}
        }
        self.pop_expired(&mut ready);
        ready
    }

    /// Returns the lines whose window has passed.
    pub fn flush(&mut self, now: Duration) -> Vec<Folded> {
        self.now = self.now.max(now);
        let mut ready = Vec::new();
        self.pop_expired(&mut ready);
        ready
    }

    /// When [`Fold::flush`] will next have something to return, if nothing else is said until then.
    pub fn wake_at(&self) -> Option<Duration> {
        self.pending.front().map(|entry| entry.first_seen.saturating_add(self.window))
    }

    /// Returns everything that is pending: no more lines will come.
    pub fn finish(&mut self) -> Vec<Folded> {
        let mut ready = Vec::new();
        while self.pop(&mut ready) {}
        ready
    }

    /// The first entry with this line behind everything the rank has said.
    fn joinable(&self, rank: usize, line: &[u8], hash: u64) -> Option<u64> {
        let numbers = self.by_hash.get(&hash)?;
        let after = self.last_of_rank.get(&rank).map_or(0, |last| last + 1);
        let start = numbers.partition_point(|&number| number < after);
        numbers.range(start..).copied().find(|&number| self.pending[self.position(number)].line == line)
    }

    /// Appends an entry without ranks and returns its number, making room first.
    fn push(&mut self, line: &[u8], hash: u64, ready: &mut Vec<Folded>) -> u64 {
        while (self.pending.len() >= MAX_PENDING_LINES || self.pending_bytes + line.len() > MAX_PENDING_BYTES)
            && self.pop(ready)
        {}
        let number = self.front + self.pending.len() as u64;
        self.pending.push_back(Entry { line: line.to_vec(), hash, ranks: BTreeSet::new(), first_seen: self.now });
        self.pending_bytes += line.len();
        self.by_hash.entry(hash).or_default().push_back(number);
        number
    }

    fn pop_expired(&mut self, ready: &mut Vec<Folded>) {
        while self.wake_at().is_some_and(|moment| moment <= self.now) && self.pop(ready) {}
    }

    fn pop(&mut self, ready: &mut Vec<Folded>) -> bool {
        let Some(entry) = self.pending.pop_front() else {
            return false;
        };
        if let Slot::Occupied(mut numbers) = self.by_hash.entry(entry.hash) {
            numbers.get_mut().pop_front();
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
        self.front += 1;
        self.pending_bytes -= entry.line.len();
        ready.push(Folded { ranks: entry.ranks.into_iter().collect(), line: entry.line });
        true
    }

    fn position(&self, number: u64) -> usize {
        usize::try_from(number - self.front).expect("a pending entry's position is below MAX_PENDING_LINES")
    }
}

/// Names ranks as briefly as possible: `rank 0`, `ranks 1-7`, `ranks 0,2-3`.
pub fn describe_ranks(ranks: &[usize]) -> String {
    let ranks: BTreeSet<usize> = ranks.iter().copied().collect();
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for &rank in &ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => spans.push((rank, rank)),
        }
    }
    let spans: Vec<String> = spans
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    match ranks.len() {
        0 => "no ranks".to_owned(),
        1 => format!("rank {}", spans.join(",")),
        _ => format!("ranks {}", spans.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn show(folded: &[Folded]) -> Vec<String> {
        folded
            .iter()
            .map(|folded| format!("{}: {}", describe_ranks(&folded.ranks), String::from_utf8_lossy(&folded.line)))
            .collect()
    }

    /// Feeds `(time in ms, rank, line)` and notes when what came out, flushing whenever the fold asks to be woken.
    fn play(ranks: usize, script: &[(u64, usize, &str)]) -> Vec<(u64, String)> {
        let mut fold = Fold::new(ranks, ms(200));
        let mut seen = Vec::new();
        let note = |at: Duration, folded: Vec<Folded>, seen: &mut Vec<(u64, String)>| {
            seen.extend(show(&folded).into_iter().map(|text| (at.as_millis() as u64, text)));
        };
        for &(at, rank, line) in script {
            while let Some(wake) = fold.wake_at().filter(|&wake| wake < ms(at)) {
                let folded = fold.flush(wake);
                note(wake, folded, &mut seen);
            }
            let folded = fold.line(rank, line.as_bytes(), ms(at));
            note(ms(at), folded, &mut seen);
        }
        while let Some(wake) = fold.wake_at() {
            let folded = fold.flush(wake);
            note(wake, folded, &mut seen);
        }
        seen
    }

    #[test]
    fn ranks_are_listed_as_ranges() {
        for (ranks, wanted) in [
            (&[0][..], "rank 0"),
            (&[1, 2, 3, 4, 5, 6, 7], "ranks 1-7"),
            (&[0, 2, 3], "ranks 0,2-3"),
            (&[3, 2, 0, 2], "ranks 0,2-3"),
            (&[5, 5], "rank 5"),
            (&[0, 1], "ranks 0-1"),
            (&[], "no ranks"),
        ] {
            assert_eq!(describe_ranks(ranks), wanted);
        }
    }

    #[test]
    fn a_line_of_all_ranks_comes_at_once() {
        let seen = play(3, &[(0, 8, "loading"), (3, 9, "loading"), (7, 10, "loading")]);
        assert_eq!(seen, [(7, "ranks 8-10: loading".to_owned())]);
    }

    #[test]
    fn a_lone_line_comes_after_its_window() {
        assert_eq!(play(2, &[(5, 1, "saved")]), [(205, "rank 1: saved".to_owned())]);
        assert_eq!(play(1, &[(5, 0, "saved")]), [(5, "rank 0: saved".to_owned())]);
    }

    #[test]
    fn lines_behind_a_slow_one_wait_no_longer_than_their_own_window() {
        let seen = play(2, &[(0, 0, "a"), (150, 0, "b"), (190, 0, "c")]);
        let wanted = [(200, "rank 0: a"), (350, "rank 0: b"), (390, "rank 0: c")];
        assert_eq!(seen, wanted.map(|(at, text)| (at, text.to_owned())));
    }

    #[test]
    fn a_line_nobody_can_join_any_more_does_not_wait() {
        let seen = play(2, &[(0, 0, "chief only"), (1, 0, "step 1"), (2, 1, "step 1")]);
        assert_eq!(seen, [(2, "rank 0: chief only".to_owned()), (2, "ranks 0-1: step 1".to_owned())]);
    }

    #[test]
    fn repeated_lines_of_one_rank_stay_apart() {
        let seen = play(2, &[(0, 0, "."), (1, 0, "."), (2, 1, "."), (3, 1, ".")]);
        assert_eq!(seen, [(2, "ranks 0-1: .".to_owned()), (3, "ranks 0-1: .".to_owned())]);
    }

    #[test]
    fn crossed_lines_keep_each_ranks_order() {
        let seen = play(2, &[(0, 0, "a"), (1, 0, "b"), (2, 1, "b"), (3, 1, "a")]);
        let wanted = [(2, "rank 0: a"), (2, "ranks 0-1: b"), (203, "rank 1: a")];
        assert_eq!(seen, wanted.map(|(at, text)| (at, text.to_owned())));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut fold = Fold::new(2, ms(200));
        for number in 0..MAX_PENDING_LINES {
            assert!(fold.line(0, number.to_string().as_bytes(), ms(0)).is_empty());
        }
        assert_eq!(show(&fold.line(0, b"one more", ms(0))), ["rank 0: 0"]);
        assert_eq!(fold.finish().len(), MAX_PENDING_LINES);
        assert_eq!(fold.wake_at(), None);

        let long = vec![b'x'; MAX_PENDING_BYTES];
        assert!(fold.line(0, &long, ms(0)).is_empty());
        assert_eq!(fold.line(0, b"y", ms(0)).len(), 1);
        assert_eq!(show(&fold.finish()), ["rank 0: y"]);
    }

    fn lines_of(rank: usize, folded: &[Folded]) -> Vec<Vec<u8>> {
        folded.iter().filter(|folded| folded.ranks.contains(&rank)).map(|folded| folded.line.clone()).collect()
    }

    proptest! {
        #[test]
        fn every_line_comes_out_once_and_in_its_ranks_order(
            ranks in 1usize..5,
            events in prop::collection::vec((0usize..5, 0u8..4, 0u64..120, any::<bool>()), 0..200),
        ) {
            let mut fold = Fold::new(ranks, ms(200));
            let (mut now, mut given, mut taken) = (0, vec![Vec::new(); ranks], Vec::new());
            for (rank, line, passed, flush) in events {
                let rank = rank % ranks;
                now += passed;
                if flush {
                    taken.extend(fold.flush(ms(now)));
                    prop_assert!(fold.wake_at().is_none_or(|wake| wake > ms(now)));
                }
                given[rank].push(vec![line]);
                taken.extend(fold.line(rank, &[line], ms(now)));
                prop_assert!(fold.wake_at().is_none_or(|wake| wake > ms(now) && wake <= ms(now + 200)));
            }
            taken.extend(fold.finish());
            prop_assert!(fold.by_hash.is_empty());
            prop_assert_eq!(fold.pending_bytes, 0);
            for (rank, lines) in given.iter().enumerate() {
                prop_assert_eq!(&lines_of(rank, &taken), lines);
            }
            let said: usize = taken.iter().map(|folded| folded.ranks.len()).sum();
            prop_assert_eq!(said, given.iter().map(Vec::len).sum::<usize>());
        }

        #[test]
        fn equal_streams_within_the_window_fold_completely(
            ranks in 1usize..6,
            stream in prop::collection::vec(0u8..4, 0..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            let mut fold = Fold::new(ranks, ms(200));
            let mut next = vec![0; ranks];
            let mut taken = Vec::new();
            for choice in order {
                let unfinished: Vec<usize> = (0..ranks).filter(|&rank| next[rank] < stream.len()).collect();
                if unfinished.is_empty() {
                    break;
                }
                let rank = unfinished[choice.index(unfinished.len())];
                taken.extend(fold.line(rank, &[stream[next[rank]]], ms(100)));
                next[rank] += 1;
            }
            // All that remains was said by every rank but the choices ran out: let them catch up.
            for (rank, next) in next.iter().enumerate() {
                for line in &stream[*next..] {
                    taken.extend(fold.line(rank, &[*line], ms(200)));
                }
            }
            prop_assert!(fold.wake_at().is_none());
            let everyone: Vec<usize> = (0..ranks).collect();
            let wanted: Vec<Folded> =
                stream.iter().map(|&line| Folded { ranks: everyone.clone(), line: vec![line] }).collect();
            prop_assert_eq!(taken, wanted);
        }
    }
}
