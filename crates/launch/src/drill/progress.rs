//! How far a rank is, read from the lines that it prints: `step 17`, `Epoch [3/50]`, `{"epoch": 3, "step": 120}`.
//!
//! A *mark* is the numbers that follow the words for steps and epochs in one line, in order. Only marks with the same words
//! are compared, so that a line about an epoch and one about an epoch and a step do not get mixed up.

use std::fmt;

/// Words that come before a count of steps or epochs, and what the report calls them.
const WORDS: [(&str, &str); 6] = [
    ("epoch", "epoch"),
    ("step", "step"),
    ("global_step", "step"),
    ("iteration", "iteration"),
    ("iter", "iteration"),
    ("batch", "batch"),
];
/// Kinds of marks that are remembered, and how much of a line is looked at.
const KINDS: usize = 8;
const LINE_BYTES: usize = 512;
/// What may stand between a word and its number.
const BETWEEN: &[u8] = b" \t:=#[(\"'";
const BETWEEN_BYTES: usize = 4;
/// A number with more digits is not a count.
const DIGITS: usize = 18;

/// What one line says about how far its rank is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark(Vec<(&'static str, u64)>);

impl Mark {
    /// `None` if the line names neither a step nor an epoch.
    fn of(line: &[u8]) -> Option<Mark> {
        let line = without_colours(&line[..line.len().min(LINE_BYTES)]);
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let mut found = Vec::new();
        let mut rest = line.as_slice();
        while let Some(start) = rest.iter().position(is_word) {
            let length = rest[start..].iter().take_while(|byte| is_word(byte)).count();
            let (word, after) = rest[start..].split_at(length);
            let name = WORDS.iter().find(|(known, _)| word.eq_ignore_ascii_case(known.as_bytes()));
            if let (Some((_, name)), Some(number)) = (name, number_at(after)) {
                found.push((*name, number));
            }
            rest = after;
        }
        (!found.is_empty()).then_some(Mark(found))
    }

    fn same_kind(&self, other: &Mark) -> bool {
        self.0.iter().map(|(name, _)| name).eq(other.0.iter().map(|(name, _)| name))
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(name, number)| format!("{name} {number}")).collect();
        out.write_str(&parts.join(", "))
    }
}

/// The whole number at the beginning of a text, after a few separators; `None` for 1.5 and 40 %.
fn number_at(text: &[u8]) -> Option<u64> {
    let between = text.iter().take_while(|byte| BETWEEN.contains(byte)).count();
    let text = text.get(between..).filter(|_| (1..=BETWEEN_BYTES).contains(&between))?;
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let fraction = matches!(text.get(digits..), Some([b'.', next, ..]) if next.is_ascii_digit());
    if digits > DIGITS || fraction || text.get(digits) == Some(&b'%') {
        return None;
    }
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// A line without the sequences that colour it.
fn without_colours(line: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(line.len());
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        if *byte == 0x1b {
            bytes.by_ref().take_while(|byte| !byte.is_ascii_alphabetic()).for_each(drop);
        } else {
            plain.push(*byte);
        }
    }
    plain
}

/// The first and the latest mark of each kind in the output of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Progress(Vec<(Mark, Mark)>);

impl Progress {
    /// Takes in a line.
    pub(crate) fn line(&mut self, line: &[u8]) {
        let Some(mark) = Mark::of(line) else { return };
        let room = self.0.len() < KINDS;
        match self.0.iter_mut().find(|(first, _)| first.same_kind(&mark)) {
            Some((_, latest)) => *latest = mark,
            None if room => self.0.push((mark.clone(), mark)),
            None => {}
        }
    }

    /// Remembers the first marks of another round, of kinds that this one has not.
    pub(super) fn learn(&mut self, other: &Progress) {
        for (first, latest) in &other.0 {
            if self.of_kind(first).is_none() && self.0.len() < KINDS {
                self.0.push((first.clone(), latest.clone()));
            }
        }
    }

    /// The first marks of all kinds, in the order in which they came.
    pub(super) fn firsts(&self) -> impl Iterator<Item = &Mark> {
        self.0.iter().map(|(first, _)| first)
    }

    /// The first and the latest mark of the kind of `mark`.
    pub(super) fn of_kind(&self, mark: &Mark) -> Option<&(Mark, Mark)> {
        self.0.iter().find(|(first, _)| first.same_kind(mark))
    }
}

#[cfg(test)]
mod tests {
    use super::{Mark, Progress};
    use proptest::prelude::*;

    #[test]
    fn marks_are_read_from_the_lines_that_scripts_print() {
        for (line, mark) in [
            ("step 17", "step 17"),
            ("[GPU0] Epoch 131 | Batchsize: 32 | Steps: 16", "epoch 131"),
            ("epoch  8 | loss 0.25", "epoch 8"),
            ("Epoch [3/50], Step [120/1000], loss: 0.5", "epoch 3, step 120"),
            ("{\"epoch\": 3, \"step\": 120}", "epoch 3, step 120"),
            ("global_step=7 lr=0.1", "step 7"),
            ("Epoch 3:  40%|####      | 12/30", "epoch 3"),
            ("\x1b[1mepoch\x1b[0m 4", "epoch 4"),
            ("iter 5: loss 2.0", "iteration 5"),
        ] {
            assert_eq!(Mark::of(line.as_bytes()).expect(line).to_string(), mark, "{line}");
        }
        for line in
            ["pid 4711", "50 epochs", "step", "step: 40%", "epoch 1.5", "steps 4", "batch_size 32", "epoch took 3"]
        {
            assert_eq!(Mark::of(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn marks_are_compared_with_their_own_kind() {
        let mut progress = Progress::default();
        for line in ["Resuming at epoch 3", "epoch 3 step 0", "epoch 3 step 1", "epoch 4 step 0"] {
            progress.line(line.as_bytes());
        }
        let shown: Vec<_> = progress.0.iter().map(|(first, latest)| format!("{first} to {latest}")).collect();
        assert_eq!(shown, ["epoch 3 to epoch 3", "epoch 3, step 0 to epoch 4, step 0"]);
    }

    proptest! {
        #[test]
        fn reading_any_line_does_not_panic(line in proptest::collection::vec(any::<u8>(), 0..80), number: u64) {
            let _ = Mark::of(&line);
            let _ = Mark::of(&[&line[..], format!("step {number}").as_bytes(), &line[..]].concat());
        }
    }
}
