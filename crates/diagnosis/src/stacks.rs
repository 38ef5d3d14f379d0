//! What a Python stack says: whether the rank waits for others, for data, or does something of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Threads and frames that are looked at; what asks writes no more.
const MOST: usize = 256;

/// One thread's Python frames, the innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Thread {
    /// As the program calls it; may be empty.
    pub name: String,
    /// Whether it is the main one.
    pub main: bool,
    /// Where it is, and who called that.
    pub frames: Vec<Frame>,
}

/// A place in Python code.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Frame {
    /// Its file, as Python names it.
    pub file: String,
    /// Which line of it.
    pub line: u32,
    /// In this function.
    pub function: String,
}

impl fmt::Display for Frame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file, self.line)?;
        if self.function.is_empty() || self.function == "<module>" {
            Ok(())
        } else {
            write!(formatter, " in {}", self.function)
        }
    }
}

/// What a rank does, as far as its main thread's frames tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity<'a> {
    /// It waits in torch.distributed, in the backend, or in the backward pass that reduces gradients.
    Communicates,
    /// It waits for data: a data loader, a queue, a connection. Where the script does that.
    Data(&'a Frame),
    /// Something else. Where.
    Own(&'a Frame),
    /// It has no Python frames.
    Nothing,
}

#[derive(Deserialize)]
struct StackAnswer {
    threads: Vec<AnsweredThread>,
}

#[derive(Deserialize)]
struct AnsweredThread {
    name: String,
    main: bool,
    frames: Vec<(String, u32, String)>,
}

/// Reads what a process answered; the main thread comes first.
pub fn from_json(text: &str) -> Option<Vec<Thread>> {
    let answer: StackAnswer = serde_json::from_str(text).ok()?;
    let threads = answer.threads.into_iter().take(MOST).map(|thread| {
        let frames = thread.frames.into_iter().take(MOST);
        let frames =
            frames.map(|(file, line, function)| Frame { file: plain(&file), line, function: plain(&function) });
        Thread { name: plain(&thread.name), main: thread.main, frames: frames.collect() }
    });
    let mut threads: Vec<Thread> = threads.collect();
    threads.sort_by_key(|thread| !thread.main);
    Some(threads)
}

/// Reads Python's own dump of all threads (`faulthandler`). The oldest thread, which is the main one, stands last there.
pub fn from_dump(text: &str) -> Vec<Thread> {
    let mut threads: Vec<Thread> = Vec::new();
    for line in text.lines() {
        if line.starts_with("Thread 0x") || line.starts_with("Current thread 0x") {
            if threads.len() == MOST {
                break;
            }
            threads.push(Thread::default());
        } else if let (Some(thread), Some(frame)) = (threads.last_mut(), dumped_frame(line))
            && thread.frames.len() < MOST
        {
            thread.frames.push(frame);
        }
    }
    threads.reverse();
    if let Some(main) = threads.first_mut() {
        main.main = true;
    }
    threads
}

#[derive(Deserialize)]
struct PySpyThread {
    thread_name: Option<String>,
    frames: Vec<PySpyFrame>,
}

#[derive(Deserialize)]
struct PySpyFrame {
    name: String,
    filename: String,
    line: u32,
}

/// Reads what `py-spy dump --json` prints.
pub fn from_py_spy(text: &str) -> Option<Vec<Thread>> {
    let spied: Vec<PySpyThread> = serde_json::from_str(text).ok()?;
    let frame =
        |frame: PySpyFrame| Frame { file: plain(&frame.filename), line: frame.line, function: plain(&frame.name) };
    let thread = |thread: PySpyThread| {
        let name = thread.thread_name.map(|name| plain(&name)).unwrap_or_default();
        let frames = thread.frames.into_iter().take(MOST).map(frame).collect();
        Thread { main: name == "MainThread", name, frames }
    };
    let mut threads: Vec<Thread> = spied.into_iter().take(MOST).map(thread).collect();
    threads.sort_by_key(|thread| !thread.main);
    Some(threads)
}

/// `  File "train.py", line 12 in main`.
fn dumped_frame(line: &str) -> Option<Frame> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    Some(Frame { file: plain(file), line: number.parse().ok()?, function: plain(function) })
}

/// Names come from another process: nothing in them may move the cursor.
fn plain(text: &str) -> String {
    text.chars().take(400).map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// What the main thread does.
pub fn activity(thread: &Thread) -> Activity<'_> {
    let Some(innermost) = thread.frames.first() else { return Activity::Nothing };
    let own = thread.frames.iter().find(|frame| !is_library(&frame.file));
    let shown = own.unwrap_or(innermost);
    // A data set's own code counts as the loader's, wherever it waits.
    if thread.frames.iter().any(|frame| frame.file.contains("/torch/utils/data/")) {
        return Activity::Data(shown);
    }
    // Libraries between the script and where it waits.
    let called = thread.frames.iter().take_while(|frame| is_library(&frame.file));
    for frame in called {
        let named = |part: &str| frame.file.contains(part);
        if named("/instep/backend/") || named("/torch/distributed/") || named("/torch/autograd/") {
            return Activity::Communicates;
        }
        if ["/multiprocessing/queues.py", "/multiprocessing/connection.py", "/queue.py"].iter().any(|part| named(part))
            || ["/socket.py", "/ssl.py", "/selectors.py", "/http/client.py", "/urllib/", "/socketserver.py"]
                .iter()
                .any(|part| named(part))
        {
            return Activity::Data(shown);
        }
    }
    Activity::Own(shown)
}

