//! A request as handlers see it.

use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::ws::WebSocketUpgrade;
use axum::http::{HeaderMap, Uri};
use hyper::upgrade::OnUpgrade;
use instep_api::pages::{Order, Slice};
use instep_api::users::User;
use instep_api::wire::{Timestamp, camel_case};
use instep_database::SessionTask;
use instep_policy::permissions::Grants;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::Failure;
use super::route::Route;
use crate::application::Application;
use crate::audit::Noted;
use crate::names;
use crate::peer::Peer;

/// A request that was let through.
pub(crate) struct Call {
    pub application: Arc<Application>,
    /// Which row of the table it is.
    pub route: Arc<Route>,
    /// Where it came from.
    pub peer: Peer,
    /// Whose token it carries.
    pub user: Option<User>,
    /// The task whose token it is.
    pub task: Option<SessionTask>,
    /// What the user has been given; `None` without roles.
    pub grants: Option<Arc<Grants>>,
    /// Whether anybody has asked what the caller may see or make.
    pub asked: Arc<AtomicBool>,
    /// When the token's session was opened.
    pub opened_at: Option<Timestamp>,
    /// The token is an access token, and not a login's.
    pub by_access_token: bool,
    /// The token itself.
    pub token: Option<String>,
    /// The token came in a cookie, which a browser sends by itself.
    pub by_cookie: bool,
    /// The variable parts of the path, decoded, in their order.
    pub path: Vec<(String, String)>,
    pub query: Query,
    /// The types of answers that the caller takes.
    pub accept: Option<String>,
    /// All headers, and the whole address: for what is passed on.
    pub headers: HeaderMap,
    pub uri: Uri,
    pub body: Bytes,
    /// The body as it comes, where it is passed on to a task; behind a lock, since nobody can share it.
    pub passed: Mutex<Option<Body>>,
    /// What the audit log is told of it.
    pub noted: Arc<Noted>,
    /// What makes a websocket of the connection, where the route is one and the caller asks for it.
    pub upgrade: Option<WebSocketUpgrade>,
    /// The caller's end of a connection that is to become something else, where that is passed on to a task.
    pub on_upgrade: Option<OnUpgrade>,
}

impl Call {
    /// The caller; routes for everybody have none.
    pub(crate) fn user(&self) -> Result<&User, Failure> {
        self.user.as_ref().ok_or_else(Failure::unauthenticated)
    }

    /// A variable part of the path.
    pub(crate) fn part(&self, name: &str) -> &str {
        self.path.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// A variable part of the path that is a number.
    pub(crate) fn id<T: FromStr>(&self, name: &str) -> Result<T, Failure> {
        let text = self.part(name);
        text.parse().map_err(|_| Failure::invalid(format!("`{text}` in the address is not a valid number")))
    }

    /// For a pair of routes that end in `archive` and `unarchive`: whether it is the first.
    pub(crate) fn archives(&self) -> bool {
        self.route.path.ends_with("/archive")
    }

    /// The body as a JSON object, whatever its `Content-Type` says; an empty one is `{}`.
    pub(crate) fn json<T: DeserializeOwned + 'static>(&self) -> Result<T, Failure> {
        debug_assert!(self.route.declares_request::<T>(), "{} takes something else in the table", self.route.path);
        let body = match self.body.trim_ascii() {
            b"" => b"{}",
            // Without this a list would be taken for the values of the fields, in their order.
            body if !body.starts_with(b"{") => return Err(unreadable("it is not an object")),
            body => body,
        };
        check_names(body, self.route.names)?;
        serde_json::from_slice(body).map_err(|error| unreadable(&error.to_string()))
    }

    /// The body as a JSON list; an empty one is `[]`.
    pub(crate) fn json_list<T: DeserializeOwned + 'static>(&self) -> Result<Vec<T>, Failure> {
        debug_assert!(self.route.declares_request::<Vec<T>>(), "{} takes something else in the table", self.route.path);
        let body = if self.body.trim_ascii().is_empty() { b"[]".as_slice() } else { &self.body };
        serde_json::from_slice(body).map_err(|error| unreadable(&error.to_string()))
    }
}

/// Refuses control characters in the fields of a body that are names, each a path such as `user/username`.
pub(crate) fn check_names(body: &[u8], fields: &[&str]) -> Result<(), Failure> {
    // JSON can only say them with a backslash.
    if fields.is_empty() || !body.contains(&b'\\') {
        return Ok(());
    }
    let body: Value = serde_json::from_slice(body).map_err(|error| unreadable(&error.to_string()))?;
    for field in fields {
        let texts = match body.pointer(&format!("/{field}")) {
            Some(Value::String(text)) => vec![text.as_str()],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => continue,
        };
        if let Some(objection) = texts.into_iter().find_map(names::objection) {
            return Err(Failure::invalid(format!("`{}` {objection}", field.replace('/', "."))));
        }
    }
    Ok(())
}

