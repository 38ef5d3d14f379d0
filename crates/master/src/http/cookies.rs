//! Cookies: the master's own, and what may pass between a browser and a task.
//!
//! Browsers share cookies between the ports of a host. The master has two of its own, both out of scripts' reach: one for
//! the session, and one for the key of a task's pages. They have the cluster's name in theirs, so that two masters on one
//! machine do not sign each other's users out. No task is sent one of them, nor may it set one.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};

/// What all names of our cookies begin with.
const OURS: &str = "instep_";
/// With this before its name a cookie is taken only from encrypted answers, for the whole host.
const HOST_PREFIX: &str = "__Host-";
/// Determined's cookie for a token: programs may still show it, and no task may see or set it.
const DETERMINED: &str = "auth";
/// What a task may say of a cookie besides its name and value, with what follows it or not.
const ATTRIBUTES: [&str; 5] = ["expires", "httponly", "max-age", "samesite", "secure"];
/// Bytes of a task's cookie: what browsers take.
const LONGEST: usize = 4096;

/// How the master's own cookies are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CookieNames {
    pub session: String,
    pub key: String,
    encrypted: bool,
}

impl CookieNames {
    /// For a cluster, served with encryption or without.
    pub(crate) fn of(cluster: &str, encrypted: bool) -> CookieNames {
        let name: String = cluster.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        let prefix = if encrypted { HOST_PREFIX } else { "" };
        CookieNames { session: format!("{prefix}{OURS}session_{name}"), key: format!("{OURS}task_{name}"), encrypted }
    }

    /// Lets a browser keep a session. `secure` says that the browser's connection is encrypted, whoever does it.
    pub(crate) fn set_session(&self, token: &str, lifetime: Duration, secure: bool) -> HeaderValue {
        let (name, seconds) = (&self.session, lifetime.as_secs());
        let secure = if secure || self.encrypted { "; Secure" } else { "" };
        written(&format!("{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"))
    }

    /// Lets a browser forget a session.
    pub(crate) fn clear_session(&self) -> HeaderValue {
        self.set_session("", Duration::ZERO, false)
    }

    /// Lets a browser keep a key for the pages of one task. `Lax`, because the way there may begin at another site.
    pub(crate) fn set_key(&self, key: &str, task: &str) -> HeaderValue {
        let secure = if self.encrypted { "; Secure" } else { "" };
        written(&format!("{}={key}; Path={}; HttpOnly; SameSite=Lax{secure}", self.key, path_of(task)))
    }
}

/// Where the pages of a task are.
pub(crate) fn path_of(task: &str) -> String {
    format!("/proxy/{task}/")
}

/// Names are letters, tokens and keys hexadecimal, and a task that has any of them has a plain name.
fn written(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("instep_none=; Max-Age=0"))
}

/// All cookies of a request, as name and value.
fn all(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookies = texts.flat_map(|text| text.split(';')).map(str::trim).filter(|cookie| !cookie.is_empty());
    cookies.map(|cookie| cookie.split_once('=').map_or(("", cookie), |(name, value)| (name.trim(), value.trim())))
}

/// The different values that a request has for a cookie. There are several if some page of the host has set one for a
/// part of it.
pub(crate) fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let mut found: Vec<&str> = all(headers).filter(|(found, _)| *found == name).map(|(_, value)| value).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The values of Determined's cookie.
pub(crate) fn determined_values(headers: &HeaderMap) -> Vec<&str> {
    values(headers, DETERMINED)
}

/// Whether a name is one that only the master uses; browsers look at prefixes without the difference of capitals.
fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let bare = name.trim_start_matches("__host-").trim_start_matches("__secure-").trim_start_matches("__http-");
    name.starts_with("__host-") || name == DETERMINED || bare == DETERMINED || bare.starts_with(OURS)
}

