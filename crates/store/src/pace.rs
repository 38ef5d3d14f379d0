//! When the server reads at once, and when it lets requests gather first.
//!
//! Who waits for an answer is served as soon as it asks. Who asks for no answer, as with `set`, is not waiting for us:
//! reading each of its requests as it comes would cost a system call a request here, and hold up its next one at the
//! socket's lock. Such a stream is left alone for a moment, then read at once.

use std::time::Duration;

/// So many turns in a row that read little and answered nobody make a stream.
const STREAM_TURNS: u32 = 2;
/// More than this in one turn has gathered already.
const LITTLE_BYTES: usize = 16 << 10;
/// What a stream is given to gather; with the kernel's slack of 50 microseconds it is some 70.
const PAUSE: Duration = Duration::from_micros(20);

/// What the last turns of the event loop were like.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    received: usize,
    answered: bool,
    stream_turns: u32,
}

impl Pace {
    /// Bytes were read.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.received += bytes;
    }

    /// Somebody has an answer.
    pub(crate) fn answered(&mut self) {
        self.answered = true;
    }

    /// A turn is over.
    pub(crate) fn turned(&mut self) {
        let streams = !self.answered && self.received < LITTLE_BYTES;
        self.stream_turns = if streams { self.stream_turns.saturating_add(1) } else { 0 };
        (self.received, self.answered) = (0, false);
    }

    /// Nothing came for a while: what comes next is no continuation.
    pub(crate) fn idle(&mut self) {
        self.stream_turns = 0;
    }

    /// How long to let requests gather before the next turn.
    pub(crate) fn pause(&self) -> Option<Duration> {
        (self.stream_turns >= STREAM_TURNS).then_some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(pace: &mut Pace, count: u32, bytes: usize, answered: bool) {
        for _ in 0..count {
            pace.received(bytes);
            if answered {
                pace.answered();
            }
            pace.turned();
        }
    }

    #[test]
    fn only_a_stream_of_little_requests_without_answers_is_let_gather() {
        let cases = [
            ("a few", STREAM_TURNS - 1, 60, false, false),
            ("a stream", STREAM_TURNS, 60, false, true),
            ("a long stream", 1000, 60, false, true),
            ("with answers", 1000, 60, true, false),
            ("large ones", 1000, LITTLE_BYTES, false, false),
        ];
        for (name, count, bytes, answered, expected) in cases {
            let mut pace = Pace::default();
            turns(&mut pace, count, bytes, answered);
            assert_eq!(pace.pause().is_some(), expected, "{name}");
        }
    }

    #[test]
    fn an_answer_or_silence_ends_a_stream() {
        let mut pace = Pace::default();
        turns(&mut pace, 100, 60, false);
        turns(&mut pace, 1, 60, true);
        assert_eq!(pace.pause(), None);
        turns(&mut pace, 100, 60, false);
        pace.idle();
        assert_eq!(pace.pause(), None);
    }
}
