//! Where the workers' output goes: stream masks, log directories, console prefixes.
//!
//! The layout is torchrun's: `<base>/<run id>_<random>/attempt_<restarts>/<local rank>/{stdout.log,stderr.log,error.json}`,
//! with `filtered_stdout.log` and `filtered_stderr.log` beside the ranks. The base is the user's `--log-dir`, or a
//! temporary directory that is removed at the end if nothing was written to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::random;

/// One of a worker's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Which streams of which local ranks an option means: `3`, or `0:3,1:1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamMask {
    /// The same for every rank; bit 0 is stdout, bit 1 stderr.
    All(u8),
    /// By local rank; absent ranks have none.
    ByRank(BTreeMap<usize, u8>),
}

impl StreamMask {
    /// Whether the mask names this stream of this rank.
    pub fn covers(&self, local_rank: usize, stream: Stream) -> bool {
        let bits = match self {
            StreamMask::All(bits) => *bits,
            StreamMask::ByRank(ranks) => ranks.get(&local_rank).copied().unwrap_or(0),
        };
        bits & if stream == Stream::Out { 1 } else { 2 } != 0
    }
}

impl FromStr for StreamMask {
    type Err = String;

    fn from_str(text: &str) -> Result<StreamMask, String> {
        let invalid = || format!("\"{text}\" is not a stream mask");
        let bits = |text: &str| text.parse::<u8>().ok().filter(|bits| *bits <= 3 && text.len() == 1);
        if let Some(bits) = bits(text) {
            return Ok(StreamMask::All(bits));
        }
        text.split(',')
            .map(|entry| {
                let (rank, mask) = entry.split_once(':')?;
                let digits = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
                Some((rank.parse().ok().filter(|_| digits)?, bits(mask)?))
            })
            .collect::<Option<BTreeMap<usize, u8>>>()
            .map(StreamMask::ByRank)
            .ok_or_else(invalid)
    }
}

/// Where logs are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogBase {
    /// `--log-dir=/dev/null`: no files at all.
    Nowhere,
    /// A fresh temporary directory.
    Temporary,
    /// `--log-dir`.
    Directory(PathBuf),
}

/// Everything the user said about output.
#[derive(Debug, Clone)]
pub struct LogPolicy {
    /// Where logs are kept.
    pub base: LogBase,
    /// Streams that go to a file only.
    pub redirects: StreamMask,
    /// Streams that go to a file and, prefixed, to the console.
    pub tee: StreamMask,
    /// Local ranks whose output reaches the console; `None` means all.
    pub filter: Option<BTreeSet<usize>>,
    /// Template of the prefix of tee'd lines.
    pub prefix_template: Option<String>,
    /// Tee'd stdout lines that contain one of these also go to `filtered_stdout.log`.
    pub duplicate_stdout: Vec<String>,
    /// The same for stderr.
    pub duplicate_stderr: Vec<String>,
    /// Identical lines of several ranks are shown once.
    pub fold: bool,
}

impl LogPolicy {
    /// Whether a stream goes to a file and nowhere else, so that the worker has the file itself.
    pub(crate) fn only_to_file(&self, local_rank: usize, stream: Stream) -> bool {
        let shown = self.filter.as_ref().is_none_or(|ranks| ranks.contains(&local_rank));
        match (self.tee.covers(local_rank, stream), shown) {
            (true, shown) => !shown,
            (false, _) => self.redirects.covers(local_rank, stream),
        }
    }
}

/// Where one stream of one worker goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The launcher's own stream, as it is.
    Console,
    /// A file only.
    File(PathBuf),
    /// A file and, with this prefix, the console.
    Tee(PathBuf, String),
    /// A tee'd stream of a rank that is filtered out: captured for the file alone.
    Discard,
}

/// The files of one worker in one attempt.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct WorkerFiles {
    pub stdout: Destination,
    pub stderr: Destination,
    /// Where the worker writes its exception, if logs are kept.
    pub error_file: Option<PathBuf>,
}

