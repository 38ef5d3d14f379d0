//! Connections that come in, plain or encrypted.
//!
//! A handshake is done beside the others, with a deadline, and only so many at a time: a caller that says nothing holds up
//! nobody. The task that accepts ends with the listener.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::peer::Peer;

/// How long a caller may take to agree on encryption.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// Handshakes at a time; further callers wait to be accepted.
const HANDSHAKES: usize = 256;
/// Connections that are ready before the server takes them.
const READY: usize = 64;
/// Before the next try when the system has no room for another connection.
const PAUSE: Duration = Duration::from_millis(200);

/// Where connections come from.
pub(crate) enum Connections {
    Plain(TcpListener),
    Encrypted { ready: mpsc::Receiver<(Stream, Peer)>, accepting: JoinHandle<()> },
}

impl Connections {
    /// Takes connections of a bound listener, encrypted if it is said how.
    pub(crate) fn of(listener: TcpListener, encryption: Option<TlsAcceptor>) -> Connections {
        let Some(acceptor) = encryption else { return Connections::Plain(listener) };
        let (sender, ready) = mpsc::channel(READY);
        let accepting = tokio::spawn(accept_encrypted(listener, acceptor, sender));
        Connections::Encrypted { ready, accepting }
    }

    /// The next connection. A caller may stop waiting for it without losing one.
    pub(crate) async fn accept(&mut self) -> (Stream, Peer) {
        match self {
            Connections::Plain(listener) => {
                let (connection, peer) = accept(listener).await;
                (Stream::Plain(connection), peer)
            }
            Connections::Encrypted { ready, .. } => match ready.recv().await {
                Some(connection) => connection,
                // The task that accepts ends only with this listener.
                None => std::future::pending().await,
            },
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        if let Connections::Encrypted { accepting, .. } = self {
            accepting.abort();
        }
    }
}

/// The next connection. Answers are small and each is waited for, so they must not wait for a full packet.
async fn accept(listener: &TcpListener) -> (TcpStream, Peer) {
    loop {
        match listener.accept().await {
            Ok((connection, remote)) => {
                // If the option cannot be set the connection works all the same.
                let _ = connection.set_nodelay(true);
                // A connection that has no address any more is gone.
                let Ok(local) = connection.local_addr() else { continue };
                return (connection, Peer { remote, local, forwarded: false });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn accept_encrypted(listener: TcpListener, acceptor: TlsAcceptor, ready: mpsc::Sender<(Stream, Peer)>) {
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let (connection, peer) = accept(&listener).await;
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(connection)).await {
                // If nobody takes it the server has ended.
                Ok(Ok(connection)) => drop(ready.send((Stream::Encrypted(Box::new(connection)), peer)).await),
                Ok(Err(error)) => tracing::debug!(peer = %peer.remote, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(peer = %peer.remote, "TLS handshake timed out"),
            }
            drop(place);
        });
    }
}

/// A connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Encrypted(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Encrypted(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
