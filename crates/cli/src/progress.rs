//! How far something has come that goes through tables of a database: a status line of the terminal, or a line for each
//! table elsewhere. On stderr.

use std::time::{Duration, Instant};

use instep_launch::{Console, Note};

use crate::console::TerminalConsole;

/// How often the status line changes.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// Shows how far it has come.
pub(crate) struct Progress {
    console: TerminalConsole,
    last: Option<Instant>,
    table: String,
    /// What is done with its rows, such as `read`.
    done: &'static str,
    rows: u64,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { console: TerminalConsole::new(true), last: None, table: String::new(), done: "", rows: 0 }
    }

    /// Says that so many of all rows of a table are done.
    pub(crate) fn rows(&mut self, table: &str, done: &'static str, rows: u64, total: u64) {
        if table != self.table || done != self.done {
            self.end_table();
            table.clone_into(&mut self.table);
            self.done = done;
        }
        self.rows = rows;
        if self.last.is_none_or(|last| last.elapsed() >= STATUS_INTERVAL) {
            self.last = Some(Instant::now());
            self.console.show(&format!("{table}: {} of {} rows {done}", grouped(rows), grouped(total)));
        }
    }

    /// Says something beside it.
    pub(crate) fn note(&mut self, text: &str) {
        self.console.note(Note::Progress(text.to_owned()));
    }

    /// Says that a table is done, where a status line cannot be seen.
    fn end_table(&mut self) {
        if !self.table.is_empty() && self.rows > 0 {
            let (table, rows, plural) = (&self.table, grouped(self.rows), if self.rows == 1 { "" } else { "s" });
            self.console.note(Note::Progress(format!("{table}: {rows} row{plural} {}", self.done)));
        }
        self.table.clear();
    }

    pub(crate) fn end(&mut self) {
        self.console.end_status();
        self.end_table();
    }
}

/// A number with a comma between groups of digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
