//! What handlers answer: JSON, lines of JSON as they come, or a file of the pages.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use futures_core::Stream;
use instep_api::error::Code;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use super::assets::Asset;
use super::conformance::contradiction;
use super::failure::Failure;
use super::shape::schema_of_answer;

/// The text format of OpenMetrics.
pub(crate) const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Lines that may wait for a slow reader before the producer waits.
const LINES_AHEAD: usize = 256;

/// An answer; all of the master's own have status 200, which is the only success that Determined's client knows.
pub(crate) enum Reply {
    Json(Vec<u8>),
    Lines(Lines),
    Asset(Asset),
    Download(Download),
    /// What Prometheus reads.
    Metrics(String),
    /// The connection becomes a websocket.
    Upgrade(Response<Body>),
    /// What a task answered, whatever that is.
    Passed(Response<Body>),
    /// The browser is to go somewhere else.
    Redirect(Redirect),
    /// Another answer, with a cookie.
    Cookie(Box<Reply>, HeaderValue),
}

/// What handlers may answer with.
pub(crate) trait Answer {
    /// What it looks like, if that is known of all such answers: what the OpenAPI document shows.
    const SCHEMA: Option<fn() -> Value>;

    /// As it is sent.
    fn reply(self) -> Result<Reply, Failure>;
}

impl Answer for Reply {
    const SCHEMA: Option<fn() -> Value> = None;

    fn reply(self) -> Result<Reply, Failure> {
        Ok(self)
    }
}

/// A JSON object of a type of the API.
pub(crate) struct Json<T>(pub T);

impl<T: Serialize + DeserializeOwned> Answer for Json<T> {
    const SCHEMA: Option<fn() -> Value> = Some(schema_of_answer::<T>);

    fn reply(self) -> Result<Reply, Failure> {
        // Every test of a build with assertions compares what it is answered with the document.
        if cfg!(debug_assertions)
            && let Ok(value) = serde_json::to_value(&self.0)
            && let Some(why) = contradiction(&schema_of_answer::<T>(), &value)
        {
            return Err(Failure::new(Code::Internal, format!("the answer is not what the document says: {why}")));
        }
        Reply::json(&self.0)
    }
}

/// Where a browser is to go, by GET.
pub(crate) struct Redirect {
    pub location: String,
    pub cookie: Option<HeaderValue>,
}

/// A JSON object that comes with a cookie, or without.
pub(crate) struct WithCookie<T>(pub Json<T>, pub Option<HeaderValue>);

impl<T: Serialize + DeserializeOwned> Answer for WithCookie<T> {
    const SCHEMA: Option<fn() -> Value> = Json::<T>::SCHEMA;

    fn reply(self) -> Result<Reply, Failure> {
        let reply = self.0.reply()?;
        Ok(match self.1 {
            Some(cookie) => Reply::Cookie(Box::new(reply), cookie),
            None => reply,
        })
    }
}

/// `{}`
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Nothing {}

/// A file to be saved, sent as it is made. An error in place of a part breaks the answer off, so that nobody takes what
/// came so far for the whole.
pub(crate) struct Download {
    pub media_type: &'static str,
    /// What it is saved as: letters, digits, dots and dashes.
    pub name: String,
    pub parts: mpsc::Receiver<std::io::Result<Vec<u8>>>,
}

impl Stream for Download {
    type Item = std::io::Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.parts.poll_recv(context)
    }
}

/// What a page of ours may do: use its own files and its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

impl Reply {
    /// A JSON object.
    pub(crate) fn json(value: &impl Serialize) -> Result<Reply, Failure> {
        let body = serde_json::to_vec(value);
        body.map(Reply::Json).map_err(|error| Failure::new(Code::Internal, error.to_string()))
    }

