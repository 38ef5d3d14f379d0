//! How often one rank was lost in one step.

use super::{Loss, LossKind, MAX_OWN_ERRORS, MAX_SIGNALS};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Count {
    own_errors: u32,
    signals: u32,
}

impl Count {
    fn is_too_many(self) -> bool {
        self.own_errors > MAX_OWN_ERRORS || self.signals > MAX_SIGNALS
    }
}

/// The losses of one rank.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Those since the ranks last resumed: in which step they happened is not known yet.
    open: Count,
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

    /// The losses since the last time were in this step.
    pub(super) fn resumed(&mut self, step: u64) {
        let open = std::mem::take(&mut self.open);
        if open == Count::default() {
            return;
        }
        let before = self.settled.filter(|(of, _)| *of == step).map(|(_, count)| count).unwrap_or_default();
        let count = Count { own_errors: before.own_errors + open.own_errors, signals: before.signals + open.signals };
        self.settled = Some((step, count));
    }

    /// Why the rank is not replaced again, if so.
    pub(super) fn refusal(&self, rank: usize) -> Option<String> {
        let (count, step) = match self.settled {
            _ if self.open.is_too_many() => (self.open, "before a step was redone".to_owned()),
            Some((step, count)) if count.is_too_many() => (count, format!("in step {step}")),
            _ => return None,
        };
        let how = match count.own_errors > MAX_OWN_ERRORS {
            true if count.own_errors == 2 => "failed twice".to_owned(),
            true => format!("failed {} times", count.own_errors),
            false => format!("was killed {} times", count.signals),
        };
        Some(format!("rank {rank} {how} {step}: {}", self.cause))
    }
}
