//! Carries the workers' output to files and to the console.
//!
//! A stream that only goes to a file is handed to the worker as that file. Every other stream passes through the
//! launcher: through a pipe, or through a pseudo-terminal where the console is a terminal, so that workers keep their
//! colours and progress bars. Passing through is what keeps lines of different ranks whole, lets `--fold` compare them,
//! and lets a failure report show the last lines a worker wrote.
//!
//! A line is shown when it is complete, or `SHOW_AFTER` after its first byte: prompts and progress bars have no end.

pub mod fold;
pub mod logs;
pub(crate) mod terminal;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::console::{Console, Note};
use crate::drill::progress::Progress;
use crate::output::fold::{Fold, Folded, describe_ranks};
use crate::output::logs::{AttemptDirectory, Destination, LogPolicy, Stream, WorkerFiles};

/// How long an incomplete line is held back.
const SHOW_AFTER: Duration = Duration::from_millis(30);
/// How long `--fold` waits for other ranks to say the same.
const FOLD_WINDOW: Duration = Duration::from_millis(200);
/// An incomplete line longer than this is shown at once.
const MAX_HELD_BYTES: usize = 64 << 10;
/// How many last lines are kept of each stream, and how much of each: enough for a traceback with what it was caused by.
const KEPT_LINES: usize = 120;
const KEPT_LINE_BYTES: usize = 2 << 10;
/// How much is read from one stream before the others get their turn.
const READ_BYTES: usize = 64 << 10;

/// All streams of the workers of one attempt.
#[derive(Debug)]
pub(crate) struct Output {
    began: Instant,
    captures: Vec<Capture>,
    folds: Option<BTreeMap<Stream, Fold>>,
    duplicates: BTreeMap<Stream, Duplicates>,
    buffer: Vec<u8>,
    /// When the first worker wrote something.
    first: Option<Instant>,
    /// How far local rank 0 is, by what it prints, if anybody wants to know.
    progress: Option<Progress>,
}

/// Lines that are also written to a file of their own.
#[derive(Debug)]
struct Duplicates {
    filters: Vec<String>,
    file: File,
}

/// One stream of one worker on its way through the launcher.
#[derive(Debug)]
struct Capture {
    rank: usize,
    local_rank: usize,
    stream: Stream,
    /// `None` once the worker's side is closed.
    reader: Option<File>,
    file: Option<File>,
    shown: bool,
    prefix: String,
    /// The beginning of a line that has not ended yet, and since when.
    held: Vec<u8>,
    held_since: Option<Instant>,
    /// A part of the current line has been shown.
    mid_line: bool,
    last_lines: VecDeque<Vec<u8>>,
}

impl Output {
    pub(crate) fn new(policy: &LogPolicy, attempt: &AttemptDirectory, workers: usize) -> io::Result<Output> {
        let fold = || Fold::new(workers, FOLD_WINDOW);
        let mut duplicates = BTreeMap::new();
        for (stream, filters) in [(Stream::Out, &policy.duplicate_stdout), (Stream::Err, &policy.duplicate_stderr)] {
            if let (false, Some(path)) = (filters.is_empty(), attempt.filtered(stream)) {
                duplicates.insert(stream, Duplicates { filters: filters.clone(), file: File::create(path)? });
            }
        }
        Ok(Output {
            began: Instant::now(),
            captures: Vec::new(),
            folds: policy.fold.then(|| BTreeMap::from([(Stream::Out, fold()), (Stream::Err, fold())])),
            duplicates,
            buffer: vec![0; READ_BYTES],
            first: None,
            progress: None,
        })
    }

    /// This node gets one more worker.
    pub(crate) fn add_worker(&mut self) {
        self.folds.iter_mut().flat_map(BTreeMap::values_mut).for_each(Fold::add_rank);
    }

    /// Prepares both streams of a worker; gives what it is to be started with. A log that is not `fresh` goes on.
    pub(crate) fn attach(
        &mut self,
        rank: usize,
        local_rank: usize,
        files: &WorkerFiles,
        fresh: bool,
        console: &dyn Console,
    ) -> io::Result<(OwnedFd, OwnedFd)> {
        let both_on_console = files.stdout == Destination::Console && files.stderr == Destination::Console;
        if both_on_console && console.streams_are_one() && self.folds.is_none() {
            // One pipe for both keeps their order as the worker wrote it.
            let writer = self.capture(rank, local_rank, Stream::Out, &files.stdout, fresh, console)?;
            return Ok((writer.try_clone()?, writer));
        }
        let mut open = |stream: Stream, destination: &Destination| match destination {
            Destination::File(path) => Ok(OwnedFd::from(open_log(path, fresh)?)),
            _ => self.capture(rank, local_rank, stream, destination, fresh, console),
        };
        Ok((open(Stream::Out, &files.stdout)?, open(Stream::Err, &files.stderr)?))
    }

