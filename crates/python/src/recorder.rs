//! The flight recorder for Python: the file of this process, and a thread that answers when somebody asks for its stacks.
//!
//! The thread waits on a named pipe beside the file and costs nothing until a request comes. Stacks need the interpreter,
//! which somebody may hold for ever: that is asked for on a second thread, with a deadline. When it passes, some thread
//! holds the interpreter in native code. Then no Python code is running, and Python's own tool for crashes, which needs no
//! interpreter, can read the frames where they are.
//!
//! Shutdown: [`FlightRecorder::end`], before the interpreter ends, as for [`crate::delivery`].
#![expect(unsafe_code, reason = "frames of an interpreter that somebody else holds")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use instep_recorder::{GroupRecorder, Identity, Recorder, folder, process, stack_request};
use nix::sys::stat::Mode;
use pyo3::prelude::{Py, PyAny, PyResult, Python};
use pyo3::{ffi, pyclass, pymethods};

use crate::ledger;

/// How long the interpreter is asked for.
const INTERPRETER_WITHIN: Duration = Duration::from_secs(1);
/// How long the end waits for a thread that is about to get the interpreter.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What this process did last, in a file.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct FlightRecorder {
    recorder: Arc<Recorder>,
    /// Without a launcher that made the folder, the last to leave removes it.
    own_folder: Option<PathBuf>,
    watcher: Mutex<Option<Watcher>>,
    process: u32,
}

impl FlightRecorder {
    /// A place for a group, see [`Recorder::group`].
    pub(crate) fn group(&self, name: &str, members: &[u32]) -> Arc<GroupRecorder> {
        Arc::new(self.recorder.group(name, members))
    }
}

#[pymethods]
impl FlightRecorder {
    /// Make the file, in the launcher's folder or in one for the children of our parent. `stacks` is called, on a thread
    /// of ours, for the stacks as JSON.
    #[new]
    #[pyo3(signature = (*, folder, rank, world_size, job, incarnation, host, stacks))]
    fn new(
        folder: Option<PathBuf>,
        rank: Option<u32>,
        world_size: u32,
        job: String,
        incarnation: u64,
        host: String,
        stacks: Py<PyAny>,
    ) -> PyResult<FlightRecorder> {
        let own = folder.is_none();
        let folder = folder.map_or_else(own_folder, Ok)?;
        let process = std::process::id();
        let process_started = process::stat(process).map_or(0, |stat| stat.started);
        let identity = Identity { rank, world_size, incarnation, host, job, process, process_started };
        let recorder = Recorder::create(&folder, &identity)?;
        let watcher = Watcher::start(recorder.path(), stacks)?;
        ledger::begin(&recorder);
        let own_folder = own.then_some(folder);
        Ok(FlightRecorder { recorder, own_folder, watcher: Mutex::new(Some(watcher)), process })
    }

    /// Where the file lies.
    fn path(&self) -> PathBuf {
        self.recorder.path().to_owned()
    }

    /// The interpreter is about to end.
    fn end(&self, py: Python<'_>) {
        if self.process != std::process::id() {
            return;
        }
        self.recorder.end();
        ledger::end();
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            if let Some(watcher) = watcher {
                watcher.stop();
            }
            if let Some(folder) = &self.own_folder {
                folder::leave(folder);
            }
        });
    }
}

fn own_folder() -> io::Result<PathBuf> {
    let base = folder::base();
    let parent = process::stat(std::process::id()).map_or(0, |stat| stat.parent);
    let made = folder::create(&base, "process", parent)?;
    folder::prune(&made);
    folder::tidy(&base, SystemTime::now());
    Ok(made)
}

/// The thread that waits for requests.
struct Watcher {
    thread: JoinHandle<()>,
    shared: Arc<Shared>,
    pipe: File,
}

struct Shared {
    path: PathBuf,
    stacks: Py<PyAny>,
    interpreter: Interpreter,
    stopped: AtomicBool,
    /// A thread asks for the interpreter.
    asking: AtomicBool,
}

