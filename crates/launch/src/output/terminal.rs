//! Pseudo-terminals, so that workers whose output passes through the launcher still see a terminal.

use std::io;
use std::os::fd::OwnedFd;

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

nix::ioctl_read_bad!(get_window_size, libc::TIOCGWINSZ, Winsize);

/// The launcher's end and the worker's end of a pseudo-terminal of the console's size, which passes bytes unchanged.
pub(crate) fn open_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let size = console_size();
    let OpenptyResult { master, slave } = openpty(size.as_ref(), None)?;
    let mut settings = tcgetattr(&slave)?;
    cfmakeraw(&mut settings);
    tcsetattr(&slave, SetArg::TCSANOW, &settings)?;
    for end in [&master, &slave] {
        nix::fcntl::fcntl(end, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    }
    Ok((master, slave))
}

/// Rows and columns of the launcher's terminal, if it has one.
#[expect(unsafe_code, reason = "an ioctl that fills a plain struct")]
pub fn console_size() -> Option<Winsize> {
    let mut size = Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    [libc::STDERR_FILENO, libc::STDOUT_FILENO].into_iter().find_map(|descriptor| {
        // SAFETY: `size` is valid for writes and the call keeps no reference to it.
        unsafe { get_window_size(descriptor, &mut size) }.ok().map(|_| size)
    })
}
