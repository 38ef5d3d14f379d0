//! A client of the API server: the few calls that running Jobs takes.
//!
//! A call opens a connection of its own and has a deadline. Answers are bounded; what they say becomes a typed object or
//! an [`Error`], which knows whether the same call may succeed later.

use std::fmt::Write;
use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::StreamExt;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::access::Access;
use super::objects::{List, Object, Status, WatchEvent, watch_event};

/// To connect and be answered.
const PATIENCE: Duration = Duration::from_secs(20);
/// Objects in one answer; a pod with its managed fields has some 10 KiB.
const PAGE: u32 = 250;
/// Pages of one list: what is more is not ours.
const MOST_PAGES: usize = 400;
/// An answer, or a line of a watch. etcd takes objects of 1.5 MiB.
const LONGEST_ANSWER: usize = 32 << 20;
const LONGEST_LINE: usize = 4 << 20;
/// A watch ends after this time, and begins again where it was.
const WATCH_SECONDS: u64 = 240;
/// The server sends a bookmark about every minute; silence of twice that means that nobody is there.
const SILENCE: Duration = Duration::from_secs(150);
/// Of an error, what people are shown.
const LONGEST_MESSAGE: usize = 1000;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nobody answered, or not in time.
    /// Users read it, and have no business with the server's address: the log of the master has it at the start.
    #[error("cannot reach the API server: {0}")]
    Unreachable(String),
    /// The server refused.
    #[error("the API server refused to {what}: {} ({})", .status.message, .status.reason)]
    Refused { what: String, status: Status },
    /// The answer makes no sense.
    #[error("cannot read the answer of the API server to {what}: {why}")]
    Unreadable { what: String, why: String },
    /// We cannot say who we are.
    #[error("cannot log in to the API server: {0}")]
    Login(String),
}

impl Error {
    /// Whether the same call may succeed later without anybody changing anything.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Error::Unreachable(_) | Error::Unreadable { .. } | Error::Login(_) => true,
            Error::Refused { status, .. } => status.is_retryable(),
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Error::Refused { status, .. } => Some(status.code),
            _ => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    pub(crate) fn already_exists(&self) -> bool {
        matches!(self, Error::Refused { status, .. } if status.code == 409 && status.reason == "AlreadyExists")
    }

    pub(crate) fn is_expired(&self) -> bool {
        matches!(self, Error::Refused { status, .. } if status.is_expired())
    }

    /// When to come again, if the server says.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Refused { status, .. } => Some(status.details.retry_after_seconds)
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(u64::from(seconds.min(60)))),
            _ => None,
        }
    }
}

/// Which objects a list or a watch is about.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    pub namespace: String,
    /// A label selector: `a=b,c=d`.
    pub labels: String,
}

/// An API server, and who we are there.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    access: Access,
}