/// Whether a file is Python's or a package's, and not the script's.
pub(crate) fn is_library(file: &str) -> bool {
    file.contains("/site-packages/")
        || file.contains("/dist-packages/")
        || file.contains("/lib/python3")
        || file.contains("/instep/backend/")
        || file.starts_with('<')
}

/// Whether a line of a script reads from somewhere, where the frames end in native code.
pub fn reads(line: &str) -> bool {
    [
        ".recv(",
        ".recvfrom(",
        ".recv_into(",
        ".accept(",
        ".read(",
        ".readline(",
        ".readinto(",
        "os.read(",
        "input(",
        ".get(",
    ]
    .iter()
    .any(|call| line.contains(call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};

    fn thread(files: &[&str]) -> Thread {
        let frame = |file: &&str| Frame { file: (*file).to_owned(), line: 3, function: "f".to_owned() };
        Thread { name: String::new(), main: true, frames: files.iter().map(frame).collect() }
    }

    #[test]
    fn frames_tell_what_a_rank_does() {
        let packages = "/v/lib/python3.11/site-packages";
        let standard = "/usr/lib/python3.11";
        let work = format!("{packages}/instep/backend/work.py");
        let torch = format!("{packages}/torch/distributed/distributed_c10d.py");
        let loader = format!("{packages}/torch/utils/data/dataloader.py");
        let (queue, save) =
            (format!("{standard}/multiprocessing/queues.py"), format!("{packages}/torch/serialization.py"));
        let backward = format!("{packages}/torch/autograd/graph.py");
        let at = Frame { file: "/w/train.py".to_owned(), line: 3, function: "f".to_owned() };
        let cases: [(&[&str], Activity<'_>); 9] = [
            (&["/w/train.py"], Activity::Own(&at)),
            (&[&work, &torch, "/w/train.py"], Activity::Communicates),
            (&["/home/u/instep/python/instep/backend/operations.py", &torch, "/w/train.py"], Activity::Communicates),
            (&[&backward, "/w/train.py"], Activity::Communicates),
            (&[&queue, &loader, "/w/train.py"], Activity::Data(&at)),
            (&["/w/train.py", &loader, "/w/main.py"], Activity::Data(&at)),
            (&[&queue, "/w/train.py"], Activity::Data(&at)),
            (&[&save, "/w/train.py"], Activity::Own(&at)),
            (&[], Activity::Nothing),
        ];
        for (files, expected) in cases {
            assert_eq!(activity(&thread(files)), expected, "{files:?}");
        }
    }

    #[test]
    fn both_forms_of_an_answer_are_read() {
        let json = r#"{"threads": [{"name": "pin", "main": false, "frames": []},
            {"name": "MainThread", "main": true, "frames": [["a\u001b.py", 7, "f"], ["b.py", 1, "<module>"]]}]}"#;
        let threads = from_json(json).unwrap();
        assert!(threads[0].main && threads[0].frames[0].to_string() == "a?.py:7 in f");
        assert_eq!(threads[0].frames[1].to_string(), "b.py:1");
        let spied =
            r#"[{"pid": 7, "thread_name": "MainThread", "frames": [{"name": "f", "filename": "a.py", "line": 2}]}]"#;
        assert_eq!(from_py_spy(spied).unwrap()[0].frames[0].to_string(), "a.py:2 in f");
        let dump = "Thread 0x00007f (most recent call first):\n  File \"t.py\", line 4 in loop\n\n\
                    Thread 0x00007e [python] (most recent call first):\n  File \"a \"b\".py\", line 12 in main\n  ...\n";
        let threads = from_dump(dump);
        assert_eq!((threads.len(), threads[0].main, threads[1].main), (2, true, false));
        assert_eq!(threads[0].frames, [Frame { file: "a \"b\".py".to_owned(), line: 12, function: "main".to_owned() }]);
    }

    proptest! {
        #[test]
        fn parsing_any_stack_answer_does_not_panic(text in any::<String>(), lines in proptest::collection::vec(".{0,60}", 0..40)) {
            let _ = (from_json(&text), from_py_spy(&text));
            let dump: String = lines.iter().map(|line| format!("Thread 0x1\n  File \"{line}\", line 1 in f\n")).collect();
            for thread in from_dump(&dump) {
                prop_assert!(thread.frames.iter().all(|frame| !frame.file.contains(char::is_control)));
                let _ = activity(&thread);
            }
        }
    }
}
