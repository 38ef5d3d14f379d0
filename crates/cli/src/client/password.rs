//! Asks for a password: on the terminal, where it is not shown, or as a line of stdin.

use std::io::{self, BufRead, IsTerminal};

use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};

use crate::console;

/// Asks for a password.
pub(super) fn ask(what: &str) -> io::Result<String> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return line(&mut stdin.lock());
    }
    let shown = tcgetattr(&stdin)?;
    let mut hidden = shown.clone();
    hidden.local_flags.remove(LocalFlags::ECHO);
    console::print_error(what);
    tcsetattr(&stdin, SetArg::TCSAFLUSH, &hidden)?;
    let answer = line(&mut stdin.lock());
    tcsetattr(&stdin, SetArg::TCSANOW, &shown)?;
    console::print_error("\n");
    answer
}

/// Asks twice, so that a slip of the finger does not become the password. What is piped in is taken once.
pub(super) fn ask_new(name: &str) -> anyhow::Result<String> {
    let first = ask(&format!("New password of {name}: "))?;
    if io::stdin().is_terminal() && ask("Once more: ")? != first {
        anyhow::bail!("the two passwords differ: nothing was changed");
    }
    Ok(first)
}

fn line(input: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    input.read_line(&mut text)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