    fn capture(
        &mut self,
        rank: usize,
        local_rank: usize,
        stream: Stream,
        destination: &Destination,
        fresh: bool,
        console: &dyn Console,
    ) -> io::Result<OwnedFd> {
        let as_terminal = *destination == Destination::Console && console.is_terminal(stream);
        let (reader, writer) = if as_terminal { terminal::open_pair()? } else { nix::unistd::pipe2(OFlag::O_CLOEXEC)? };
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (file, shown, prefix) = match destination {
            Destination::Tee(path, prefix) => (Some(open_log(path, fresh)?), true, prefix.clone()),
            Destination::Console => (None, true, String::new()),
            Destination::Discard | Destination::File(_) => (None, false, String::new()),
        };
        self.captures.push(Capture {
            rank,
            local_rank,
            stream,
            reader: Some(File::from(reader)),
            file,
            shown,
            prefix,
            held: Vec::new(),
            held_since: None,
            mid_line: false,
            last_lines: VecDeque::new(),
        });
        Ok(writer)
    }

    /// A worker is to be replaced: shows what it has written, and lets its streams go.
    pub(crate) fn detach(&mut self, local_rank: usize, console: &mut dyn Console) {
        self.drain(local_rank, console);
        self.captures.retain(|capture| capture.local_rank != local_rank);
    }

    /// What to poll for input, with the index to pass to [`Output::readable`].
    pub(crate) fn sources(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.captures.iter().enumerate().filter_map(|(index, capture)| Some((index, capture.reader.as_ref()?.as_fd())))
    }

    /// Takes what a source offers, one bufferful; true if there may be more.
    pub(crate) fn readable(&mut self, index: usize, console: &mut dyn Console) -> bool {
        let capture = &mut self.captures[index];
        let Some(reader) = &mut capture.reader else { return false };
        let count = match reader.read(&mut self.buffer) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return false;
            }
            // A pseudo-terminal reports its end as an error.
            Err(_) => 0,
        };
        if count == 0 {
            capture.reader = None;
            self.release_held(index, console);
            return false;
        }
        self.first.get_or_insert_with(Instant::now);
        let bytes = std::mem::take(&mut self.buffer);
        self.feed(index, &bytes[..count], console);
        self.buffer = bytes;
        true
    }

    fn feed(&mut self, index: usize, bytes: &[u8], console: &mut dyn Console) {
        let capture = &mut self.captures[index];
        if let Some(file) = &mut capture.file
            && let Err(cause) = file.write_all(bytes)
        {
            // The disk is full or gone: the console still has the output, and the worker must not block.
            capture.file = None;
            let name = if capture.stream == Stream::Out { "stdout.log" } else { "stderr.log" };
            let text = format!("{name} of rank {} is incomplete: {cause}", capture.rank);
            console.note(Note::Warning(text));
        }
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            let capture = &mut self.captures[index];
            let mut whole = std::mem::take(&mut capture.held);
            whole.extend_from_slice(line);
            capture.held_since = None;
            self.complete_line(index, &whole, console);
            rest = after;
        }
        let capture = &mut self.captures[index];
        if !rest.is_empty() {
            capture.held.extend_from_slice(rest);
            capture.held_since.get_or_insert_with(Instant::now);
            if capture.held.len() > MAX_HELD_BYTES {
                self.release_held(index, console);
            }
        }
    }

    /// A line has ended; the part of it that was shown already is not in `line`.
    fn complete_line(&mut self, index: usize, line: &[u8], console: &mut dyn Console) {
        let capture = &mut self.captures[index];
        let start = !std::mem::replace(&mut capture.mid_line, false);
        push_line(&mut capture.last_lines, line, start);
        if let Some(progress) = self.progress.as_mut().filter(|_| capture.local_rank == 0) {
            progress.line(line);
        }
        let prefix = if start { capture.prefix.as_bytes() } else { b"" };
        if let Some(duplicates) = self.duplicates.get_mut(&capture.stream).filter(|_| capture.file.is_some()) {
            let text = String::from_utf8_lossy(line);
            if duplicates.filters.iter().any(|filter| text.contains(filter.as_str())) {
                // A copy for convenience: the log itself has the line.
                let _ = duplicates.file.write_all(&[prefix, line].concat());
            }
        }
        if !capture.shown {
            return;
        }
        match &mut self.folds {
            Some(folds) => {
                let now = self.began.elapsed();
                let (rank, stream) = (capture.rank, capture.stream);
                let folded = folds.get_mut(&stream).map(|fold| fold.line(rank, line, now)).unwrap_or_default();
                show_folded(stream, folded, console);
            }
            None => console.output(capture.stream, &[prefix, line].concat()),
        }
    }

    /// Shows the beginning of a line whose end is not in sight.
    fn release_held(&mut self, index: usize, console: &mut dyn Console) {
        let capture = &mut self.captures[index];
        let part = std::mem::take(&mut capture.held);
        capture.held_since = None;
        if part.is_empty() {
            return;
        }
        if self.folds.is_some() {
            // A folded line has no beginning to show; it counts as ended.
            return self.complete_line(index, &[part.as_slice(), b"\n"].concat(), console);
        }
        let start = !std::mem::replace(&mut capture.mid_line, true);
        push_line(&mut capture.last_lines, &part, start);
        if capture.shown {
            let prefix = if start { capture.prefix.as_bytes() } else { b"" };
            console.output(capture.stream, &[prefix, part.as_slice()].concat());
        }
    }

    /// Shows what has been held long enough.
    pub(crate) fn tick(&mut self, console: &mut dyn Console) {
        let folding = self.folds.is_some();
        for index in 0..self.captures.len() {
            let due = self.captures[index].held_since.is_some_and(|since| since.elapsed() >= SHOW_AFTER);
            if due && !folding {
                self.release_held(index, console);
            }
        }
        let now = self.began.elapsed();
        for (stream, fold) in self.folds.iter_mut().flatten() {
            show_folded(*stream, fold.flush(now), console);
        }
    }

    /// When [`Output::tick`] is due.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let held = self.captures.iter().filter_map(|capture| capture.held_since).min().map(|since| since + SHOW_AFTER);
        let folds = self.folds.iter().flatten().filter_map(|(_, fold)| fold.wake_at()).min();
        [held.filter(|_| self.folds.is_none()), folds.map(|due| self.began + due)].into_iter().flatten().min()
    }

    /// Takes everything a worker has written so far.
    pub(crate) fn drain(&mut self, local_rank: usize, console: &mut dyn Console) {
        for index in 0..self.captures.len() {
            if self.captures[index].local_rank == local_rank {
                // Bounded: a child it left behind may write for ever.
                for _ in 0..64 {
                    if !self.readable(index, console) {
                        break;
                    }
                }
                self.release_held(index, console);
            }
        }
    }

    /// The attempt is over: shows all that is left.
    pub(crate) fn finish(&mut self, console: &mut dyn Console) {
        for index in 0..self.captures.len() {
            self.drain(self.captures[index].local_rank, console);
        }
        for (stream, fold) in self.folds.iter_mut().flatten() {
            show_folded(*stream, fold.finish(), console);
        }
    }

    /// Follows how far local rank 0 is from now on.
    pub(crate) fn follow_progress(&mut self) {
        self.progress = Some(Progress::default());
    }

    /// When the first worker wrote something, and how far local rank 0 is.
    pub(crate) fn progress(&self) -> Option<(Instant, &Progress)> {
        Some((self.first?, self.progress.as_ref()?))
    }

    /// The last lines a worker wrote: of stderr if there are any, else of stdout.
    pub(crate) fn last_lines(&self, local_rank: usize, files: &WorkerFiles) -> Vec<String> {
        let captured = |stream: Stream| {
            let mut captures = self.captures.iter();
            let found = captures.find(|capture| capture.local_rank == local_rank && capture.stream == stream);
            found.map(|capture| capture.last_lines.iter().map(|line| readable_text(line)).collect::<Vec<_>>())
        };
        let of = |stream: Stream, destination: &Destination| match destination {
            Destination::File(path) => tail_of_file(path).unwrap_or_default(),
            _ => captured(stream).unwrap_or_default(),
        };
        let errors = of(Stream::Err, &files.stderr);
        if errors.is_empty() { of(Stream::Out, &files.stdout) } else { errors }
    }
}

