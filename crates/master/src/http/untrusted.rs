//! The part of [`crate::untrusted`] that only this module can reach.

use axum::http::{HeaderMap, HeaderValue, Uri, header};

use super::call::{Query, check_names, decoded};
use super::cookies;
use super::framing::Framing;
use super::task_pages::{TICKET, without_ticket};

pub(crate) fn connection(bytes: &[u8], piece: usize) {
    let (mut whole, mut pieces) = (Framing::new(), Framing::new());
    whole.feed(bytes);
    bytes.chunks(piece).for_each(|part| pieces.feed(part));
    let seen = |framing: &Framing| (framing.place(), framing.heads(), framing.is_ambiguous());
    assert_eq!(seen(&whole), seen(&pieces));
}

pub(crate) fn address(text: &str) {
    let query = Query::parse(text, &["limit", "offset", "orderBy", "name", "time"]);
    let _ = (query.slice(None).is_ok(), query.order().is_ok(), query.time("time").is_ok(), query.texts("name"));
    assert!(decoded(text).len() <= 3 * text.len());
    if let Ok(uri) = text.parse::<Uri>()
        && let Ok(page) = without_ticket(&uri).0.parse::<Uri>()
    {
        assert_eq!(without_ticket(&page).1, None, "{TICKET} is passed on");
    }
}

pub(crate) fn cookies(text: &str) {
    let Ok(value) = HeaderValue::from_str(text) else { return };
    let headers = HeaderMap::from_iter([(header::COOKIE, value)]);
    if let Some(theirs) = cookies::for_task(&headers) {
        assert!(!theirs.to_str().is_ok_and(|theirs| theirs.to_ascii_lowercase().contains("__host-instep_session")));
    }
    if let Some(set) = cookies::from_task(text, "t") {
        let set = set.to_str().expect("plain text only");
        assert!(set.contains("; Path=/proxy/t/"), "{set}");
        assert!(!set.to_ascii_lowercase().contains("; domain"), "{set}");
    }
}

pub(crate) fn body(bytes: &[u8]) {
    let _ = check_names(bytes, &["name", "labels", "user/username"]);
}
