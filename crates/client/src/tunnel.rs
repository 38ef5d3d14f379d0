//! Carries bytes between two files and a port of a task, through a websocket to the master: what `ssh` runs to get to a shell.
//!
//! One thread waits for both sides. While the master does not take what was read, nothing more is read; what comes from it is
//! written all the same, so that neither side waits for the other for ever.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tungstenite::{Error, Message, WebSocket};

use crate::websocket::Stream;

/// Bytes that are read at a time.
const CHUNK: usize = 32 << 10;

/// Carries until either side ends.
pub fn carry(socket: &mut WebSocket<Stream>, mut input: impl Read + AsFd, mut output: impl Write) -> io::Result<()> {
    socket.get_ref().socket().set_nonblocking(true)?;
    let mut buffer = vec![0; CHUNK];
    // Whether something waits to be taken by the master.
    let mut waiting = false;
    loop {
        if !receive(socket, &mut output)? {
            return Ok(());
        }
        let readable = wait(socket.get_ref(), &input, waiting)?;
        if waiting {
            waiting = is_waiting(socket.flush())?;
        }
        if !readable || waiting {
            continue;
        }
        let count = match input.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if count == 0 {
            // The end is not waited for: whoever closes the input is gone.
            let _ = socket.close(None);
            let _ = socket.flush();
            return Ok(());
        }
        let sent = socket.write(Message::binary(buffer[..count].to_vec())).and_then(|()| socket.flush());
        waiting = is_waiting(sent)?;
    }
}

/// Writes what has come; `false` at its end.
fn receive(socket: &mut WebSocket<Stream>, output: &mut impl Write) -> io::Result<bool> {
    loop {
        match socket.read() {
            Ok(Message::Binary(bytes)) => {
                output.write_all(&bytes)?;
                output.flush()?;
            }
            Ok(Message::Close(_)) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => return Ok(false),
            Ok(_) => {}
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(Error::Protocol(_)) => return Ok(false),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Whether what was sent waits for the master.
fn is_waiting(sent: Result<(), Error>) -> io::Result<bool> {
    match sent {
        Ok(()) => Ok(false),
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Waits for either side; whether there is input.
fn wait(stream: &Stream, input: &impl AsFd, waiting: bool) -> io::Result<bool> {
    let wanted = if waiting { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
    let mut sides = vec![PollFd::new(stream.socket().as_fd(), wanted)];
    if !waiting {
        sides.push(PollFd::new(input.as_fd(), PollFlags::POLLIN));
    }
    match poll(&mut sides, PollTimeout::NONE) {
        Err(nix::errno::Errno::EINTR) => return Ok(false),
        polled => polled?,
    };
    Ok(sides.get(1).and_then(PollFd::any).unwrap_or(false))
}
