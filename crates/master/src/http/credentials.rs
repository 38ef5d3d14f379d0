//! What a request shows to say who asks, and whether a browser was told to send it by a page that may.
//!
//! A token in a header was put there on purpose. A cookie is sent by the browser whatever page asks for it: with
//! `SameSite=Strict` not for other sites, but for the pages of other ports of the host, which are the same site, and
//! where tasks have theirs. So a cookie counts only if the browser says that a page of this origin asks (`Origin`,
//! `Sec-Fetch-Site`), and without that for reading alone: browsers say `Origin` with everything else.

use axum::http::{HeaderMap, header};
use instep_api::error::Code;

use super::cookies::{CookieNames, determined_values, values};
use super::failure::Failure;

/// What a request shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// Nothing.
    None,
    /// A token in a header: a user's or a task's.
    Bearer(String),
    /// A session's token in a cookie.
    Cookie(String),
}

/// Reads what a request shows.
pub(crate) fn credential(headers: &HeaderMap, names: &CookieNames) -> Result<Credential, Failure> {
    let bearer = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?;
        value.strip_prefix("Bearer ").map(|token| token.trim().to_owned())
    };
    if let Some(token) = bearer("authorization").or_else(|| bearer("grpc-metadata-x-allocation-token")) {
        return Ok(Credential::Bearer(token));
    }
    // A page of another port can set a second one; which of them is the user's nobody can say.
    match values(headers, &names.session)[..] {
        [] => {}
        [token] => return Ok(Credential::Cookie(token.to_owned())),
        [_, _, ..] => {
            let what =
                "the browser sends several sessions of this master\nhint: delete the cookies of this host, and sign in";
            return Err(Failure::new(Code::Unauthenticated, what));
        }
    }
    // Programs may show a token as they would to Determined's master. Browsers have the cookie above.
    let of_browser = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    match determined_values(headers)[..] {
        [token] if !of_browser => Ok(Credential::Cookie(token.to_owned())),
        _ => Ok(Credential::None),
    }
}

fn word<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a cookie counts: a page of this origin asks, or nothing says otherwise and nothing is changed. That an
/// `Origin` is ours has been checked by then.
pub(crate) fn check_cookie_use(headers: &HeaderMap, changes: bool) -> Result<(), Failure> {
    match word(headers, "sec-fetch-site") {
        Some("same-origin") => return Ok(()),
        Some("none") | None => {}
        Some(_) => return Err(Failure::forbidden("pages of another origin may not use this session")),
    }
    if changes && !headers.contains_key(header::ORIGIN) {
        return Err(Failure::forbidden(
            "a session's cookie changes something only with the header Origin, as browsers send it\n\
             hint: programs send the token in the header Authorization",
        ));
    }
    Ok(())
}

/// Whether a browser asks for a page to show, and not for something that a page uses.
pub(crate) fn is_navigation(headers: &HeaderMap) -> bool {
    match (word(headers, "sec-fetch-mode"), word(headers, "sec-fetch-dest")) {
        (Some(mode), dest) => mode == "navigate" && dest.is_none_or(|dest| dest == "document"),
        (None, _) => word(headers, "accept").is_some_and(|accept| accept.contains("text/html")),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        given.iter().map(header).collect()
    }

    #[test]
    fn a_header_counts_before_a_cookie_and_ours_before_determined_s() {
        let names = CookieNames::of("01234567", false);
        let read = |given: &[(&'static str, &str)]| credential(&headers(given), &names).unwrap();
        let (ours, theirs) = ("auth=b; instep_session_01234567=a", "auth=b");
        assert_eq!(read(&[]), Credential::None);
        assert_eq!(read(&[("cookie", ours), ("authorization", "Bearer  t ")]), Credential::Bearer("t".into()));
        assert_eq!(read(&[("grpc-metadata-x-allocation-token", "Bearer t")]), Credential::Bearer("t".into()));
        assert_eq!(read(&[("cookie", ours)]), Credential::Cookie("a".into()));
        assert_eq!(read(&[("cookie", theirs)]), Credential::Cookie("b".into()));
        for of_browser in [("origin", "http://localhost"), ("sec-fetch-site", "same-origin")] {
            assert_eq!(read(&[("cookie", theirs), of_browser]), Credential::None);
            assert_eq!(read(&[("cookie", ours), of_browser]), Credential::Cookie("a".into()));
        }
        // Another cluster's on the same host, and the key of a task's pages, are not ours.
        for other in ["instep_session_9=a", "instep_task_01234567=a", "__Host-instep_session_01234567=a"] {
            assert_eq!(read(&[("cookie", other)]), Credential::None, "{other}");
        }
    }

    #[test]
    fn a_second_session_that_a_page_has_set_is_not_believed() {
        let names = CookieNames::of("01234567", false);
        let both = headers(&[("cookie", "instep_session_01234567=evil; instep_session_01234567=mine")]);
        assert!(credential(&both, &names).unwrap_err().message.contains("several sessions"));
        let twice = headers(&[("cookie", "instep_session_01234567=mine; instep_session_01234567=mine")]);
        assert_eq!(credential(&twice, &names).unwrap(), Credential::Cookie("mine".into()));
    }

    #[test]
    fn a_cookie_counts_for_pages_of_this_origin() {
        let origin = ("origin", "http://localhost:8080");
        let site = |value| ("sec-fetch-site", value);
        // What the browser says; whether it may read, whether it may change something.
        for (given, reads, changes) in [
            (vec![], true, false),
            (vec![origin], true, true),
            (vec![site("same-origin")], true, true),
            (vec![site("same-origin"), origin], true, true),
            (vec![site("none")], true, false),
            (vec![site("same-site")], false, false),
            (vec![site("cross-site")], false, false),
            (vec![site("same-site"), origin], false, false),
            (vec![site("new-word"), origin], false, false),
        ] {
            let headers = headers(&given);
            let found = [false, true].map(|changes| check_cookie_use(&headers, changes).is_ok());
            assert_eq!(found, [reads, changes], "{given:?}");
        }
    }

    #[test]
    fn pages_are_told_from_what_pages_use() {
        let (navigate, html) = (("sec-fetch-mode", "navigate"), ("accept", "text/html,*/*"));
        for (given, expected) in [
            (vec![html], true),
            (vec![("accept", "*/*")], false),
            (vec![navigate, ("sec-fetch-dest", "document")], true),
            (vec![navigate, ("sec-fetch-dest", "iframe"), html], false),
            (vec![("sec-fetch-mode", "cors"), html], false),
            (vec![], false),
        ] {
            assert_eq!(is_navigation(&headers(&given)), expected, "{given:?}");
        }
    }
}