/// The log directory of one launcher run.
#[derive(Debug)]
pub struct RunDirectory {
    path: Option<PathBuf>,
    temporary_base: Option<PathBuf>,
}

impl RunDirectory {
    /// Creates `<base>/<run id>_<random>`.
    pub fn create(base: &LogBase, run_id: &str) -> io::Result<RunDirectory> {
        let (base, temporary_base) = match base {
            LogBase::Nowhere => return Ok(RunDirectory { path: None, temporary_base: None }),
            LogBase::Temporary => {
                let base = fresh_directory(&std::env::temp_dir(), "torchelastic_")?;
                (base.clone(), Some(base))
            }
            LogBase::Directory(base) => {
                fs::create_dir_all(base)?;
                (base.clone(), None)
            }
        };
        let path = fresh_directory(&base, &format!("{}_", run_id.replace('/', "_")))?;
        Ok(RunDirectory { path: Some(path), temporary_base })
    }

    /// The directory, if logs are kept.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Creates the directories of one attempt: `attempt_<restarts>`, and `attempt_<restarts>.1` and so on for further
    /// rounds after the same number of restarts, because nodes came or went.
    pub fn attempt(&self, restarts: u32, workers: usize) -> io::Result<AttemptDirectory> {
        let Some(run) = &self.path else { return Ok(AttemptDirectory { path: None }) };
        let names = (1u32..).map(|further| format!("attempt_{restarts}.{further}"));
        let mut names = std::iter::once(format!("attempt_{restarts}")).chain(names);
        let path = loop {
            let path = run.join(names.next().unwrap_or_default());
            if !path.exists() {
                break path;
            }
        };
        // For a node that takes ranks over without having any.
        fs::create_dir_all(&path)?;
        for local_rank in 0..workers {
            fs::create_dir_all(path.join(local_rank.to_string()))?;
        }
        Ok(AttemptDirectory { path: Some(path) })
    }

    /// Removes a temporary directory in which nothing was written.
    pub fn remove_if_empty(&self) {
        if let Some(base) = &self.temporary_base {
            remove_empty_directories(base);
        }
    }
}

/// The log directory of one attempt.
#[derive(Debug)]
pub struct AttemptDirectory {
    path: Option<PathBuf>,
}

impl AttemptDirectory {
    /// No files: everything goes to the console.
    pub(crate) fn nowhere() -> AttemptDirectory {
        AttemptDirectory { path: None }
    }

    /// Creates the directory of one more worker.
    pub(crate) fn add_worker(&self, local_rank: usize) -> io::Result<()> {
        self.path.as_ref().map_or(Ok(()), |path| fs::create_dir_all(path.join(local_rank.to_string())))
    }

    /// Where the streams of one worker go.
    pub fn worker(&self, policy: &LogPolicy, local_rank: usize, prefix: &str) -> WorkerFiles {
        let shown = policy.filter.as_ref().is_none_or(|ranks| ranks.contains(&local_rank));
        let Some(path) = &self.path else {
            return WorkerFiles { stdout: Destination::Console, stderr: Destination::Console, error_file: None };
        };
        let directory = path.join(local_rank.to_string());
        let destination = |stream: Stream, name: &str| match (
            policy.only_to_file(local_rank, stream),
            policy.tee.covers(local_rank, stream),
            shown,
        ) {
            (true, _, _) => Destination::File(directory.join(name)),
            (false, true, _) => Destination::Tee(directory.join(name), prefix.to_owned()),
            (false, false, true) => Destination::Console,
            (false, false, false) => Destination::Discard,
        };
        WorkerFiles {
            stdout: destination(Stream::Out, "stdout.log"),
            stderr: destination(Stream::Err, "stderr.log"),
            error_file: Some(directory.join("error.json")),
        }
    }

    /// The file for duplicated lines of a stream.
    pub fn filtered(&self, stream: Stream) -> Option<PathBuf> {
        let name = if stream == Stream::Out { "filtered_stdout.log" } else { "filtered_stderr.log" };
        self.path.as_ref().map(|path| path.join(name))
    }
}

