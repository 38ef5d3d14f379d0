//! Stops reading from a connection while its programs are far behind with their input.
//!
//! russh acknowledges what it receives at once, so that the protocol's own windows do not bound what waits here. What it
//! sends must go on meanwhile, or a program that waits for its output to be taken would never read on. That output is taken is
//! said in the same stream as the input: while some of it waits, more is read, up to a second limit.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Bytes that may wait for the programs of one connection.
const MOST_WAITING: usize = 8 << 20;
/// The same while output waits for the client: more than can be on its way before the client's word that it has taken some.
const MOST_WITH_OUTPUT: usize = 64 << 20;

/// What waits for the programs of one connection.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    waiting: AtomicUsize,
    /// Outputs that are being sent.
    sending: AtomicUsize,
    reader: Mutex<Option<Waker>>,
}

impl Gate {
    /// So many bytes wait.
    pub(crate) fn enter(&self, bytes: usize) {
        self.waiting.fetch_add(bytes, Ordering::SeqCst);
    }

    /// So many have been taken.
    pub(crate) fn leave(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Ordering::SeqCst);
        self.wake();
    }

    /// Sends output, which may have to wait for the client.
    pub(crate) async fn send(&self, writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
        self.sending.fetch_add(1, Ordering::SeqCst);
        let _sending = Sending(self);
        self.wake();
        writer.write_all(bytes).await
    }

    fn wake(&self) {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn is_open(&self) -> bool {
        let limit = if self.sending.load(Ordering::SeqCst) > 0 { MOST_WITH_OUTPUT } else { MOST_WAITING };
        self.waiting.load(Ordering::SeqCst) < limit
    }

    fn poll_open(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_open() {
            return Poll::Ready(());
        }
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        // Somebody may have left in between.
        if self.is_open() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// An output that is being sent, until it is dropped.
struct Sending<'a>(&'a Gate);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.sending.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection that is read through a gate.
pub(crate) struct Gated<S> {
    pub inner: S,
    pub gate: Arc<Gate>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Gated<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.gate.poll_open(context) {
            Poll::Ready(()) => Pin::new(&mut self.inner).poll_read(context, buffer),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gated<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn nothing_is_read_while_too_much_waits() {
        let (mut near, far) = tokio::io::duplex(64);
        let gate = Arc::new(Gate::default());
        let mut far = Gated { inner: far, gate: Arc::clone(&gate) };
        near.write_all(b"ab").await.unwrap();
        gate.enter(MOST_WAITING);
        let mut byte = [0];
        let early = tokio::time::timeout(Duration::from_millis(20), far.read_exact(&mut byte)).await;
        assert!(early.is_err(), "the gate is closed");
        let reading = tokio::spawn(async move {
            far.read_exact(&mut byte).await.unwrap();
            byte
        });
        tokio::task::yield_now().await;
        gate.leave(1);
        assert_eq!(reading.await.unwrap(), *b"a");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn more_is_read_while_output_waits_for_the_client() {
        let (mut near, far) = tokio::io::duplex(64);
        let gate = Arc::new(Gate::default());
        let mut far = Gated { inner: far, gate: Arc::clone(&gate) };
        near.write_all(b"ab").await.unwrap();
        gate.enter(MOST_WAITING);
        let (mut output, mut taken) = tokio::io::duplex(1);
        let sending = Arc::clone(&gate);
        let sent = tokio::spawn(async move { sending.send(&mut output, b"xy").await });
        let mut byte = [0];
        tokio::time::timeout(Duration::from_secs(20), far.read_exact(&mut byte)).await.unwrap().unwrap();
        let mut both = [0; 2];
        taken.read_exact(&mut both).await.unwrap();
        sent.await.unwrap().unwrap();
        let late = tokio::time::timeout(Duration::from_millis(20), far.read_exact(&mut byte)).await;
        assert!(late.is_err(), "nothing waits for the client any more");
    }
}
