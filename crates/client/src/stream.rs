//! Streams: one JSON object a line, `{"result": …}` or, at the end, `{"error": …}`.

use std::io::{BufRead, BufReader, Read};
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::address::Address;
use crate::error::{Error, Result};

/// Bytes of a line at most: a thousand reports, or one very long line of output.
const LONGEST_LINE: u64 = 256 << 20;

/// The elements of a streamed answer, as they come.
pub struct Lines<T> {
    reader: BufReader<Box<dyn Read + Send>>,
    address: Address,
    over: bool,
    elements: PhantomData<fn() -> T>,
}

/// A line.
#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct Line<T> {
    result: Option<T>,
    error: Option<StreamError>,
}

/// Why a stream ends early.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StreamError {
    http_code: u16,
    message: String,
}

impl Default for StreamError {
    fn default() -> StreamError {
        StreamError { http_code: 500, message: "the stream ended with an error".to_owned() }
    }
}

impl<T: DeserializeOwned> Lines<T> {
    pub(crate) fn new(reader: Box<dyn Read + Send>, address: Address) -> Lines<T> {
        Lines { reader: BufReader::new(reader), address, over: false, elements: PhantomData }
    }

    fn read(&mut self) -> Result<Option<T>> {
        let mut line = Vec::new();
        let broken = |error: std::io::Error| Error::Unreachable {
            address: self.address.clone(),
            source: Box::new(ureq::Error::Io(error)),
        };
        (&mut self.reader).take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(broken)?;
        if line.is_empty() {
            return Ok(None);
        }
        let protocol_error = |what: String| Error::Protocol { address: self.address.clone(), what };
        if line.last() != Some(&b'\n') {
            return Err(protocol_error("a stream ended in the middle of a line".to_owned()));
        }
        let line: Line<T> =
            serde_json::from_slice(&line).map_err(|error| protocol_error(format!("in a stream: {error}")))?;
        match line {
            Line { error: Some(error), .. } => Err(Error::Refused { status: error.http_code, message: error.message }),
            Line { result: Some(result), .. } => Ok(Some(result)),
            Line { .. } => Err(protocol_error("a line of a stream has neither result nor error".to_owned())),
        }
    }
}

impl<T: DeserializeOwned> Iterator for Lines<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.over {
            return None;
        }
        let element = self.read();
        self.over = !matches!(element, Ok(Some(_)));
        element.transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};
    use serde_json::Value;

    use super::*;

    fn lines(text: &[u8]) -> Lines<Value> {
        Lines::new(Box::new(std::io::Cursor::new(text.to_owned())), "localhost".parse().unwrap())
    }

    #[test]
    fn a_stream_gives_its_elements_and_then_its_error() {
        let text = b"{\"result\":1}\n{\"result\":{\"a\":2}}\n{\"error\":{\"httpCode\":404,\"message\":\"gone\"}}\n";
        let mut found = lines(text);
        assert_eq!(found.next().unwrap().unwrap(), 1);
        assert_eq!(found.next().unwrap().unwrap()["a"], 2);
        assert!(found.next().unwrap().unwrap_err().is_not_found());
        assert!(found.next().is_none());
    }

    #[test]
    fn a_stream_that_is_cut_off_says_so() {
        for text in [&b"{\"result\":1"[..], b"\n", b"{}\n", b"[]\n", b"\xff\n"] {
            let refused = lines(text).next().unwrap().unwrap_err();
            assert!(matches!(refused, Error::Protocol { .. }), "{text:?}: {refused}");
        }
        assert!(lines(b"").next().is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_end_a_stream_without_a_panic(bytes in any::<Vec<u8>>()) {
            prop_assert!(lines(&bytes).count() <= bytes.len() + 1);
        }
    }
}
