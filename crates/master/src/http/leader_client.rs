//! Forwarding from a master that stands by to the one that leads: a few connections, which end with the leader's term.
//!
//! Bodies are passed on as they come, in both directions, and websockets as bytes. A request that has not been sent is
//! given back, to be sent elsewhere; of one that has been, nobody knows what became of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Request, Response, StatusCode, Uri};
use futures_util::{Stream, StreamExt, stream};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use instep_database::Leader;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::forwarded::FORWARDED;
use super::proxy::{asks_for_websocket, without_those_of_the_connection};
use crate::encryption::Pinned;
use crate::standby::Role;
use crate::sync::lock;

/// How long the leader may take to be reached.
const CONNECT: Duration = Duration::from_secs(2);
/// Headers of an answer: a few more than the leader takes from a task's program, because it adds its own.
const HEADERS: usize = 128;
/// Unused connections that are kept, and for how long: shorter than the leader keeps them.
const IDLE: usize = 64;
const IDLE_FOR: Duration = Duration::from_secs(30);

/// Why the leader gave no answer.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// It was not asked: it can be asked again.
    Unsent(Box<Request<Body>>, String),
    /// Nobody knows whether it did what it was asked.
    Lost(String),
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

/// A client of one leader, at one of its two ports.
pub(crate) struct LeaderClient {
    epoch: i64,
    authority: Authority,
    encryption: Option<Pinned>,
    idle: Arc<Mutex<Vec<Idle>>>,
    role: watch::Receiver<Role>,
}

impl LeaderClient {
    /// A client for a leader's address.
    pub(crate) fn to(leader: &Leader, address: &str, role: watch::Receiver<Role>) -> Result<LeaderClient, String> {
        let uri: Uri = address.parse().map_err(|_| format!("the leader's address {address} cannot be read"))?;
        let authority =
            uri.authority().cloned().ok_or_else(|| format!("the leader's address {address} has no host"))?;
        let encryption = match &leader.endpoint.certificate {
            Some(certificate) => Some(Pinned::to(certificate)?),
            None => None,
        };
        Ok(LeaderClient { epoch: leader.epoch, authority, encryption, idle: Arc::default(), role })
    }

    /// The term of the leader.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Passes a request on, with the header that says for whom, and the answer back.
    pub(crate) async fn forward(
        &self,
        mut request: Request<Body>,
        forwarded: HeaderValue,
    ) -> Result<Response<Body>, ForwardError> {
        let upgrade = request.extensions_mut().remove::<OnUpgrade>();
        let request = prepared(request, forwarded);
        let sent = tokio::select! {
            sent = self.send(request) => sent,
            () = self.over() => Err(ForwardError::Lost("its term has ended".to_owned())),
        };
        match (sent, upgrade) {
            (Ok(answer), upgrade) => Ok(self.answered(answer, upgrade)),
            // To be asked elsewhere it has to be whole.
            (Err(ForwardError::Unsent(mut request, why)), Some(upgrade)) => {
                request.extensions_mut().insert(upgrade);
                Err(ForwardError::Unsent(request, why))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Waits until somebody else leads, or nobody does.
    fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut role, epoch) = (self.role.clone(), self.epoch);
        async move {
            // An error means that this process ends.
            let _ = role.wait_for(|role| role.epoch() != Some(epoch)).await;
        }
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, ForwardError> {
        loop {
            let (mut sender, is_new) = match self.idle() {
                Some(sender) => (sender, false),
                None => match self.connect().await {
                    Ok(sender) => (sender, true),
                    Err(why) => return Err(ForwardError::Unsent(Box::new(request), why)),
                },
            };
            match sender.try_send_request(request).await {
                Ok(answer) => {
                    self.keep(sender);
                    return Ok(answer);
                }
                Err(mut error) => match error.take_message() {
                    // The leader has closed a connection that was not in use.
                    Some(unsent) if !is_new => request = unsent,
                    Some(unsent) => return Err(ForwardError::Unsent(Box::new(unsent), error.error().to_string())),
                    None => return Err(ForwardError::Lost(error.error().to_string())),
                },
            }
        }
    }

    /// A connection that is not in use.
    fn idle(&self) -> Option<SendRequest<Body>> {
        let mut idle = lock(&self.idle);
        idle.retain(|one| one.since.elapsed() < IDLE_FOR && !one.sender.is_closed());
        idle.pop().map(|one| one.sender)
    }

    /// Keeps a connection for the next request, once the answer to this one has been taken.
    fn keep(&self, mut sender: SendRequest<Body>) {
        let idle = Arc::clone(&self.idle);
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                let mut idle = lock(&idle);
                if idle.len() < IDLE {
                    idle.push(Idle { sender, since: Instant::now() });
                }
            }
        });
    }

    async fn connect(&self) -> Result<SendRequest<Body>, String> {
        let connecting = async {
            let (host, port) = (self.authority.host(), self.authority.port_u16());
            let port = port.unwrap_or(if self.encryption.is_some() { 443 } else { 80 });
            let host = host.trim_matches(['[', ']']);
            let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
            // Small requests are not to wait for each other.
            let _ = stream.set_nodelay(true);
            match &self.encryption {
                Some(encryption) => {
                    let stream = encryption.connect(stream).await.map_err(|error| error.to_string())?;
                    speak(TokioIo::new(stream)).await
                }
                None => speak(TokioIo::new(stream)).await,
            }
        };
        let reached = tokio::time::timeout(CONNECT, connecting).await;
        reached.unwrap_or_else(|_| Err(format!("it does not answer within {} s", CONNECT.as_secs())))
    }

    /// The answer as the caller sees it. It breaks off when the leader's term ends, so that nobody waits for the rest.
    fn answered(&self, mut answer: Response<Incoming>, caller: Option<OnUpgrade>) -> Response<Body> {
        let switches = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        let leader = switches.then(|| hyper::upgrade::on(&mut answer));
        let (mut head, body) = answer.into_parts();
        without_those_of_the_connection(&mut head.headers);
        let over = Box::pin(self.over());
        if let (Some(leader), Some(caller)) = (leader, caller) {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            tokio::spawn(relay(caller, leader, over));
            return Response::from_parts(head, Body::empty());
        }
        let ends_by_itself = hyper::body::Body::is_end_stream(&body);
        let body = if ends_by_itself { Body::empty() } else { Body::from_stream(until(Body::new(body), over)) };
        Response::from_parts(head, body)
    }
}

