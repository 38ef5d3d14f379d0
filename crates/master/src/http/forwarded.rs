//! The header in which a master that passes a request on says for whom: the secret of the leader's term, which only the
//! masters of one database know, and the caller's address.
//!
//! ```text
//! Instep-Forwarded: SECRET ADDRESS:PORT
//! ```
//!
//! It is believed with the right secret alone, and no handler sees it.

use std::net::SocketAddr;

use axum::http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::passwords::token_hash;

pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("instep-forwarded");

/// What stands in the header.
pub(crate) fn value(secret: &str, caller: SocketAddr) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("{secret} {caller}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Takes the header off a request, however often it is there.
pub(crate) fn take(headers: &mut HeaderMap) -> Option<HeaderValue> {
    headers.remove(FORWARDED)
}

/// The caller, if a master of this term says who it is. The hashes are compared, so that how long it takes says nothing of
/// the secret.
pub(crate) fn caller(value: &HeaderValue, secret: &str) -> Option<SocketAddr> {
    let (given, address) = value.to_str().ok()?.split_once(' ')?;
    let address = address.parse().ok()?;
    (token_hash(given) == token_hash(secret)).then_some(address)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn only_the_secret_of_the_term_counts() {
        let caller_of = |text: &str| caller(&HeaderValue::from_str(text).unwrap(), "s3cret");
        assert_eq!(caller_of("s3cret 10.0.0.1:80"), Some("10.0.0.1:80".parse().unwrap()));
        assert_eq!(caller_of("s3cret [::1]:80"), Some("[::1]:80".parse().unwrap()));
        for wrong in
            ["", " ", "s3cret", "s3cret ", "other 10.0.0.1:80", " 10.0.0.1:80", "s3cret 10.0.0.1", "s3cre 1.1.1.1:1"]
        {
            assert_eq!(caller_of(wrong), None, "{wrong}");
        }
        let mut headers = HeaderMap::new();
        for text in ["a 1.1.1.1:1", "b 2.2.2.2:2"] {
            headers.append(FORWARDED, HeaderValue::from_static(text));
        }
        assert!(take(&mut headers).is_some());
        assert!(headers.is_empty(), "none of them is left for a handler");
    }

    proptest! {
        #[test]
        fn what_a_master_says_is_read_back_and_anything_else_is_not_believed(
            ip in any::<IpAddr>(), port in any::<u16>(), bytes in proptest::collection::vec(32..=255_u8, 0..80)
        ) {
            let address = SocketAddr::new(ip, port);
            prop_assert_eq!(caller(&value("s3cret", address).unwrap(), "s3cret"), Some(address));
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                prop_assert_eq!(caller(&value, "a secret that nobody guesses"), None);
            }
        }
    }
}