/// Refuses control characters in the parts of a path by which something is made.
pub(crate) fn check_path_names(parts: &[(String, String)]) -> Result<(), Failure> {
    let objection = parts.iter().find_map(|(name, value)| Some((name, names::objection(value)?)));
    match objection {
        Some((name, objection)) => Err(Failure::invalid(format!("`{name}` in the address {objection}"))),
        None => Ok(()),
    }
}

fn unreadable(why: &str) -> Failure {
    Failure::invalid(format!("cannot read the request's body: {why}"))
}

/// The parameters behind the question mark, named in camelCase however they were spelled.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    /// The parameters that the table names for this route.
    known: &'static [&'static str],
}

impl Query {
    /// Reads `a=1&b=x%20y`.
    pub(crate) fn parse(text: &str, known: &'static [&'static str]) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (camel_case(&decoded(name)), decoded(value))
        });
        Query { pairs: pairs.collect(), known }
    }

    /// All values of a parameter, which the table must name: what it says is what the OpenAPI document shows.
    fn all(&self, name: &str) -> impl DoubleEndedIterator<Item = &str> {
        debug_assert!(self.known.contains(&name), "the table of routes does not name the parameter `{name}`");
        let pairs = self.pairs.iter().filter(move |(key, value)| key == name && !value.is_empty());
        pairs.map(|(_, value)| value.as_str())
    }

    /// The value of a parameter, if it has one.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.all(name).next_back()
    }

    /// All values of a parameter that may be repeated.
    pub(crate) fn texts(&self, name: &str) -> Vec<String> {
        self.all(name).map(str::to_owned).collect()
    }

    /// A parameter of another type.
    pub(crate) fn value<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failure> {
        let wrong = |text: &str| Failure::invalid(format!("`{text}` is not a valid value of `{name}`"));
        self.text(name).map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }

    /// All values of a parameter of another type.
    pub(crate) fn values<T: FromStr>(&self, name: &str) -> Result<Vec<T>, Failure> {
        let wrong = |text: &str| Failure::invalid(format!("`{text}` is not a valid value of `{name}`"));
        self.texts(name).iter().map(|text| text.parse().map_err(|_| wrong(text))).collect()
    }

    /// A parameter that is a time.
    pub(crate) fn time(&self, name: &str) -> Result<Option<Timestamp>, Failure> {
        let wrong = |text: &str| Failure::invalid(format!("`{text}` is not a time, as `{name}` must be"));
        self.text(name).map(|text| Timestamp::parse(text).ok_or_else(|| wrong(text))).transpose()
    }

    /// Which part of a list is wanted.
    pub(crate) fn slice(&self, default_limit: Option<i64>) -> Result<Slice, Failure> {
        let offset = self.value("offset")?.unwrap_or(0);
        let limit = self.value("limit")?.unwrap_or(0);
        if limit < -2 {
            return Err(Failure::invalid(format!("limit {limit} is not valid: -1 for all, -2 for none")));
        }
        Ok(Slice { offset, limit, default_limit })
    }

    /// In which order a list is wanted, if it says so.
    pub(crate) fn order(&self) -> Result<Option<Order>, Failure> {
        Order::parse(self.text("orderBy").unwrap_or_default()).map_err(Failure::invalid)
    }
}

/// Undoes percent encoding, and `+` for a space. What is not valid stays as it is.
pub(crate) fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut result = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let digits = bytes.get(index + 1..index + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match (bytes[index], digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                result.push(byte);
                index += 3;
            }
            (b'+', _) => {
                result.push(b' ');
                index += 1;
            }
            (byte, _) => {
                result.push(byte);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&result).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_control_characters_pass() {
        let fields: &[&str] = &["name", "labels", "user/username"];
        let check = |body: &str| check_names(body.as_bytes(), fields).map_err(|failure| failure.message);
        for body in [
            "{}",
            r#"{"name": "a", "description": "two\nlines"}"#,
            r#"{"name": "\u00fc \"quoted\"", "metadata": {"name": "a\u0000"}}"#,
            r#"{"name": null, "labels": [], "user": {"displayName": "a"}}"#,
        ] {
            assert_eq!(check(body), Ok(()), "{body}");
        }
        for (body, field) in [
            (r#"{"name": "a\u0000"}"#, "`name` has the control character U+0000"),
            (r#"{"labels": ["a", "b\nc"]}"#, "`labels` has the control character U+000A"),
            (r#"{"user": {"username": "\u001b"}}"#, "`user.username` has the control character U+001B"),
        ] {
            assert!(check(body).unwrap_err().starts_with(field), "{body}");
        }
    }

    #[test]
    fn queries_are_read_in_both_spellings_and_with_repetitions() {
        let query = Query::parse(
            "states=A&states=B&order_by=ORDER_BY_DESC&name=a%20b+c%zz&empty=&follow=true",
            &["states", "orderBy", "name", "empty", "follow"],
        );
        assert_eq!(query.texts("states"), ["A", "B"]);
        assert_eq!(query.order().unwrap(), Some(Order::Descending));
        assert_eq!(query.text("name"), Some("a b c%zz"));
        assert_eq!(query.text("empty"), None);
        assert_eq!(query.value::<bool>("follow").unwrap(), Some(true));
        assert!(query.value::<i64>("follow").is_err());
    }
}