fn open_log(path: &Path, fresh: bool) -> io::Result<File> {
    if fresh { File::create(path) } else { File::options().append(true).create(true).open(path) }
}

fn show_folded(stream: Stream, folded: Vec<Folded>, console: &mut dyn Console) {
    for entry in folded {
        let mut line = format!("[{}] ", describe_ranks(&entry.ranks)).into_bytes();
        line.extend_from_slice(&entry.line);
        console.output(stream, &line);
    }
}

fn push_line(lines: &mut VecDeque<Vec<u8>>, part: &[u8], new_line: bool) {
    if new_line || lines.is_empty() {
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(Vec::new());
    }
    if let Some(last) = lines.back_mut() {
        // Of a progress bar only its last state is kept, so that there is room for what follows it on the line.
        let begin = part.trim_ascii_end().iter().rposition(|byte| *byte == b'\r').map_or(0, |at| at + 1);
        if begin > 0 {
            last.clear();
        }
        let part = &part[begin..];
        let room = KEPT_LINE_BYTES.saturating_sub(last.len());
        last.extend_from_slice(&part[..part.len().min(room)]);
    }
}

fn readable_text(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    // Of a progress bar only its last state is of interest.
    let text = text.trim_end_matches(['\n', '\r']);
    text.rsplit('\r').next().unwrap_or(text).to_owned()
}

fn tail_of_file(path: &Path) -> io::Result<Vec<String>> {
    use std::io::{Seek, SeekFrom};
    const WINDOW: u64 = (KEPT_LINES * KEPT_LINE_BYTES) as u64;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(WINDOW)))?;
    let mut bytes = Vec::new();
    file.take(WINDOW).read_to_end(&mut bytes)?;
    let lines: Vec<String> = bytes.split_inclusive(|byte| *byte == b'\n').map(readable_text).collect();
    Ok(lines[lines.len().saturating_sub(KEPT_LINES)..].to_vec())
}
