//! Serves HTTP on connections, and closes those on which nothing comes.
//!
//! A caller has [`Limits`] to say what it wants; one that says nothing, or half of something, is not waited for. What the
//! router cannot see of a connection, it is told as an extension of the request: who is at the other end, and whether
//! the length of the request can be read in two ways ([`Ambiguous`]).

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep_until};

use super::framing::{Framing, Place};
use crate::listener::{Connections, Stream};
use crate::peer::Peer;

/// Bytes of a request's head, and of what is read of a body at a time: each connection may take as much memory.
const LONGEST_HEAD: usize = 64 << 10;

/// How long the master waits for what a caller has to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For the first byte of a connection, and from the first to the last byte of a request's head.
    pub head: Duration,
    /// For the next bytes of a body.
    pub body: Duration,
    /// For the next request. Longer than clients keep an unused connection, so that none is closed under a request.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { head: Duration::from_secs(15), body: Duration::from_secs(60), idle: Duration::from_secs(75) }
    }
}

/// Marks requests on a connection where a length was said in two ways.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ambiguous;

/// Serves until `stop` is done; then requests that have begun are finished, and no others are taken.
pub(crate) async fn serve(
    mut connections: Connections,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let (stopping, stopped) = watch::channel(());
    let mut open = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            (stream, peer) = connections.accept() => {
                open.spawn(serve_connection(stream, peer, router.clone(), limits, stopped.clone()));
            }
            Some(_) = open.join_next() => {}
            () = &mut stop => break,
        }
    }
    drop(connections);
    drop(stopping);
    while open.join_next().await.is_some() {}
}

async fn serve_connection(
    stream: Stream,
    peer: Peer,
    router: Router,
    limits: Limits,
    mut stopped: watch::Receiver<()>,
) {
    let seen = Arc::new(Seen::default());
    let stream = TokioIo::new(Watched::new(stream, limits, Arc::clone(&seen)));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        if seen.ambiguous.load(Ordering::Relaxed) {
            request.extensions_mut().insert(Ambiguous);
        }
        let (answer, seen) = (router.call(request.map(Body::new)), Arc::clone(&seen));
        async move {
            let response = answer.await?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                seen.upgraded.store(true, Ordering::Relaxed);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.idle).max_buf_size(LONGEST_HEAD);
    let mut connection = pin!(builder.serve_connection(stream, service).with_upgrades());
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(peer = %peer.remote, %error, "a connection was closed");
                }
                return;
            }
            // There is nothing but the end to be told of.
            _ = stopped.changed(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// What a connection's bytes and its requests know of each other.
#[derive(Debug, Default)]
struct Seen {
    ambiguous: AtomicBool,
    /// The connection is no longer HTTP.
    upgraded: AtomicBool,
}

/// A connection whose bytes are followed, and waited for only so long.
struct Watched {
    stream: Stream,
    limits: Limits,
    seen: Arc<Seen>,
    framing: Framing,
    deadline: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
}

impl Watched {
    fn new(stream: Stream, limits: Limits, seen: Arc<Seen>) -> Watched {
        let deadline = Instant::now() + limits.head;
        let alarm = Box::pin(sleep_until(deadline));
        Watched { stream, limits, seen, framing: Framing::new(), deadline: Some(deadline), alarm }
    }

    fn follow(&mut self, bytes: &[u8]) {
        let heads = self.framing.heads();
        self.framing.feed(bytes);
        if self.framing.is_ambiguous() {
            self.seen.ambiguous.store(true, Ordering::Relaxed);
        }
        self.deadline = match self.framing.place() {
            // hyper knows whether it waits for a request or still answers one.
            Place::Between => None,
            Place::Head if self.framing.heads() == heads => self.deadline,
            Place::Head => Some(Instant::now() + self.limits.head),
            Place::Body => Some(Instant::now() + self.limits.body),
        };
    }

    /// Fails when the caller has been waited for long enough.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(deadline) = self.deadline else { return Poll::Pending };
        if self.alarm.deadline() != deadline {
            self.alarm.as_mut().reset(deadline);
        }
        self.alarm.as_mut().poll(context).map(|()| {
            let what = "the caller has sent nothing for too long";
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        })
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let watched = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut watched.stream).poll_read(context, buffer);
        if watched.seen.upgraded.load(Ordering::Relaxed) {
            return read;
        }
        match read {
            Poll::Ready(Ok(())) => {
                watched.follow(&buffer.filled()[before..]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => watched.poll_deadline(context),
        }
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use axum::body::Bytes;
    use axum::routing::{get, post};

    use super::*;

    const LIMITS: Limits = Limits {
        head: Duration::from_millis(300),
        body: Duration::from_millis(400),
        idle: Duration::from_millis(1500),
    };

    /// A server whose limits are short.
    fn started() -> (SocketAddr, tokio::runtime::Runtime) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let slow = || async {
                tokio::time::sleep(LIMITS.head * 3).await;
                "done"
            };
            let router = Router::new()
                .route("/slow", get(slow))
                .route("/", post(|body: Bytes| async move { body.len().to_string() }));
            let connections = Connections::of(listener, None);
            tokio::spawn(serve(connections, router, LIMITS, std::future::pending()));
            address
        });
        (address, runtime)
    }

    /// Sends, and gives what comes until the server closes, and how long that took.
    fn sent(address: SocketAddr, text: &str) -> (String, Duration) {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        connection.write_all(text.as_bytes()).unwrap();
        let (begun, mut answer) = (std::time::Instant::now(), String::new());
        connection.read_to_string(&mut answer).expect("the server closes the connection");
        (answer, begun.elapsed())
    }

    #[test]
    fn silent_callers_and_half_requests_are_not_waited_for() {
        let (address, _runtime) = started();
        for (text, limit) in [
            ("", LIMITS.head),
            ("POST / HT", LIMITS.head),
            ("POST / HTTP/1.1\r\nHost: a\r\n", LIMITS.head),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf", LIMITS.body),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", LIMITS.body),
            // What is used again is given the time that clients keep it.
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nhalf", LIMITS.idle),
        ] {
            let (_, took) = sent(address, text);
            assert!(took >= limit / 2 && took < limit + Duration::from_secs(5), "{text:?}: {took:?}");
        }
    }

    #[test]
    fn bytes_that_drip_do_not_lengthen_a_head() {
        let (address, _runtime) = started();
        let mut connection = TcpStream::connect(address).unwrap();
        let begun = std::time::Instant::now();
        connection.write_all(b"POST / HTTP/1.1\r\nA: ").unwrap();
        // The first write after the server has closed may still seem to succeed.
        while connection.write_all(b"a").is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the head may last for ever");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_caller_waits_for_its_answer_as_long_as_that_takes() {
        let (address, _runtime) = started();
        let (answer, _) = sent(address, "GET /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert!(answer.ends_with("done"), "{answer}");
    }
}