/// A new directory `<prefix><8 random letters>` that only we can read.
fn fresh_directory(base: &Path, prefix: &str) -> io::Result<PathBuf> {
    loop {
        let path = base.join(format!("{prefix}{}", random_letters()?));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            result => return result.map(|()| path),
        }
    }
}

fn random_letters() -> io::Result<String> {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bytes = random::bytes::<8>()?;
    Ok(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect())
}

fn remove_empty_directories(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty_directories(&entry.path());
        }
    }
    // Fails, as it should, where something was written.
    let _ = fs::remove_dir(path);
}

/// Fills in the macros of a log line prefix; unknown ones stay as they are.
pub fn line_prefix(template: Option<&str>, role: &str, local_rank: usize, rank: usize, host: &str) -> String {
    let Some(template) = template else { return format!("[{role}{local_rank}]:") };
    let short_host = host.split('.').next().unwrap_or(host);
    substitute(template, |name| match name {
        "role_name" => Some(role.to_owned()),
        "local_rank" => Some(local_rank.to_string()),
        "rank" => Some(rank.to_string()),
        "hostname" => Some(short_host.to_owned()),
        _ => None,
    })
}

/// Replaces `${name}` and `$name` as Python's `string.Template.safe_substitute` does; `$$` is a dollar sign.
pub fn substitute(template: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let identifier = |text: &str| {
        let first = text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
        let rest = text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        if first { rest } else { 0 }
    };
    let mut result = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(dollar) = rest.find('$') {
        result.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        let (name, consumed) = if let Some(after) = after.strip_prefix('$') {
            result.push('$');
            rest = after;
            continue;
        } else if let Some(braced) = after.strip_prefix('{') {
            let length = identifier(braced);
            if length > 0 && braced[length..].starts_with('}') { (&braced[..length], length + 2) } else { ("", 0) }
        } else {
            let length = identifier(after);
            (&after[..length], length)
        };
        match value(name).filter(|_| !name.is_empty()) {
            Some(text) => result.push_str(&text),
            None => result.push_str(&rest[dollar..dollar + 1 + consumed]),
        }
        rest = &after[consumed..];
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::{Stream, StreamMask, line_prefix, substitute};

    #[test]
    fn stream_masks_are_parsed() {
        let cases =
            [("0", 0, [false, false]), ("1", 0, [true, false]), ("2", 5, [false, true]), ("3", 1, [true, true])];
        for (text, rank, expected) in cases {
            let mask: StreamMask = text.parse().expect("valid");
            assert_eq!([mask.covers(rank, Stream::Out), mask.covers(rank, Stream::Err)], expected, "{text}");
        }
        let mask: StreamMask = "0:3,11:1".parse().expect("valid");
        assert!(mask.covers(0, Stream::Err) && mask.covers(11, Stream::Out) && !mask.covers(1, Stream::Out));
        for text in ["", "4", "03", "0:4", "a:1", "0:1,", "-1", "0:1 ,1:2", "+1:2"] {
            assert!(text.parse::<StreamMask>().is_err(), "{text}");
        }
    }

    #[test]
    fn templates_follow_python() {
        let value = |name: &str| (name == "local_rank").then(|| "3".to_owned());
        for (template, expected) in [
            ("${local_rank}", "3"),
            ("$local_rank!", "3!"),
            ("$local_ranks", "$local_ranks"),
            ("${other} $ $$ ${", "${other} $ $ ${"),
            ("a${local_rank}b${local_rank", "a3b${local_rank"),
            ("$$local_rank", "$local_rank"),
            ("é${local_rank}é", "é3é"),
        ] {
            assert_eq!(substitute(template, value), expected, "{template}");
        }
        assert_eq!(line_prefix(None, "default", 1, 5, "a.b"), "[default1]:");
        assert_eq!(line_prefix(Some("${hostname}/${rank} ${x}"), "r", 1, 5, "a.b"), "a/5 ${x}");
    }
}
