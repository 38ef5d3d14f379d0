//! Which rank has to be replaced because it hangs: decided from what the hang watch sees, without a clock or a process.
//!
//! A rank that somebody has stopped is found at the first look. One that is not may only be slow: it has to be at the same
//! place of its script at two looks, as far apart as an operation may take (`--hang-after`), and must not have computed in
//! between. So a rank that hangs in a busy loop is not found; one that evaluates a model for long is not killed.

use std::time::Duration;

use instep_diagnosis::culprit::culprit;
use instep_diagnosis::stacks::Thread;
use instep_diagnosis::{Class, Diagnosis, Evidence};

/// A rank that has run for more than this part of the time between two looks computes.
const COMPUTES_FROM: f64 = 0.05;

/// A rank that keeps all others waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HungRank {
    pub(crate) rank: usize,
    /// Its own here; for the supervisor that of its worker.
    pub(crate) process: u32,
    /// Somebody has stopped it: that is not the script's doing.
    pub(crate) stopped: bool,
    /// In a sentence that begins with "it".
    pub(crate) why: String,
}

impl HungRank {
    /// What is said of its end.
    pub(crate) fn describe(&self, host: &str) -> String {
        let rank = self.rank;
        match self.stopped {
            true => format!("rank {rank} on {host} was stopped and kept the others waiting, and was killed for that"),
            false => format!("rank {rank} on {host} hung and was killed: {}", self.why),
        }
    }
}

/// Compares what was seen at two looks.
#[derive(Debug, Default)]
pub(super) struct HangDetector {
    suspect: Option<Suspect>,
    /// When the next look is due, by the monotonic clock in nanoseconds.
    due: u64,
}

#[derive(Debug)]
struct Suspect {
    rank: u32,
    process: u32,
    /// Where its main thread is, as far as that is known.
    place: Option<Thread>,
    /// How long it and its children have run, and up to when.
    ran: Duration,
    seen: u64,
}

impl Suspect {
    fn has_not_moved_since(&self, before: &Suspect) -> bool {
        let between = Duration::from_nanos(self.seen.saturating_sub(before.seen));
        let computes = self.ran.saturating_sub(before.ran) > between.mul_f64(COMPUTES_FROM);
        !computes && (self.rank, self.process, &self.place) == (before.rank, before.process, &before.place)
    }
}

impl HangDetector {
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.due
    }

    /// What follows from a look; the next one is due `apart` later. `ran` tells how long a process and
    /// its children have run so far.
    pub(super) fn look(
        &mut self,
        diagnosis: &Diagnosis,
        evidence: &[Evidence],
        ran: impl Fn(u32) -> Duration,
        now: u64,
        apart: Duration,
    ) -> Option<HungRank> {
        self.due = now.saturating_add(u64::try_from(apart.as_nanos()).unwrap_or(u64::MAX));
        let before = self.suspect.take();
        let cause = culprit(diagnosis)?;
        let seen = evidence.iter().find(|one| one.rank == Some(cause.rank))?;
        let place = seen.stacks.main().cloned();
        let (process, ran) = (seen.process, ran(seen.process));
        let suspect = Suspect { rank: cause.rank, process, place, ran, seen: now };
        let stopped = cause.class == Class::Stopped;
        let hangs = stopped || before.is_some_and(|before| suspect.has_not_moved_since(&before));
        let hung = HungRank {
            rank: usize::try_from(suspect.rank).ok()?,
            process: suspect.process,
            stopped,
            why: cause.why.clone(),
        };
        self.suspect = Some(suspect);
        hangs.then_some(hung)
    }
}

#[cfg(test)]
mod tests {
    use super::{HangDetector, HungRank};
    use instep_diagnosis::analysis::Stuck;
    use instep_diagnosis::stacks::{Frame, Thread};
    use instep_diagnosis::{Cause, Class, Condition, Diagnosis, Evidence, Finding, Stacks};
    use std::time::Duration;

    const APART: Duration = Duration::from_nanos(60);
    const IDLE: Duration = Duration::from_nanos(7);

    fn diagnosis(class: Class) -> Diagnosis {
        let operation = Stuck {
            group: "default".to_owned(),
            sequence: 7,
            name: "all_reduce".to_owned(),
            dtype: "f32".to_owned(),
            bytes: 4,
            failed: false,
            waited: 61.0,
            message: None,
        };
        let causes = vec![Cause { rank: 1, class, why: "it sleeps".to_owned() }];
        let finding = Finding {
            operation: Some(operation),
            arrived: vec![0],
            missing: vec![1],
            unseen: Vec::new(),
            causes,
            sentence: String::new(),
        };
        Diagnosis { findings: vec![finding], remarks: Vec::new() }
    }

    fn at(process: u32, line: Option<u32>) -> Vec<Evidence> {
        let frame = |line| Frame { file: "train.py".to_owned(), line, function: "main".to_owned() };
        let thread = |line| Thread { name: String::new(), main: true, frames: vec![frame(line)] };
        let stacks = match line {
            Some(line) => Stacks::Known { threads: vec![thread(line)], held: false },
            None => Stacks::Unknown("it does not answer".to_owned()),
        };
        vec![Evidence {
            rank: Some(1),
            host: "a".to_owned(),
            process,
            condition: Condition::Alive('S'),
            waits_in: None,
            records: None,
            stacks,
            still: false,
        }]
    }

    /// One look after the other, at ranks that have run for this part of the time.
    fn looks_at_busy(seen: &[(Class, u32, Option<u32>)], busy: f64) -> Vec<bool> {
        let mut detector = HangDetector::default();
        let look = |(number, (class, process, line)): (u32, &(Class, u32, Option<u32>))| {
            let now = APART * number;
            let ran = |_| now.mul_f64(busy);
            let now = u64::try_from(now.as_nanos()).expect("small");
            detector.look(&diagnosis(*class), &at(*process, *line), ran, now, APART).is_some()
        };
        (1..).zip(seen).map(look).collect()
    }

    fn looks(seen: &[(Class, u32, Option<u32>)]) -> Vec<bool> {
        looks_at_busy(seen, 0.0)
    }

    #[test]
    fn a_stopped_rank_hangs_at_the_first_look() {
        let mut detector = HangDetector::default();
        assert!(detector.is_due(0));
        let hung = detector.look(&diagnosis(Class::Stopped), &at(500, None), |_| IDLE, 100, APART).expect("it hangs");
        assert_eq!(hung, HungRank { rank: 1, process: 500, stopped: true, why: "it sleeps".to_owned() });
        assert!(!detector.is_due(159) && detector.is_due(160));
    }

    #[test]
    fn a_rank_that_runs_hangs_if_it_has_not_moved_between_two_looks() {
        use Class::{InAnotherCollective, InUserCode, WaitingForData};
        let same = (InUserCode, 500, Some(88));
        assert_eq!(looks(&[same, same]), [false, true]);
        assert_eq!(looks_at_busy(&[same, same, same], 0.5), [false; 3], "it computes");
        assert_eq!(looks(&[same, (InUserCode, 500, Some(89)), same]), [false; 3], "it is slow, and moves");
        assert_eq!(looks(&[same, (InUserCode, 501, Some(88))]), [false; 2], "it was replaced");
        assert_eq!(looks(&[same, (InAnotherCollective, 500, Some(88)), same]), [false; 3], "it came meanwhile");
        assert_eq!(looks(&[(WaitingForData, 500, None), (WaitingForData, 500, None)]), [false, true]);
    }
}
