//! A name for every request, by which its answer, its errors and its lines in the log are found together.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};

use crate::random::{bytes, hexadecimal};

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Letters of a caller's own name that are kept.
const LONGEST: usize = 64;

/// The name that the caller or a proxy gave, if it can stand in a log; else one of ours.
pub(crate) fn of(headers: &HeaderMap) -> String {
    let given = headers.get(&HEADER).and_then(|value| value.to_str().ok());
    let plain = |text: &&str| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        !text.is_empty() && text.len() <= LONGEST && text.chars().all(letters)
    };
    given.filter(plain).map_or_else(fresh, str::to_owned)
}

/// The same for the audit log, where nobody's choice can be taken for one of our names: it has a `~` before it.
pub(crate) fn recorded(headers: &HeaderMap, id: &str) -> String {
    let chosen = headers.get(&HEADER).is_some_and(|value| value.as_bytes() == id.as_bytes());
    if chosen { format!("~{id}") } else { id.to_owned() }
}

/// Names the request in its answer.
pub(crate) fn mark(mut response: Response<Body>, id: &str) -> Response<Body> {
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// A name that this machine has not used before: random for the process, then counted.
fn fresh() -> String {
    static PROCESS: OnceLock<String> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let process = PROCESS.get_or_init(|| hexadecimal(&bytes::<4>()));
    format!("{process}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_may_name_their_requests_in_plain_words() {
        let named = |text: &str| of(&HeaderMap::from_iter([(HEADER, HeaderValue::from_str(text).unwrap())]));
        assert_eq!(named("a-1_b.C"), "a-1_b.C");
        for wrong in ["", "two words", "{}", &"x".repeat(LONGEST + 1)] {
            assert_ne!(named(wrong), wrong);
        }
        assert_ne!(of(&HeaderMap::new()), of(&HeaderMap::new()));
        let headers = HeaderMap::from_iter([(HEADER, HeaderValue::from_static("mine"))]);
        assert_eq!(recorded(&headers, &of(&headers)), "~mine");
        let (none, ours) = (HeaderMap::new(), of(&HeaderMap::new()));
        assert_eq!(recorded(&none, &ours), ours);
    }
}
