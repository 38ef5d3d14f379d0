//! Where a connection's bytes are: between requests, in a request's head, or in its body.
//!
//! hyper does not show this, and forgets a `Content-Length` that stands beside a `Transfer-Encoding`. A proxy in front of the
//! master may believe the other one, and take for a part of a body what the master takes for a request. Here both are
//! seen. Lines are split as hyper splits them; where it would give up, nothing that follows is believed.

/// Bytes of a line that are looked at: enough for every header that counts here.
const LONGEST_LINE: usize = 256;

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The next request, of which nothing has come.
    Between,
    Head,
    Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    Head,
    /// So many bytes of a body are to come.
    Body(u64),
    ChunkSize,
    /// So many bytes of a chunk are to come, with the end of its line.
    Chunk(u64),
    Trailers,
    /// Nothing is known any more.
    Lost,
}

/// Follows the bytes of one connection.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    line: Vec<u8>,
    length: Option<u64>,
    chunked: bool,
    ambiguous: bool,
    heads: u64,
}

impl Framing {
    pub(crate) fn new() -> Framing {
        Framing { state: State::Between, line: Vec::new(), length: None, chunked: false, ambiguous: false, heads: 0 }
    }

    pub(crate) fn place(&self) -> Place {
        match self.state {
            State::Between | State::Lost => Place::Between,
            State::Head => Place::Head,
            State::Body(_) | State::ChunkSize | State::Chunk(_) | State::Trailers => Place::Body,
        }
    }

    /// How many heads have begun.
    pub(crate) fn heads(&self) -> u64 {
        self.heads
    }

    /// Whether a request's length was said in two ways, or in one that cannot be read. Stays true.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// Takes the next bytes of the connection.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(&first) = bytes.first() {
            match self.state {
                State::Lost => return,
                // Empty lines before a request are no part of it.
                State::Between if matches!(first, b'\r' | b'\n') => bytes = &bytes[1..],
                State::Between => {
                    (self.length, self.chunked) = (None, false);
                    self.heads += 1;
                    self.state = State::Head;
                }
                State::Body(left) => {
                    let (left, rest) = skip(left, bytes);
                    bytes = rest;
                    self.state = if left == 0 { State::Between } else { State::Body(left) };
                }
                State::Chunk(left) => {
                    let (left, rest) = skip(left, bytes);
                    bytes = rest;
                    self.state = if left == 0 { State::ChunkSize } else { State::Chunk(left) };
                }
                State::Head | State::ChunkSize | State::Trailers => bytes = self.take_line(bytes),
            }
        }
    }

    /// Takes bytes up to the end of a line, and gives those behind it.
    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let room = LONGEST_LINE - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        let Some(end) = end else { return &[] };
        let line = std::mem::take(&mut self.line);
        self.end_line(line.strip_suffix(b"\r").unwrap_or(&line));
        &bytes[end + 1..]
    }

    fn end_line(&mut self, line: &[u8]) {
        match self.state {
            State::Head if line.is_empty() => self.end_head(),
            State::Head => self.header(line),
            State::ChunkSize => {
                let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
                let size =
                    std::str::from_utf8(&line[..digits]).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
                self.state = match size.map(|size| size.checked_add(2)) {
                    Some(Some(2)) => State::Trailers,
                    Some(Some(with_end)) => State::Chunk(with_end),
                    Some(None) | None => self.lost(),
                };
            }
            State::Trailers if line.is_empty() => self.state = State::Between,
            State::Between | State::Trailers | State::Body(_) | State::Chunk(_) | State::Lost => {}
        }
    }

    fn header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { return };
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            if length.is_none() || self.length.is_some() && self.length != length {
                self.ambiguous = true;
            }
            self.length = length.or(self.length);
        }
    }

    fn end_head(&mut self) {
        self.ambiguous |= self.chunked && self.length.is_some();
        self.state = match self.length {
            _ if self.chunked => State::ChunkSize,
            Some(length) if length > 0 => State::Body(length),
            Some(_) | None => State::Between,
        };
    }

    fn lost(&mut self) -> State {
        self.ambiguous = true;
        State::Lost
    }
}

/// How much is left to skip, and the bytes behind what was skipped.
fn skip(left: u64, bytes: &[u8]) -> (u64, &[u8]) {
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    (left - count as u64, &bytes[count..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fed(text: &str) -> Framing {
        let mut framing = Framing::new();
        framing.feed(text.as_bytes());
        framing
    }

    #[test]
    fn a_request_is_followed_to_its_end() {
        for (text, place, heads) in [
            ("", Place::Between, 0),
            ("\r\n", Place::Between, 0),
            ("G", Place::Head, 1),
            ("GET / HTTP/1.1\r\nHost: a\r\n", Place::Head, 1),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Place::Between, 1),
            ("GET / HTTP/1.1\nHost: a\n\nGET / HTTP/1.1\n\n", Place::Between, 2),
            ("POST / HTTP/1.1\r\ncontent-length:  3 \r\n\r\n", Place::Body, 1),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", Place::Body, 1),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", Place::Between, 1),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nab", Place::Body, 1),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", Place::Body, 1),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\nGET", Place::Head, 2),
        ] {
            let framing = fed(text);
            assert_eq!((framing.place(), framing.heads(), framing.is_ambiguous()), (place, heads, false), "{text:?}");
        }
    }

    #[test]
    fn two_ways_to_say_a_length_are_seen() {
        for headers in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "transfer-encoding:chunked\r\nCONTENT-LENGTH:3",
            "Content-Length: 3\r\nContent-Length: 4",
            "Content-Length: three",
        ] {
            assert!(fed(&format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n")).is_ambiguous(), "{headers:?}");
        }
        let after_others = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
                            POST / HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(fed(after_others).is_ambiguous());
        assert!(!fed("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n").is_ambiguous());
    }

    proptest! {
        #[test]
        fn any_bytes_are_followed_the_same_in_any_pieces(
            text in "(POST / HTTP/1.1\r\n|Content-Length: 3\r\n|Transfer-Encoding: chunked\r\n|\r\n|[0-9a-f]\r\n|.{0,4}){0,12}",
            size in 1..9_usize,
        ) {
            let mut pieces = Framing::new();
            for piece in text.as_bytes().chunks(size) {
                pieces.feed(piece);
            }
            let whole = fed(&text);
            prop_assert_eq!((pieces.state, pieces.heads, pieces.ambiguous), (whole.state, whole.heads, whole.ambiguous));
        }
    }
}
