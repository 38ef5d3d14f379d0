//! What verbs say to people, and ask them, beside the data they print.

use std::io::{BufRead, IsTerminal};

use crate::console;
use crate::report::Hinted;

/// Says something on stderr, in a line of its own.
pub(super) fn say(what: &str) {
    console::print_error(&format!("{what}\n"));
}

/// Asks before something that cannot be taken back, unless `yes`.
pub(super) fn confirm(yes: bool, what: &str) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Hinted::new(format!("{what} cannot be undone"), "add --yes to confirm").into());
    }
    console::print_error(&format!("{what} cannot be undone. Type yes to confirm: "));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim().eq_ignore_ascii_case("yes") { Ok(()) } else { Err(anyhow::anyhow!("nothing was changed")) }
}
