//! Reading and writing sockets without waiting, from and to memory that callers vouch for.
#![expect(unsafe_code, reason = "system calls on raw memory")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long nobody is let in after somebody could not be.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long what is written may take to reach the other hosts before a connection is closed.
const LINGER: Duration = Duration::from_secs(1);
/// A kernel that answers at all does so within this.
const SILENT: Duration = Duration::from_millis(300);

/// Reads what there is, at most so much; 0 at the end.
///
/// # Safety
/// `length` bytes are writable at `to`.
pub(crate) unsafe fn receive(socket: &impl AsRawFd, to: *mut u8, length: usize) -> io::Result<usize> {
    loop {
        // SAFETY: the caller's promise.
        let read = unsafe { libc::recv(socket.as_raw_fd(), to.cast(), length, libc::MSG_DONTWAIT) };
        match usize::try_from(read) {
            Ok(read) => return Ok(read),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// What would be read next, without taking it.
pub(crate) fn peek(socket: &impl AsRawFd, to: &mut [u8]) -> usize {
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: the slice is writable for its length.
    let read = unsafe { libc::recv(socket.as_raw_fd(), to.as_mut_ptr().cast(), to.len(), flags) };
    usize::try_from(read).unwrap_or(0)
}

/// Writes what goes of a header and the bytes after it, of which `done` are out; without a signal when the peer is gone.
///
/// # Safety
/// `length` bytes are readable at `payload`.
pub(crate) unsafe fn send(
    socket: &impl AsRawFd,
    header: &[u8],
    payload: *const u8,
    length: usize,
    done: usize,
) -> io::Result<usize> {
    let header_left = &header[done.min(header.len())..];
    let skipped = done.saturating_sub(header.len());
    let parts = [
        libc::iovec { iov_base: header_left.as_ptr().cast_mut().cast(), iov_len: header_left.len() },
        libc::iovec { iov_base: payload.wrapping_add(skipped).cast_mut().cast(), iov_len: length - skipped },
    ];
    // SAFETY: plain old data, for which zero means none.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    loop {
        // SAFETY: the message and its parts live on this stack; the header is borrowed, the payload the caller's promise.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => return Ok(sent),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Writes all of this, waiting for room until then; whether it went.
pub(crate) fn send_all(socket: &(impl AsRawFd + AsFd), bytes: &[u8], until: Instant) -> bool {
    // SAFETY: the slice is readable for its length.
    unsafe { send_rest(socket, &[], bytes.as_ptr(), bytes.len(), 0, until) }
}

/// Writes the rest of a header and the bytes after it, waiting for room until then; whether it went.
///
/// # Safety
/// As for [`send`].
pub(crate) unsafe fn send_rest(
    socket: &(impl AsRawFd + AsFd),
    header: &[u8],
    payload: *const u8,
    length: usize,
    mut done: usize,
    until: Instant,
) -> bool {
    while done < header.len() + length {
        // SAFETY: the caller's promise.
        match unsafe { send(socket, header, payload, length, done) } {
            Ok(sent) => done += sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return false;
                }
                let mut handles = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
                let _ = poll(&mut handles, poll_timeout(left));
            }
            Err(_) => return false,
        }
    }
    true
}

/// Before connections are closed: waits a little for the other host to have what is written where something is unread here.
/// Closing with unread bytes resets a connection, which would take back what is still on its way.
pub(crate) fn linger<'a, S: AsRawFd + 'a>(sockets: impl Iterator<Item = &'a S> + Clone) {
    let until = Instant::now() + LINGER;
    let at_risk = |socket: &S| {
        let waits = |kind: libc::Ioctl| {
            let mut bytes: libc::c_int = 0;
            // SAFETY: asks for a number, which lies on this stack.
            let status = unsafe { libc::ioctl(socket.as_raw_fd(), kind, &raw mut bytes) };
            status == 0 && bytes > 0
        };
        waits(libc::FIONREAD) && waits(libc::TIOCOUTQ) && !is_closed(socket) && !is_silent(socket)
    };
    while sockets.clone().any(at_risk) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a TCP connection is over for both sides, after a reset for example.
fn is_closed(socket: &impl AsRawFd) -> bool {
    /// In the kernel's `tcp_states.h`.
    const TCP_CLOSE: u8 = 7;
    tcp_info(socket).is_some_and(|info| info.tcpi_state == TCP_CLOSE)
}

/// Whether the other host has left unanswered what it was sent, for a while: waiting for it to make room is in vain.
pub(crate) fn is_silent(socket: &impl AsRawFd) -> bool {
    let since = |info: libc::tcp_info| Duration::from_millis(u64::from(info.tcpi_last_ack_recv));
    tcp_info(socket).is_some_and(|info| info.tcpi_unacked > 0 && since(info) > SILENT)
}

/// What the kernel knows of a connection; `None` if it is not one of TCP.
fn tcp_info(socket: &impl AsRawFd) -> Option<libc::tcp_info> {
    // SAFETY: plain old data, of which older kernels fill in less.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as the length says, to this stack.
    let status = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    (status == 0).then_some(info)
}

/// Rounded up: a poll that ends just before a deadline would have to come again.
pub(crate) fn poll_timeout(wait: Duration) -> PollTimeout {
    PollTimeout::try_from(wait.saturating_add(Duration::from_micros(999))).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_host_that_answers_is_not_silent_even_if_nobody_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let mut socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (_unread, _) = listener.accept().expect("accept");
        socket.set_nonblocking(true).expect("socket option");
        while socket.write(&[0; 1 << 16]).is_ok() {}
        std::thread::sleep(SILENT + Duration::from_millis(200));
        assert!(!is_silent(&socket) && !is_closed(&socket));
        let (unix, _other) = UnixStream::pair().expect("a pair");
        assert!(!is_silent(&unix) && !is_closed(&unix));
    }
}
