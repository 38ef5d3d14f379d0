//! The terminal that a session runs in: a pair of devices, of which the program has the one and the client the other.
#![expect(
    unsafe_code,
    reason = "a terminal is made a session's own between fork and exec, and resized, by calls nix has not"
)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::setsid;
use tokio::net::unix::pipe;

/// How large a terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub columns: u32,
    pub rows: u32,
    pub width: u32,
    pub height: u32,
}

impl Size {
    fn of_device(self) -> Winsize {
        let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        Winsize {
            ws_col: short(self.columns),
            ws_row: short(self.rows),
            ws_xpixel: short(self.width),
            ws_ypixel: short(self.height),
        }
    }
}

/// The client's side of a terminal. When all of it is dropped, the program's side is hung up.
pub(crate) struct Terminal {
    device: OwnedFd,
}

impl Terminal {
    /// A new one, which the command is to run in.
    pub(crate) fn open(size: Size, command: &mut Command) -> io::Result<Terminal> {
        let pair = openpty(Some(&size.of_device()), None)?;
        // Nobody else is to write to it.
        fchmod(&pair.slave, Mode::S_IRUSR | Mode::S_IWUSR)?;
        fcntl(&pair.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        for device in [&pair.master, &pair.slave] {
            fcntl(device, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
        }
        command.stdin(Stdio::from(pair.slave.try_clone()?));
        command.stdout(Stdio::from(pair.slave.try_clone()?));
        command.stderr(Stdio::from(pair.slave));
        // SAFETY: between fork and exec only these two system calls are made, which allocate and lock nothing.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                // SAFETY: the call takes no pointer; standard input is the terminal by now.
                nix::errno::Errno::result(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
                Ok(())
            });
        }
        Ok(Terminal { device: pair.master })
    }

    /// What is read from it, and what is written to it.
    pub(crate) fn streams(&self) -> io::Result<(pipe::Receiver, pipe::Sender)> {
        let reader = pipe::Receiver::from_owned_fd_unchecked(self.device.try_clone()?)?;
        let writer = pipe::Sender::from_owned_fd_unchecked(self.device.try_clone()?)?;
        Ok((reader, writer))
    }

    /// Tells the program of another size.
    pub(crate) fn resize(&self, size: Size) -> io::Result<()> {
        let size = size.of_device();
        // SAFETY: the device is open for as long as `self` is, and `size` outlives the call.
        nix::errno::Errno::result(unsafe { libc::ioctl(self.device.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })?;
        Ok(())
    }
}