/// Begins to speak HTTP on a connection, which lasts as long as somebody uses it.
async fn speak<S>(stream: TokioIo<S>) -> Result<SendRequest<Body>, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        http1::Builder::new().max_headers(HEADERS).handshake(stream).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

/// A request without what belongs to the caller's connection, and with the header that says for whom it is. Its `Host`
/// stays, whatever the caller says: it says which origin a browser sees.
fn prepared(mut request: Request<Body>, forwarded: HeaderValue) -> Request<Body> {
    let websocket = asks_for_websocket(request.headers());
    let headers = request.headers_mut();
    let host = headers.get(header::HOST).cloned();
    without_those_of_the_connection(headers);
    headers.remove(header::EXPECT);
    if let Some(host) = host {
        headers.insert(header::HOST, host);
    }
    // Last: a caller names in `Connection` what is to be removed.
    headers.insert(FORWARDED, forwarded);
    if websocket {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    // A part of an address that was read already.
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
    request
}

/// A body that fails when the leader's term ends before it does.
fn until(
    body: Body,
    mut over: Pin<Box<impl Future<Output = ()> + Send>>,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send {
    let mut data = body.into_data_stream();
    stream::poll_fn(move |context| {
        if let Poll::Ready(next) = data.poll_next_unpin(context) {
            return Poll::Ready(next);
        }
        over.as_mut().poll(context).map(|()| Some(Err(axum::Error::new("the leader's term has ended"))))
    })
}

/// Carries bytes between a caller and the leader, for as long as it leads.
async fn relay(caller: OnUpgrade, leader: OnUpgrade, over: Pin<Box<impl Future<Output = ()> + Send>>) {
    let (Ok(caller), Ok(leader)) = (caller.await, leader.await) else { return };
    let (mut caller, mut leader) = (TokioIo::new(caller), TokioIo::new(leader));
    tokio::select! {
        // Either end may break off as it likes.
        _ = tokio::io::copy_bidirectional(&mut caller, &mut leader) => {}
        () = over => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_cannot_have_removed_for_whom_a_request_is() {
        let mut request = Request::new(Body::empty());
        for (name, value) in [
            ("connection", "close, Instep-Forwarded, host"),
            ("instep-forwarded", "stale 10.0.0.1:1"),
            ("host", "standby:8080"),
            ("keep-alive", "1"),
        ] {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        let prepared = prepared(request, HeaderValue::from_static("secret 10.0.0.9:1"));
        let all = |name: &str| prepared.headers().get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(all("instep-forwarded"), ["secret 10.0.0.9:1"]);
        assert_eq!(all("host"), ["standby:8080"]);
        assert!(all("connection").is_empty());
    }
}