impl Client {
    pub(crate) fn new(access: Access) -> Client {
        Client { access }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Makes an object, which says itself what and where it is; gives what the server made of it.
    pub(crate) async fn create<T: DeserializeOwned>(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        object: &Value,
    ) -> Result<T, Error> {
        let what = format!("create {plural} in {namespace}");
        let path = collection(group, plural, namespace);
        self.ask(&what, Method::POST, &path, Some(object)).await
    }

    /// Deletes an object of this name, and what it owns.
    pub(crate) async fn delete(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Result<(), Error> {
        let what = format!("delete {plural} {name}");
        let path = format!("{}/{}", collection(group, plural, namespace), encoded(name));
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        self.ask::<Value>(&what, Method::DELETE, &path, Some(&options)).await.map(drop)
    }

    /// Changes parts of an object: a JSON merge patch.
    pub(crate) async fn patch<T: Object>(&self, namespace: &str, name: &str, change: &Value) -> Result<T, Error> {
        let what = format!("patch {} {name}", T::PLURAL);
        let path = format!("{}/{}", collection(T::GROUP, T::PLURAL, namespace), encoded(name));
        self.ask(&what, Method::PATCH, &path, Some(change)).await
    }

    pub(crate) async fn get<T: Object>(&self, namespace: &str, name: &str) -> Result<T, Error> {
        let what = format!("get {} {name}", T::PLURAL);
        let path = format!("{}/{}", collection(T::GROUP, T::PLURAL, namespace), encoded(name));
        self.ask(&what, Method::GET, &path, None).await
    }

    /// All objects of a selection, and the version from which on to watch.
    pub(crate) async fn list<T: Object>(&self, selection: &Selection) -> Result<(Vec<T>, String), Error> {
        let what = format!("list {} in {}", T::PLURAL, selection.namespace);
        let base = collection(T::GROUP, T::PLURAL, &selection.namespace);
        let labels = encoded(&selection.labels);
        let (mut found, mut next) = (Vec::new(), String::new());
        for _ in 0..MOST_PAGES {
            let path = format!("{base}?labelSelector={labels}&limit={PAGE}&continue={}", encoded(&next));
            let page: List<T> = self.ask(&what, Method::GET, &path, None).await?;
            found.extend(page.items);
            if page.metadata.next.is_empty() {
                return Ok((found, page.metadata.resource_version));
            }
            next = page.metadata.next;
        }
        Err(Error::Unreadable { what, why: format!("there are more than {MOST_PAGES} pages") })
    }

    /// What changes in a selection after a version.
    pub(crate) async fn watch<T: Object>(&self, selection: &Selection, version: &str) -> Result<Watch<T>, Error> {
        let what = format!("watch {} in {}", T::PLURAL, selection.namespace);
        let path = format!(
            "{}?labelSelector={}&watch=1&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={WATCH_SECONDS}",
            collection(T::GROUP, T::PLURAL, &selection.namespace),
            encoded(&selection.labels),
            encoded(version),
        );
        let (response, connection) = self.send(Method::GET, &path, None).await?;
        if !response.status().is_success() {
            return Err(self.refusal(&what, response).await);
        }
        let body = Body::new(response.into_body()).into_data_stream();
        Ok(Watch { what, lines: Lines::default(), body, _connection: connection, kind: PhantomData })
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        let asking = async {
            let (response, _connection) = self.send(method, path, body).await?;
            if !response.status().is_success() {
                return Err(self.refusal(what, response).await);
            }
            let bytes = self.whole(what, response).await?;
            let read = serde_json::from_slice(&bytes);
            read.map_err(|error| Error::Unreadable { what: what.to_owned(), why: error.to_string() })
        };
        Client::in_time(asking).await
    }

    async fn in_time<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::time::timeout(PATIENCE, call)
            .await
            .unwrap_or_else(|_| Err(unreachable(format_args!("no answer within {} s", PATIENCE.as_secs()))))
    }

    /// Opens a connection and asks; the connection lives as long as what keeps it.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(Response<hyper::body::Incoming>, Connection), Error> {
        let asking = async {
            let access = &self.access;
            let stream = TcpStream::connect((access.host.as_str(), access.port)).await;
            let stream = stream.map_err(unreachable)?;
            let stream = TlsConnector::from(access.tls.clone()).connect(access.name.clone(), stream).await;
            let stream = stream.map_err(unreachable)?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
            // It ends with the request, or with `Connection`.
            let connection = Connection(tokio::spawn(async { drop(connection.await) }).abort_handle());
            let request = self.request(method, path, body)?;
            let response = sender.send_request(request).await.map_err(unreachable)?;
            Ok((response, connection))
        };
        Client::in_time(asking).await
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Request<Body>, Error> {
        let Access { host, port, .. } = &self.access;
        let host = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let is_patch = method == Method::PATCH;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/{path}"))
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("instep/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = self.access.token.read().map_err(Error::Login)? {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = match body {
            Some(body) => {
                let kind = if is_patch { "application/merge-patch+json" } else { "application/json" };
                request = request.header(header::CONTENT_TYPE, kind);
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        request.body(body).map_err(|error| Error::Login(format!("the token is no token: {error}")))
    }

    async fn whole(&self, what: &str, response: Response<hyper::body::Incoming>) -> Result<Bytes, Error> {
        let body = axum::body::to_bytes(Body::new(response.into_body()), LONGEST_ANSWER).await;
        body.map_err(|error| Error::Unreadable { what: what.to_owned(), why: error.to_string() })
    }

    /// What a server says that does not do what it is asked.
    async fn refusal(&self, what: &str, response: Response<hyper::body::Incoming>) -> Error {
        let code = response.status().as_u16();
        let bytes = match tokio::time::timeout(PATIENCE, self.whole(what, response)).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return error,
            Err(_) => Bytes::new(),
        };
        Error::Refused { what: what.to_owned(), status: status(code, &bytes) }
    }
}

fn unreachable(why: impl std::fmt::Display) -> Error {
    Error::Unreachable(why.to_string())
}

/// What an answer says that is no success, whoever on the way has made it.
fn status(code: u16, body: &[u8]) -> Status {
    let read = serde_json::from_slice(body)
        .unwrap_or_else(|_| Status { message: String::from_utf8_lossy(body).into_owned(), ..Status::default() });
    let mut status = Status { code, ..read };
    status.message = shown(&status.message);
    status.reason = shown(&status.reason);
    if status.reason.is_empty() {
        status.reason = format!("HTTP {code}");
    }
    status
}

/// Text of the cluster as people may be shown it: short, in one line, and nothing that a terminal would obey.
pub(crate) fn shown(text: &str) -> String {
    let plain = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let mut plain: String = plain.take(LONGEST_MESSAGE).collect();
    plain.truncate(plain.trim_end().len());
    plain
}

/// Ends a connection with whoever needed it.
struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A stream of changes.
pub(crate) struct Watch<T> {
    what: String,
    lines: Lines,
    body: BodyDataStream,
    _connection: Connection,
    kind: PhantomData<fn() -> T>,
}

impl<T: Object> Watch<T> {
    /// The next change; `None` when the server has ended the watch, as it does after some minutes.
    pub(crate) async fn next(&mut self) -> Result<Option<WatchEvent<T>>, Error> {
        let unreadable = |why: String| Error::Unreadable { what: self.what.clone(), why };
        loop {
            if let Some(line) = self.lines.next() {
                if line.is_empty() {
                    continue;
                }
                return watch_event(&line).map(Some).map_err(|error| unreadable(error.to_string()));
            }
            match tokio::time::timeout(SILENCE, self.body.next()).await {
                Err(_) => return Err(unreadable(format!("nothing came for {} s", SILENCE.as_secs()))),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(unreadable(error.to_string())),
                Ok(Some(Ok(bytes))) => self.lines.feed(&bytes).map_err(unreadable)?,
            }
        }
    }
}

/// Bytes become lines.
#[derive(Debug, Default)]
struct Lines {
    pending: Vec<u8>,
    /// Where the next line begins, and up to where no line ends.
    begin: usize,
    seen: usize,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.pending.drain(..self.begin);
        self.seen -= self.begin;
        self.begin = 0;
        // Whole lines have been taken out by now.
        if self.pending.len() > LONGEST_LINE {
            return Err(format!("a line is longer than {LONGEST_LINE} bytes"));
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        match self.pending[self.seen..].iter().position(|byte| *byte == b'\n') {
            Some(length) => {
                let line = self.pending[self.begin..self.seen + length].to_vec();
                self.begin = self.seen + length + 1;
                self.seen = self.begin;
                Some(line)
            }
            None => {
                self.seen = self.pending.len();
                None
            }
        }
    }
}

fn collection(group: &str, plural: &str, namespace: &str) -> String {
    format!("{group}/namespaces/{}/{plural}", encoded(namespace))
}

/// Percent-encodes everything but unreserved characters.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            // Infallible: writing to a string.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refusals_are_typed_whoever_made_them() {
        let body =
            br#"{"kind":"Status","code":409,"reason":"AlreadyExists","message":"jobs.batch \"a\" already exists"}"#;
        let refused = |code, body: &[u8]| Error::Refused { what: "create jobs".to_owned(), status: status(code, body) };
        let exists = refused(409, body);
        assert!(exists.already_exists() && !exists.is_retryable());
        assert_eq!(
            exists.to_string(),
            "the API server refused to create jobs: jobs.batch \"a\" already exists (AlreadyExists)"
        );
        let proxy = refused(502, b"<html>\x1b[2J");
        assert!(proxy.is_retryable());
        assert_eq!(proxy.to_string(), "the API server refused to create jobs: <html> [2J (HTTP 502)");
        let busy = br#"{"code":429,"reason":"TooManyRequests","details":{"retryAfterSeconds":3}}"#;
        assert_eq!(refused(429, busy).retry_after(), Some(Duration::from_secs(3)));
        assert!(refused(404, b"").is_not_found());
        assert!(refused(410, b"null").is_expired());
    }

    #[test]
    fn paths_cannot_be_broken_out_of() {
        assert_eq!(collection("api/v1", "pods", "a/../b?c"), "api/v1/namespaces/a%2F..%2Fb%3Fc/pods");
    }

    proptest! {
        #[test]
        fn lines_come_out_whole_however_they_are_cut(
            lines in prop::collection::vec("[a-z]{0,5}", 0..20),
            cuts in prop::collection::vec(0usize..40, 0..10),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let (mut found, mut reader) = (Vec::new(), Lines::default());
            for pair in cuts.windows(2) {
                reader.feed(&text.as_bytes()[pair[0]..pair[1]]).unwrap();
                while let Some(line) = reader.next() {
                    found.push(String::from_utf8(line).unwrap());
                }
            }
            prop_assert_eq!(found, lines);
        }

        #[test]
        fn any_answer_becomes_a_status(code in 300u16..600, body in prop::collection::vec(any::<u8>(), 0..200)) {
            let status = status(code, &body);
            prop_assert_eq!(status.code, code);
            prop_assert!(!status.message.chars().any(char::is_control));
        }
    }
}
