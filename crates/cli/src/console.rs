//! The terminal or pipes of the launcher: workers' output, sentences for people, the live status line.
//!
//! stdout is for what workers and commands print there; everything the launcher itself says goes to stderr. The
//! status line is the last line of the terminal: it is taken away before anything else is written, and drawn again
//! after.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use instep_launch::output::logs::Stream;
use instep_launch::{Console, Note, Status};

/// Writes to stdout; a reader that has gone away is no error.
pub(crate) fn print(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// Writes to stderr.
pub(crate) fn print_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether stderr may be coloured. Colours never carry meaning alone.
pub(crate) fn colours() -> bool {
    io::stderr().is_terminal() && !is_dumb() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether the terminal understands no escape sequences.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|kind| kind == "dumb")
}

/// Text in bold or a colour, where that is wanted.
pub(crate) fn paint(code: &str, text: &str) -> String {
    if colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct TerminalConsole {
    terminals: [bool; 2],
    streams_are_one: bool,
    show_status: bool,
    /// What the status line shows now.
    drawn: Option<String>,
    /// The last output did not end its line: the status line must not join it.
    mid_line: bool,
}

impl TerminalConsole {
    pub(crate) fn new(status_wanted: bool) -> TerminalConsole {
        let terminals = [io::stdout().is_terminal(), io::stderr().is_terminal()];
        TerminalConsole {
            terminals,
            streams_are_one: same_file(io::stdout().as_fd(), io::stderr().as_fd()),
            show_status: status_wanted && terminals[1] && !is_dumb(),
            drawn: None,
            mid_line: false,
        }
    }

    pub(crate) fn warn(&mut self, text: &str) {
        self.note(Note::Warning(text.to_owned()));
    }

    /// Takes the status line away for good.
    pub(crate) fn end_status(&mut self) {
        self.erase();
        self.show_status = false;
    }

    /// Shows a status line of one's own, if one is wanted.
    pub(crate) fn show(&mut self, line: &str) {
        if self.show_status {
            self.draw(fitting(line));
        }
    }

    fn erase(&mut self) {
        if self.drawn.take().is_some() {
            print_error("\r\x1b[K");
        }
    }

    fn draw(&mut self, line: String) {
        if self.mid_line || self.drawn.as_ref() == Some(&line) {
            return;
        }
        print_error(&format!("\r{}\x1b[K", paint("2", &line)));
        self.drawn = Some(line);
    }
}

impl Console for TerminalConsole {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        let drawn = self.drawn.clone();
        self.erase();
        match stream {
            Stream::Out => print(bytes),
            Stream::Err => {
                let _ = io::stderr().lock().write_all(bytes);
            }
        }
        self.mid_line = self.show_status && bytes.last() != Some(&b'\n');
        if let Some(line) = drawn {
            self.draw(line);
        }
    }

    fn note(&mut self, note: Note) {
        let drawn = self.drawn.clone();
        self.erase();
        let start = if std::mem::take(&mut self.mid_line) { "\n" } else { "" };
        let line = match note {
            Note::Progress(text) => format!("{start}{} {text}\n", paint("1", "instep:")),
            Note::Warning(text) => format!("{start}{} {text}\n", paint("33", "warning:")),
        };
        print_error(&line);
        if let Some(line) = drawn {
            self.draw(line);
        }
    }

    fn status(&mut self, status: &Status) {
        self.draw(fitting(&status_line(status)));
    }

    fn wants_status(&self) -> bool {
        self.show_status
    }

    fn is_terminal(&self, stream: Stream) -> bool {
        self.terminals[usize::from(stream == Stream::Err)]
    }

    fn streams_are_one(&self) -> bool {
        self.streams_are_one
    }
}

/// As much of a line as the terminal has columns.
fn fitting(line: &str) -> String {
    let columns = instep_launch::console_size().map_or(80, |size| usize::from(size.ws_col.max(20)));
    line.chars().take(columns - 1).collect()
}

/// "running · 4 workers · 1 node · restarts 1/3 · up 0:12".
fn status_line(status: &Status) -> String {
    let seconds = status.uptime.as_secs();
    let clock = match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    };
    let nodes = if status.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", status.nodes) };
    let workers = match (status.phase, status.world_size) {
        ("running", _) if status.alive < status.workers => {
            format!("{} of {} workers here still running", status.alive, status.workers)
        }
        (_, 1) => "1 worker".to_owned(),
        (_, all) => format!("{all} workers"),
    };
    let mut parts = vec![status.phase.to_owned()];
    if status.world_size > 0 {
        parts.push(workers);
    }
    parts.push(nodes);
    if status.round > 0 {
        parts.push(format!("round {}", status.round));
    }
    if status.max_restarts > 0 {
        parts.push(format!("restarts {}/{}", status.restarts, status.max_restarts));
    }
    if status.replacements > 0 {
        parts.push(format!("replaced {}", status.replacements));
    }
    parts.push(format!("up {clock}"));
    parts.join(" · ")
}

fn same_file(a: std::os::fd::BorrowedFd<'_>, b: std::os::fd::BorrowedFd<'_>) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |descriptor: std::os::fd::BorrowedFd<'_>| {
        let file = std::fs::File::from(descriptor.try_clone_to_owned().ok()?);
        file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino(), metadata.rdev()))
    };
    identity(a).is_some_and(|found| Some(found) == identity(b))
}

#[cfg(test)]
mod tests {
    use super::status_line;
    use instep_launch::Status;
    use std::time::Duration;

    #[test]
    fn the_status_line_says_where_the_job_stands() {
        let mut status = Status {
            phase: "running",
            round: 1,
            nodes: 2,
            world_size: 16,
            alive: 8,
            workers: 8,
            restarts: 1,
            max_restarts: 3,
            replacements: 0,
            uptime: Duration::from_secs(75),
        };
        assert_eq!(status_line(&status), "running · 16 workers · 2 nodes · round 1 · restarts 1/3 · up 1:15");
        status.alive = 6;
        status.nodes = 1;
        status.uptime = Duration::from_secs(3723);
        status.round = 0;
        status.max_restarts = 0;
        assert_eq!(status_line(&status), "running · 6 of 8 workers here still running · 1 node · up 1:02:03");
        status.alive = 8;
        status.replacements = 2;
        assert_eq!(status_line(&status), "running · 16 workers · 1 node · replaced 2 · up 1:02:03");
    }
}