    pub(crate) fn response(self) -> Response<Body> {
        let disposition = match &self {
            Reply::Download(download) => {
                HeaderValue::from_str(&format!("attachment; filename=\"{}\"", download.name)).ok()
            }
            Reply::Json(_) | Reply::Lines(_) | Reply::Asset(_) | Reply::Metrics(_) => None,
            Reply::Upgrade(_) | Reply::Passed(_) | Reply::Redirect(_) | Reply::Cookie(_, _) => None,
        };
        let (body, kind) = match self {
            Reply::Json(bytes) => (Body::from(bytes), "application/json"),
            Reply::Lines(lines) => (Body::from_stream(lines), "application/json"),
            Reply::Metrics(text) => (Body::from(text), METRICS),
            Reply::Asset(asset) => return file(asset),
            Reply::Upgrade(response) | Reply::Passed(response) => return response,
            Reply::Redirect(redirect) => return redirect.response(),
            Reply::Cookie(reply, cookie) => {
                let mut response = reply.response();
                response.headers_mut().insert(header::SET_COOKIE, cookie);
                // It is one browser's alone.
                response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                return response;
            }
            Reply::Download(download) => {
                let kind = download.media_type;
                (Body::from_stream(download), kind)
            }
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(disposition) = disposition {
            response.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
            // What is in it is anybody's, and must not be taken for a page of ours.
            response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        response
    }
}

impl Redirect {
    fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        // What cannot be an address leads to the pages.
        let location = HeaderValue::from_str(&self.location).unwrap_or(HeaderValue::from_static("/"));
        *response.status_mut() = StatusCode::SEE_OTHER;
        let headers = response.headers_mut();
        headers.insert(header::LOCATION, location);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.extend(self.cookie.map(|cookie| (header::SET_COOKIE, cookie)));
        response
    }
}

fn file(asset: Asset) -> Response<Body> {
    let mut response = Response::new(Body::from(asset.content));
    let kept = if asset.lasting { "public, max-age=31536000, immutable" } else { "no-cache" };
    for (name, value) in [
        (header::CONTENT_TYPE, asset.kind),
        (header::CACHE_CONTROL, kept),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Lines of a streamed answer. Each becomes a chunk of its own, so that readers see it at once; there are never empty
/// ones, because the client parses every line.
pub(crate) struct Lines(mpsc::Receiver<Vec<u8>>);

impl Stream for Lines {
    type Item = Result<Vec<u8>, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|line| line.map(Ok))
    }
}

/// The producing end of [`Lines`].
pub(crate) struct LineSender(mpsc::Sender<Vec<u8>>);

/// The reader has gone away.
pub(crate) struct Gone;

/// Why a stream ends before its end.
pub(crate) enum Stop {
    Gone,
    Failed(Failure),
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Stop {
        Stop::Gone
    }
}

impl From<instep_database::Error> for Stop {
    fn from(error: instep_database::Error) -> Stop {
        Stop::Failed(error.into())
    }
}

impl LineSender {
    /// Sends `{"result": value}`; waits if the reader is slow.
    pub(crate) async fn send(&self, value: &impl Serialize) -> Result<(), Gone> {
        let mut line = br#"{"result":"#.to_vec();
        serde_json::to_writer(&mut line, value).map_err(|_| Gone)?;
        line.extend_from_slice(b"}\n");
        self.0.send(line).await.map_err(|_| Gone)
    }

    /// Sends why the stream ends early.
    pub(crate) async fn fail(&self, failure: &Failure) {
        let error = serde_json::json!({"error": {
            "grpcCode": failure.code.number(), "httpCode": 500, "message": failure.message,
            "httpStatus": failure.code.name(), "details": []
        }});
        // If the reader has gone there is nobody to tell.
        let _ = self.0.send(format!("{error}\n").into_bytes()).await;
    }

    /// Waits until the reader has gone away.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }

    /// Whether the reader has gone away.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// The two ends of a streamed answer.
pub(crate) fn lines() -> (LineSender, Lines) {
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    (LineSender(sender), Lines(receiver))
}
