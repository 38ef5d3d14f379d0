//! How far a member is with its schedule: which line may be next, on every link and in its own memory.

use super::{Primitive, Schedule};

/// Which lines of a schedule are finished, and where to look for the next.
pub(crate) struct Cursor<'a> {
    schedule: &'a Schedule,
    done: Vec<bool>,
    left: usize,
    /// By member: where the search for the next send to it goes on, and for the next receive from it.
    sends: Vec<usize>,
    receives: Vec<usize>,
    /// And for the next work on memory.
    local: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(schedule: &'a Schedule, world: usize) -> Cursor<'a> {
        let steps = schedule.steps.len();
        let (sends, receives) = (vec![0; world], vec![0; world]);
        Cursor { schedule, done: vec![false; steps], left: steps, sends, receives, local: 0 }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// The next send to a member, if it may start.
    pub(crate) fn send(&mut self, to: usize) -> Option<usize> {
        let wanted = |primitive: &Primitive| matches!(primitive, Primitive::Send { to: other, .. } if *other == to);
        let from = self.seek(self.sends[to], wanted);
        self.sends[to] = from;
        self.ready(from)
    }

    /// The next receive from a member, if it may start.
    pub(crate) fn receive(&mut self, from: usize) -> Option<usize> {
        let wanted =
            |primitive: &Primitive| matches!(primitive, Primitive::Receive { from: other, .. } if *other == from);
        let next = self.seek(self.receives[from], wanted);
        self.receives[from] = next;
        self.ready(next)
    }

    /// The next work on memory, if it may start.
    pub(crate) fn local(&mut self) -> Option<usize> {
        self.local =
            self.seek(self.local, |primitive| matches!(primitive, Primitive::Fold { .. } | Primitive::Copy { .. }));
        self.ready(self.local)
    }

    pub(crate) fn finish(&mut self, step: usize) {
        if !std::mem::replace(&mut self.done[step], true) {
            self.left -= 1;
        }
    }

    fn seek(&self, from: usize, wanted: impl Fn(&Primitive) -> bool) -> usize {
        let rest = self.schedule.steps.iter().zip(&self.done).skip(from);
        let skipped = rest.take_while(|(step, done)| **done || !wanted(&step.primitive)).count();
        from + skipped
    }

    fn ready(&self, step: usize) -> Option<usize> {
        let line = self.schedule.steps.get(step)?;
        self.done[line.after.clone()].iter().all(|done| *done).then_some(step)
    }
}