/// The interpreter's address, which stays the same while it runs.
struct Interpreter(*mut ffi::PyInterpreterState);
// SAFETY: it is only handed to a function of Python that takes it from any thread.
unsafe impl Send for Interpreter {}
// SAFETY: as above.
unsafe impl Sync for Interpreter {}

impl Watcher {
    fn start(records: &Path, stacks: Py<PyAny>) -> io::Result<Watcher> {
        let path = stack_request::pipe_path(records);
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600))?;
        // For both directions: with a writer of its own a pipe never ends.
        let pipe = File::options().read(true).write(true).open(&path)?;
        // SAFETY: the caller is a Python function.
        let interpreter = Interpreter(unsafe { ffi::PyInterpreterState_Get() });
        let (stopped, asking) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { path: records.to_owned(), stacks, interpreter, stopped, asking });
        let (reader, watched) = (pipe.try_clone()?, Arc::clone(&shared));
        let thread =
            std::thread::Builder::new().name("instep-recorder".to_owned()).spawn(move || watch(reader, &watched))?;
        Ok(Watcher { thread, shared, pipe })
    }

    /// With the interpreter released: the thread may be about to get it.
    fn stop(mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        if self.pipe.write_all(&0u64.to_le_bytes()).is_ok() {
            let _ = self.thread.join();
        }
        let deadline = Instant::now() + TIMEOUT;
        while self.shared.asking.load(Ordering::Acquire) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = fs::remove_file(stack_request::pipe_path(&self.shared.path));
    }
}

fn watch(mut requests: File, shared: &Arc<Shared>) {
    let mut request = [0; 8];
    while requests.read_exact(&mut request).is_ok() {
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
        let number = u64::from_le_bytes(request);
        // Nobody hears of a failure: who asks gets no answer, and says so.
        let _ = shared.answer(number);
    }
}

impl Shared {
    fn answer(self: &Arc<Shared>, number: u64) -> io::Result<()> {
        let answer = stack_request::answer_path(&self.path, number);
        let unfinished = answer.with_extension("new");
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        match self.ask_interpreter().map(|asked| asked.recv_timeout(INTERPRETER_WITHIN)) {
            Some(Ok(text)) => file.write_all(text.as_bytes())?,
            _ => {
                file.write_all(stack_request::HELD.as_bytes())?;
                dump_without_interpreter(&file, &self.interpreter);
            }
        }
        fs::rename(unfinished, answer)
    }

    /// The stacks, as soon as the interpreter can be had; nothing while somebody waits for it already.
    fn ask_interpreter(self: &Arc<Shared>) -> Option<Receiver<String>> {
        if self.asking.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (sender, receiver) = sync_channel(1);
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("instep-stacks".to_owned()).spawn(move || {
            let text = Python::try_attach(|py| {
                shared
                    .stacks
                    .call0(py)
                    .and_then(|text| text.extract::<String>(py))
                    .unwrap_or_else(|error| error.to_string())
            });
            if let Some(text) = text {
                let _ = sender.send(text);
            }
            shared.asking.store(false, Ordering::Release);
        });
        if spawned.is_err() {
            self.asking.store(false, Ordering::Release);
        }
        Some(receiver)
    }
}

/// Python's dump of all threads, where this Python has it.
fn dump_without_interpreter(file: &File, interpreter: &Interpreter) {
    type Dump = unsafe extern "C" fn(i32, *mut ffi::PyInterpreterState, *mut ffi::PyThreadState) -> *const i8;
    // SAFETY: looks up a name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_Py_DumpTracebackThreads".as_ptr()) };
    if found.is_null() {
        return;
    }
    // SAFETY: from 3.10 on the function has this form. It needs no interpreter, allocates nothing and reads frames, which
    // stand still: code in Python gives the interpreter up within milliseconds when it is asked for, so whoever kept it for
    // so long is in native code.
    unsafe {
        let dump: Dump = std::mem::transmute(found);
        dump(file.as_raw_fd(), interpreter.0, std::ptr::null_mut());
    }
}
