//! How output becomes records of the log: cut into lines, with rank and level taken from their beginning.
//!
//! A line ends at `\n` or `\r`, because progress bars write the latter, and after [`LONGEST_LINE`] bytes. What is no
//! UTF-8 is replaced, sign by sign. The rules are Determined's.

use instep_api::states::LogLevel;

/// Bytes of a line, its end not counted.
pub const LONGEST_LINE: usize = 8191;

/// A line with what its beginning said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// From `[rank=N]`.
    pub rank: Option<i64>,
    /// From `INFO:` and its like.
    pub level: Option<LogLevel>,
    /// The rest, with `\n` at its end.
    pub text: String,
}

impl Line {
    /// Reads one line, given without its end.
    pub fn read(bytes: &[u8]) -> Line {
        let text = String::from_utf8_lossy(bytes);
        let (rank, rest) = rank(&text);
        let (level, rest) = level(rest);
        Line { rank, level, text: format!("{rest}\n") }
    }
}

/// Takes an optional blank, `[rank=N]` and an optional blank away.
fn rank(text: &str) -> (Option<i64>, &str) {
    let found = || {
        let inner = text.strip_prefix(' ').unwrap_or(text).strip_prefix("[rank=")?;
        let (digits, rest) = inner.split_once(']')?;
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| plain)?;
        Some((number, rest.strip_prefix(' ').unwrap_or(rest)))
    };
    found().map_or((None, text), |(number, rest)| (Some(number), rest))
}

/// Takes `LEVEL:` and an optional blank away.
fn level(text: &str) -> (Option<LogLevel>, &str) {
    let levels = [LogLevel::Debug, LogLevel::Info, LogLevel::Warning, LogLevel::Error, LogLevel::Critical];
    for level in levels {
        if let Some(rest) = text.strip_prefix(level.word()).and_then(|rest| rest.strip_prefix(':')) {
            return (Some(level), rest.strip_prefix(' ').unwrap_or(rest));
        }
    }
    (None, text)
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Cutter {
    unfinished: Vec<u8>,
}

impl Cutter {
    /// Takes what has come; gives the lines that are complete.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let room = LONGEST_LINE - self.unfinished.len();
            let end = bytes.iter().position(|byte| *byte == b'\n' || *byte == b'\r');
            match end.filter(|end| *end <= room) {
                Some(end) => {
                    self.unfinished.extend_from_slice(&bytes[..end]);
                    bytes = &bytes[end + 1..];
                    self.finish(&mut each);
                }
                None => {
                    let taken = room.min(bytes.len());
                    self.unfinished.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if self.unfinished.len() == LONGEST_LINE && !bytes.is_empty() {
                        self.finish(&mut each);
                    }
                }
            }
        }
    }

    /// Gives what is left at the end of the stream.
    pub fn close(&mut self, mut each: impl FnMut(&[u8])) {
        if !self.unfinished.is_empty() {
            self.finish(&mut each);
        }
    }

    fn finish(&mut self, each: &mut impl FnMut(&[u8])) {
        each(&self.unfinished);
        self.unfinished.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn cut(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut cutter, mut lines) = (Cutter::default(), Vec::new());
        for part in parts {
            cutter.push(part, |line| lines.push(line.to_vec()));
        }
        cutter.close(|line| lines.push(line.to_vec()));
        lines
    }

    #[test]
    fn lines_are_read_as_determined_reads_them() {
        use LogLevel::{Critical, Error, Info};
        let cases: [(&str, Option<i64>, Option<LogLevel>, &str); 13] = [
            ("plain", None, None, "plain\n"),
            ("", None, None, "\n"),
            ("[rank=3] INFO: [7] root: x", Some(3), Some(Info), "[7] root: x\n"),
            (" [rank=12]ERROR:x", Some(12), Some(Error), "x\n"),
            ("  [rank=1] x", None, None, "  [rank=1] x\n"),
            ("[rank=x] INFO: y", None, None, "[rank=x] INFO: y\n"),
            ("[rank=-1] y", None, None, "[rank=-1] y\n"),
            ("[rank=+1] y", None, None, "[rank=+1] y\n"),
            ("[rank=] y", None, None, "[rank=] y\n"),
            ("[rank=99999999999999999999] y", None, None, "[rank=99999999999999999999] y\n"),
            ("CRITICAL:  two blanks", None, Some(Critical), " two blanks\n"),
            ("INFORMATION: x", None, None, "INFORMATION: x\n"),
            ("a\0b", None, None, "a\0b\n"),
        ];
        for (given, rank, level, text) in cases {
            assert_eq!(Line::read(given.as_bytes()), Line { rank, level, text: text.to_owned() }, "{given:?}");
        }
        assert_eq!(Line::read(b"\xff!").text, "\u{fffd}!\n");
    }

    #[test]
    fn lines_end_at_either_sign_and_when_they_are_long() {
        assert_eq!(cut(&[b"a\rb\n", b"c", b"d"]), [b"a".to_vec(), b"b".to_vec(), b"cd".to_vec()]);
        let exact = vec![b'x'; LONGEST_LINE];
        assert_eq!(cut(&[&exact, b"\n"]), std::slice::from_ref(&exact));
        let longer = vec![b'x'; LONGEST_LINE + 1];
        assert_eq!(cut(&[&longer, b"\n"]), [exact, b"x".to_vec()]);
        assert!(cut(&[b""]).is_empty());
    }

    proptest! {
        #[test]
        fn how_bytes_arrive_does_not_matter(parts in vec(vec(any::<u8>(), 0..9000), 0..6)) {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let whole = parts.concat();
            let lines = cut(&slices);
            prop_assert_eq!(&lines, &cut(&[&whole]));
            prop_assert!(lines.iter().all(|line| line.len() <= LONGEST_LINE));
            let kept: usize = lines.iter().map(Vec::len).sum();
            let signs = whole.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
            prop_assert_eq!(kept, whole.len() - signs);
            for line in lines {
                prop_assert!(Line::read(&line).text.ends_with('\n'));
            }
        }
    }
}