/// The cookies of a request that a task may see.
pub(crate) fn for_task(headers: &HeaderMap) -> Option<HeaderValue> {
    let theirs: Vec<String> = all(headers)
        .filter(|(name, _)| !name.is_empty() && !is_reserved(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    HeaderValue::from_str(&theirs.join("; ")).ok().filter(|value| !value.is_empty())
}

/// What a task's `Set-Cookie` becomes: a cookie for the task's own pages alone. Nothing, if it must not be set at all: a
/// cookie of ours, or one without a name, which a browser could send back as one of ours.
pub(crate) fn from_task(text: &str, task: &str) -> Option<HeaderValue> {
    let mut parts = text.split(';').map(str::trim);
    let (name, value) = parts.next()?.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let plain = text.len() <= LONGEST && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if name.is_empty() || is_reserved(name) || !plain {
        return None;
    }
    let mut cookie = format!("{name}={value}; Path={}", path_of(task));
    for attribute in parts {
        let word = attribute.split('=').next().unwrap_or_default().trim();
        if ATTRIBUTES.iter().any(|known| word.eq_ignore_ascii_case(known)) {
            cookie.push_str("; ");
            cookie.push_str(attribute);
        }
    }
    HeaderValue::from_str(&cookie).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn carrying(cookies: &[&str]) -> HeaderMap {
        cookies.iter().map(|text| (header::COOKIE, HeaderValue::from_str(text).unwrap())).collect()
    }

    #[test]
    fn the_session_s_cookie_is_out_of_reach_of_scripts_and_other_sites() {
        let plain = CookieNames::of("0123-4567-89ab", false);
        let hour = Duration::from_secs(3600);
        assert_eq!(
            plain.set_session("abc", hour, false),
            "instep_session_01234567=abc; Path=/; Max-Age=3600; HttpOnly; SameSite=Strict"
        );
        assert!(plain.set_session("abc", hour, true).to_str().unwrap().ends_with("; Secure"));
        assert!(plain.clear_session().to_str().unwrap().contains("=; Path=/; Max-Age=0;"));
        assert_eq!(plain.set_key("k", "t"), "instep_task_01234567=k; Path=/proxy/t/; HttpOnly; SameSite=Lax");
        let encrypted = CookieNames::of("0123-4567-89ab", true);
        assert!(encrypted.set_session("abc", hour, false).to_str().unwrap().starts_with("__Host-instep_session_"));
        for cookie in
            [encrypted.set_session("abc", hour, false), encrypted.clear_session(), encrypted.set_key("k", "t")]
        {
            assert!(cookie.to_str().unwrap().ends_with("; Secure"), "{cookie:?}");
        }
    }

    #[test]
    fn values_that_differ_are_all_seen() {
        let headers = carrying(&["a=1; b = 2;a=1", "a=3;; c"]);
        assert_eq!(values(&headers, "a"), ["1", "3"]);
        assert_eq!((values(&headers, "b"), values(&headers, "d").len()), (vec!["2"], 0));
    }

    #[test]
    fn a_task_sees_its_own_cookies_alone() {
        let names = [CookieNames::of("0123", false), CookieNames::of("4567", true)];
        let mut cookies = vec!["_xsrf=2|a".to_owned(), "auth=x".to_owned(), "__Host-auth=x".to_owned()];
        cookies.extend(names.iter().flat_map(|names| [format!("{}=x", names.session), format!("{} =x", names.key)]));
        cookies.extend(["instep_session=x".to_owned(), "INSTEP_task=x".to_owned(), "own=1".to_owned()]);
        let headers = carrying(&[&cookies.join(";"), "instep_task_9=x; late=3"]);
        assert_eq!(for_task(&headers).unwrap(), "_xsrf=2|a; own=1; late=3");
        assert_eq!(for_task(&carrying(&["auth=x", ""])), None);
    }

    #[test]
    fn a_task_s_cookies_stay_at_its_own_pages() {
        for (given, becomes) in [
            ("a=1", "a=1; Path=/proxy/t/"),
            ("a=1; Path=/; Domain=example.org; HttpOnly", "a=1; Path=/proxy/t/; HttpOnly"),
            (
                "a=1;PATH=/api;path=/x; max-age=5 ;SameSite=None;Secure",
                "a=1; Path=/proxy/t/; max-age=5; SameSite=None; Secure",
            ),
            (
                "a=b=c; Expires=Wed, 21 Oct 2026 07:28:00 GMT",
                "a=b=c; Path=/proxy/t/; Expires=Wed, 21 Oct 2026 07:28:00 GMT",
            ),
            ("__Secure-x=1; Secure", "__Secure-x=1; Path=/proxy/t/; Secure"),
        ] {
            assert_eq!(from_task(given, "t").unwrap(), becomes, "{given}");
        }
        for refused in [
            "",
            "a",
            "=a",
            "=instep_session_1=x",
            "instep_session_1",
            "auth=x",
            " auth =x",
            "Auth=x",
            "instep_task_1=x",
            "__Host-a=1; Path=/; Secure",
            "__Host-instep_session_1=x",
            "__Secure-instep_session_1=x",
            "a=1\t; Path=/",
            "a=ü",
        ] {
            assert_eq!(from_task(refused, "t"), None, "{refused}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_task_sets_is_for_its_own_pages(text in "([a-zA-Z_ -]{0,12}=?[ -~]{0,20};?){0,4}", other in ".{0,60}") {
            for text in [text, other] {
                let Some(cookie) = from_task(&text, "t") else { continue };
                let cookie = cookie.to_str().unwrap().to_owned();
                let parts: Vec<&str> = cookie.split(';').map(str::trim).collect();
                let word = |part: &str| part.split('=').next().unwrap().trim().to_ascii_lowercase();
                prop_assert_eq!(parts.iter().filter(|part| word(part) == "path").count(), 1 + usize::from(word(parts[0]) == "path"));
                prop_assert_eq!(parts[1], "Path=/proxy/t/");
                prop_assert!(parts[1..].iter().all(|part| word(part) != "domain"), "{}", cookie);
                prop_assert!(!is_reserved(&word(parts[0])) && !word(parts[0]).is_empty(), "{}", cookie);
            }
        }

        #[test]
        fn whatever_a_browser_sends_no_cookie_of_ours_passes(text in "((instep_|auth|__Host-)?[ -:<-~]{0,6}=?[ -~]{0,6};?){0,6}") {
            let headers = carrying(&[&text]);
            if let Some(passed) = for_task(&headers) {
                let passed = HeaderMap::from_iter([(header::COOKIE, passed)]);
                prop_assert!(all(&passed).all(|(name, _)| !name.is_empty() && !is_reserved(name)), "{:?}", passed);
            }
        }
    }
}
