//! How often one rank was lost in one step.

use super::{Loss, LossKind, MAX_OWN_ERRORS, MAX_SIGNALS};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Count {
    own_errors: u32,
    signals: u32,
}

impl Count {
    fn and(self, other: Count) -> Count {
        Count { own_errors: self.own_errors + other.own_errors, signals: self.signals + other.signals }
    }

    fn is_too_many(self) -> bool {
        self.own_errors > MAX_OWN_ERRORS || self.signals > MAX_SIGNALS
    }
}

/// The losses of one rank.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Those since the ranks last resumed.
    open: Count,
    /// In which step they happened, where the rank said so; else that is known when the ranks resume.
    step: Option<u64>,
    /// The step of the ones before, and how many they were.
    settled: Option<(u64, Count)>,
    /// What happened last, for people.
    cause: String,
}

impl Faults {
    pub(super) fn lost(&mut self, loss: &Loss) {
        self.cause.clone_from(&loss.cause);
        match loss.kind {
            LossKind::Signal => self.open.signals += 1,
            LossKind::OwnError => self.open.own_errors += 1,
            // The machine's fault, not the step's.
            LossKind::NotStarted | LossKind::WithNode => {}
        }
    }

    /// The rank fails in this step, as it says itself.
    pub(super) fn failed_in(&mut self, step: u64) {
        self.step = Some(step);
    }

    /// The losses since the last time were in this step, unless the rank knew better.
    pub(super) fn resumed(&mut self, step: u64) {
        let step = self.step.take().unwrap_or(step);
        let open = std::mem::take(&mut self.open);
        if open != Count::default() {
            self.settled = Some((step, self.before(step).and(open)));
        }
    }

    /// Those in a step before the ranks last resumed.
    fn before(&self, step: u64) -> Count {
        self.settled.filter(|(of, _)| *of == step).map(|(_, count)| count).unwrap_or_default()
    }

    /// Why the rank is not replaced again, if so.
    pub(super) fn refusal(&self, rank: usize) -> Option<String> {
        let known = self.step.map(|step| (step, self.before(step).and(self.open)));
        let in_one_step = [known, self.settled].into_iter().flatten().find(|(_, count)| count.is_too_many());
        let (count, step) = match in_one_step {
            Some((step, count)) => (count, format!("in step {step}")),
            None if self.open.is_too_many() => (self.open, "before a step was redone".to_owned()),
            None => return None,
        };
        let how = match count.own_errors > MAX_OWN_ERRORS {
            true if count.own_errors == 2 => "failed twice".to_owned(),
            true => format!("failed {} times", count.own_errors),
            false => format!("was killed {} times", count.signals),
        };
        Some(format!("rank {rank} {how} {step}: {}", self.cause))
    }
}
