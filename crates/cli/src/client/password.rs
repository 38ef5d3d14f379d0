//! Asks for a password: on the terminal, where it is not shown, or as a line of stdin.

use std::io::{self, BufRead, IsTerminal, Stdin};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use super::dialog::say;
use crate::console;
use crate::report::Hinted;

/// What ends this program while it waits for an answer.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Asks for a password, which may be empty.
pub(super) fn ask(what: &str) -> io::Result<String> {
    Ok(answer(what)?.unwrap_or_default())
}

fn answer(what: &str) -> io::Result<Option<String>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return line(&mut stdin.lock());
    }
    let hidden = Hidden::new(&stdin)?;
    console::print_error(what);
    hidden.wait(&stdin)?;
    let answer = line(&mut stdin.lock());
    drop(hidden);
    console::print_error("\n");
    answer
}

/// A terminal that does not show what is typed; while it lives, signals that end this program wait.
struct Hidden {
    shown: Termios,
    signals: SignalFd,
}

impl Hidden {
    fn new(terminal: &Stdin) -> io::Result<Hidden> {
        let ending = ENDING.into_iter().collect::<SigSet>();
        let hidden = Hidden { shown: tcgetattr(terminal)?, signals: SignalFd::new(&ending)? };
        ending.thread_block()?;
        let mut flags = hidden.shown.clone();
        flags.local_flags.remove(LocalFlags::ECHO);
        // Before the prompt: a program may answer it at once.
        tcsetattr(terminal, SetArg::TCSAFLUSH, &flags)?;
        Ok(hidden)
    }

    /// Returns when there is a line; never, if a signal ends this program.
    fn wait(&self, terminal: &Stdin) -> io::Result<()> {
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut both = [watched(terminal.as_fd()), watched(self.signals.as_fd())];
        poll(&mut both, PollTimeout::NONE)?;
        if both[1].any() == Some(true) {
            self.restore();
            console::print_error("\n");
            // The signal is taken here.
            ENDING.into_iter().collect::<SigSet>().thread_unblock()?;
        }
        Ok(())
    }

    fn restore(&self) {
        // Nothing can be done where it fails.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.shown);
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.restore();
        let _ = ENDING.into_iter().collect::<SigSet>().thread_unblock();
    }
}

/// Asks twice, so that a slip of the finger does not become the password. What is piped in is taken once.
pub(super) fn ask_new(name: &str) -> anyhow::Result<String> {
    let no_line = || {
        let hint = "type it at the prompt, or pipe one line: printf '%s\\n' PASSWORD | instep …";
        Hinted::new(format!("no password of {name} was given: nothing was changed"), hint)
    };
    let first = answer(&format!("New password of {name}: "))?.ok_or_else(no_line)?;
    if io::stdin().is_terminal() && answer("Once more: ")?.ok_or_else(no_line)? != first {
        anyhow::bail!("the two passwords differ: nothing was changed");
    }
    if first.is_empty() {
        say(&format!(
            "note: the password is empty: {name} can log in on the master's machine only, as the Unix user who runs it\n\
             hint: `instep user change-password {name}` sets one"
        ));
    }
    Ok(first)
}

/// A line without its end; none at the end of the input.
fn line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut text = String::new();
    let length = input.read_line(&mut text)?;
    Ok((length > 0).then(|| text.trim_end_matches(['\r', '\n']).to_owned()))
}
