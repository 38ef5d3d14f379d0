//! What this machine lends to workers, and how many workers `--nproc-per-node` therefore means.
//!
//! [`WorkersPerNode`] is the option as typed, [`count_workers`] turns it into a number, [`allowed_cpus`] is the scheduling
//! affinity mask.
//!
//! torch is never loaded into this process. NVIDIA GPUs are counted by [`crate::machine::nvidia`]. Where that cannot answer (ROCm,
//! XPU, plug-in devices) the workers' own Python is asked, in a child process with a deadline.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::machine::interpreter::{self, Interpreter};
use crate::machine::numa::parse_cpu_list;
use crate::machine::nvidia;

/// Longest wait for the interpreter to import torch and count devices.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);

/// Device files of GPUs that torch's CUDA interface may drive: NVIDIA, Tegra, WSL, ROCm.
const GPU_DEVICE_FILES: [&str; 4] = ["/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg", "/dev/kfd"];

/// Folders or files that exist where some other accelerator may be present.
const ACCELERATOR_DEVICE_FILES: [&str; 4] = ["/dev/dri/renderD128", "/dev/accel", "/dev/davinci_manager", "/dev/hl0"];

/// The value of `--nproc-per-node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkersPerNode {
    /// As many as the user says.
    Count(usize),
    /// One per CPU in the scheduling affinity mask.
    Cpu,
    /// One per visible CUDA (or ROCm) device.
    Gpu,
    /// One per Intel XPU.
    Xpu,
    /// One per accelerator where there is one, else one per CPU.
    Auto,
    /// One per device of a torch plug-in with this name.
    Device(String),
}

/// Why the number of workers or the CPUs of this machine could not be told.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Not a number and not a device.
    #[error(
        "unsupported --nproc-per-node value {0:?}\nhint: use a number, cpu, gpu, xpu, auto, or the name of a device that torch knows through a plug-in"
    )]
    Unsupported(String),
    /// Zero or less.
    #[error(
        "--nproc-per-node must be at least 1, but is {0}\nhint: use a number, or cpu, gpu, xpu or auto to count what this machine has"
    )]
    NoWorkers(String),
    /// `gpu` on a machine where CUDA sees none. The first sentence is torchrun's.
    #[error(
        "CUDA is not available: {0}\nhint: use --nproc-per-node=cpu or a number to train without GPUs; `instep doctor` shows what was found"
    )]
    CudaNotAvailable(String),
    /// torch knows the device, but none is there.
    #[error("{device} is not available: torch in {} finds no such device\nhint: use --nproc-per-node=cpu or a number to train without it", .python.display())]
    NotAvailable {
        /// The device as the user would name it.
        device: String,
        /// The interpreter that was asked.
        python: PathBuf,
    },
    /// The interpreter gave no number.
    #[error("cannot count {device} devices: asked torch in {}, {cause}\nhint: give the number: --nproc-per-node=N", .python.display())]
    AskFailed {
        /// The device as torch names it.
        device: String,
        /// The interpreter that was asked.
        python: PathBuf,
        /// What came back instead of a number.
        cause: String,
    },
    /// The kernel does not say which CPUs may be used.
    #[error("cannot read the CPU affinity of this process")]
    Affinity(#[source] io::Error),
}

impl FromStr for WorkersPerNode {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let text = text.trim();
        if let Ok(count) = text.parse::<i64>() {
            return match usize::try_from(count) {
                Ok(count) if count > 0 => Ok(Self::Count(count)),
                _ => Err(DeviceError::NoWorkers(text.to_owned())),
            };
        }
        match text {
            "cpu" => Ok(Self::Cpu),
            "gpu" => Ok(Self::Gpu),
            "xpu" => Ok(Self::Xpu),
            "auto" => Ok(Self::Auto),
            name if is_identifier(name) => Ok(Self::Device(name.to_owned())),
            other => Err(DeviceError::Unsupported(other.to_owned())),
        }
    }
}

impl fmt::Display for WorkersPerNode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(formatter, "{count}"),
            Self::Cpu => formatter.write_str("cpu"),
            Self::Gpu => formatter.write_str("gpu"),
            Self::Xpu => formatter.write_str("xpu"),
            Self::Auto => formatter.write_str("auto"),
            Self::Device(name) => formatter.write_str(name),
        }
    }
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// How many workers `wanted` means on this machine. `python` is the interpreter that will run the workers; it is started
/// only for devices that cannot be counted without torch.
pub fn count_workers(wanted: &WorkersPerNode, python: &Path) -> Result<usize, DeviceError> {
    decide(wanted, &ThisMachine { python })
}

/// What the decision needs to know, each asked for only when it matters.
trait Machine {
    fn cpus(&self) -> Result<usize, DeviceError>;
    /// GPUs that CUDA would show, or why NVML cannot say.
    fn cuda_devices(&self) -> Result<usize, String>;
    fn has_gpu_device_file(&self) -> bool;
    fn has_accelerator_device_file(&self) -> bool;
    /// Whether a plug-in could have given torch a device with a name of its own.
    fn has_device_plugin(&self) -> bool;
    /// `None`: torch does not know a device of this name.
    fn ask(&self, device: &str) -> Result<Option<usize>, DeviceError>;
    fn python(&self) -> &Path;
}

fn decide(wanted: &WorkersPerNode, machine: &impl Machine) -> Result<usize, DeviceError> {
    let at_least_one = |device: &str, count: Option<usize>| match count {
        None => Err(DeviceError::Unsupported(device.to_owned())),
        Some(0) => Err(DeviceError::NotAvailable { device: device.to_owned(), python: machine.python().to_owned() }),
        Some(count) => Ok(count),
    };
    match wanted {
        WorkersPerNode::Count(0) => Err(DeviceError::NoWorkers("0".to_owned())),
        WorkersPerNode::Count(count) => Ok(*count),
        WorkersPerNode::Cpu => machine.cpus(),
        WorkersPerNode::Gpu => match machine.cuda_devices() {
            Ok(0) => Err(DeviceError::CudaNotAvailable(
                "the NVIDIA driver shows no GPU to this process; CUDA_VISIBLE_DEVICES may hide them".to_owned(),
            )),
            Ok(count) => Ok(count),
            Err(_) if machine.has_gpu_device_file() => match machine.ask("cuda")? {
                Some(count) if count > 0 => Ok(count),
                _ => {
                    Err(DeviceError::CudaNotAvailable(format!("torch in {} finds no GPU", machine.python().display())))
                }
            },
            Err(cause) => Err(DeviceError::CudaNotAvailable(cause)),
        },
        WorkersPerNode::Xpu => at_least_one("xpu", machine.ask("xpu")?),
        // Torch takes seconds to import, and without a plug-in it cannot know the name.
        WorkersPerNode::Device(name) if !machine.has_device_plugin() => Err(DeviceError::Unsupported(name.clone())),
        WorkersPerNode::Device(name) => at_least_one(name, machine.ask(name)?),
        WorkersPerNode::Auto => {
            let cuda = machine.cuda_devices();
            let torch_may_know =
                cuda.is_err() && machine.has_gpu_device_file() || machine.has_accelerator_device_file();
            let accelerators = match cuda {
                Ok(count) if count > 0 => count,
                // A Python without torch cannot use an accelerator, so that a failed question means none.
                _ if torch_may_know => machine.ask("accelerator").ok().flatten().unwrap_or(0),
                _ => 0,
            };
            if accelerators > 0 { Ok(accelerators) } else { machine.cpus() }
        }
    }
}

struct ThisMachine<'a> {
    python: &'a Path,
}

impl Machine for ThisMachine<'_> {
    fn cpus(&self) -> Result<usize, DeviceError> {
        Ok(allowed_cpus()?.len())
    }

    fn cuda_devices(&self) -> Result<usize, String> {
        nvidia::find_visible_gpus().map(|gpus| gpus.len()).map_err(|error| error.to_string())
    }

    fn has_gpu_device_file(&self) -> bool {
        GPU_DEVICE_FILES.iter().any(|file| Path::new(file).exists())
    }

    fn has_accelerator_device_file(&self) -> bool {
        ACCELERATOR_DEVICE_FILES.iter().any(|file| Path::new(file).exists())
    }

    fn has_device_plugin(&self) -> bool {
        let python = Interpreter { path: self.python.to_owned(), chosen_because: "" };
        // A Python that cannot describe itself may still answer the question.
        python.inspect().map_or(true, |found| found.has_entry_points("torch.backends"))
    }

    fn ask(&self, device: &str) -> Result<Option<usize>, DeviceError> {
        ask_torch(self.python, device, ASK_TIMEOUT)
    }

    fn python(&self) -> &Path {
        self.python
    }
}

/// The CPUs that this thread, and so every worker it starts, may run on.
pub fn allowed_cpus() -> Result<BTreeSet<usize>, DeviceError> {
    match sched_getaffinity(Pid::from_raw(0)) {
        Ok(mask) => Ok((0..CpuSet::count()).filter(|&cpu| mask.is_set(cpu).unwrap_or(false)).collect()),
        // The kernel's mask is longer than nix's 1024 bits; the same mask in text has no limit.
        Err(Errno::EINVAL) => {
            let status = fs::read_to_string("/proc/thread-self/status").map_err(DeviceError::Affinity)?;
            status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
                .and_then(parse_cpu_list)
                .ok_or_else(|| DeviceError::Affinity(io::ErrorKind::InvalidData.into()))
        }
        Err(errno) => Err(DeviceError::Affinity(errno.into())),
    }
}

/// Total and free bytes of a file system, the latter as an ordinary user may use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Size of the file system.
    pub total: u64,
    /// What can still be written.
    pub free: u64,
}

/// How large the file system that holds `path` is.
pub fn disk_space(path: &Path) -> io::Result<DiskSpace> {
    let statistics = nix::sys::statvfs::statvfs(path)?;
    let block = statistics.fragment_size();
    Ok(DiskSpace {
        total: statistics.blocks().saturating_mul(block),
        free: statistics.blocks_available().saturating_mul(block),
    })
}

/// Marks the answer among whatever else the interpreter prints.
const ANSWER: &str = "instep-device-count ";

const QUESTION: &str = r#"
import sys
import torch
wanted = sys.argv[1]
if wanted == "accelerator":
    module = getattr(torch, "accelerator", None)
    if module is None:
        module = torch.cuda if torch.cuda.is_available() else getattr(torch, "xpu", torch.cuda)
elif wanted in ("cuda", "xpu") or wanted == torch._C._get_privateuse1_backend_name():
    module = getattr(torch, wanted, None)
else:
    module = "unknown"
if module != "unknown":
    module = module.device_count() if module is not None and module.is_available() else 0
print("\ninstep-device-count", module, flush=True)
"#;

/// Lets `python` import torch and count. `None`: torch does not know the device.
fn ask_torch(python: &Path, device: &str, timeout: Duration) -> Result<Option<usize>, DeviceError> {
    let failed = |cause: String| DeviceError::AskFailed { device: device.to_owned(), python: python.to_owned(), cause };
    let (status, output) =
        interpreter::ask(python, &[QUESTION, device], timeout).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => failed(format!("no answer within {} s", timeout.as_secs())),
            _ => failed(format!("which could not be started: {error}")),
        })?;
    match output.lines().rev().find_map(|line| line.strip_prefix(ANSWER)) {
        Some("unknown") => Ok(None),
        Some(count) => count.trim().parse().map(Some).map_err(|_| failed(format!("which answered {count:?}"))),
        None => {
            let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
            Err(failed(format!("which exited with {status}: {}", last.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn values_of_nproc_per_node() {
        for (text, wanted) in [
            ("4", WorkersPerNode::Count(4)),
            (" 4 ", WorkersPerNode::Count(4)),
            ("+2", WorkersPerNode::Count(2)),
            ("cpu", WorkersPerNode::Cpu),
            ("gpu", WorkersPerNode::Gpu),
            ("xpu", WorkersPerNode::Xpu),
            ("auto", WorkersPerNode::Auto),
            ("npu", WorkersPerNode::Device("npu".to_owned())),
        ] {
            assert_eq!(text.parse::<WorkersPerNode>().unwrap(), wanted, "{text:?}");
            assert_eq!(wanted.to_string().parse::<WorkersPerNode>().unwrap(), wanted);
        }
        for text in ["0", "-1", "-0"] {
            assert!(matches!(text.parse::<WorkersPerNode>(), Err(DeviceError::NoWorkers(_))), "{text:?}");
        }
        for text in ["", "1.5", "2x", "a b", "99999999999999999999"] {
            assert!(matches!(text.parse::<WorkersPerNode>(), Err(DeviceError::Unsupported(_))), "{text:?}");
        }
    }

    struct Pretend {
        cuda: Result<usize, String>,
        device_files: (bool, bool),
        torch: Option<usize>,
    }

    impl Machine for Pretend {
        fn cpus(&self) -> Result<usize, DeviceError> {
            Ok(16)
        }
        fn cuda_devices(&self) -> Result<usize, String> {
            self.cuda.clone()
        }
        fn has_gpu_device_file(&self) -> bool {
            self.device_files.0
        }
        fn has_accelerator_device_file(&self) -> bool {
            self.device_files.1
        }
        fn has_device_plugin(&self) -> bool {
            true
        }
        fn ask(&self, _: &str) -> Result<Option<usize>, DeviceError> {
            Ok(self.torch)
        }
        fn python(&self) -> &Path {
            Path::new("/usr/bin/python3")
        }
    }

    #[test]
    fn each_value_of_nproc_per_node_counts_its_own_devices() {
        use WorkersPerNode::{Auto, Count, Cpu, Device, Gpu, Xpu};
        let none = || Err("no library".to_owned());
        let cases = [
            (Count(3), Ok(0), (false, false), None, "3"),
            (Count(0), Ok(0), (false, false), None, "--nproc-per-node must be at least 1, but is 0"),
            (Cpu, Ok(8), (true, true), Some(8), "16"),
            (Gpu, Ok(8), (true, true), Some(2), "8"),
            (Gpu, Ok(0), (true, true), Some(2), "CUDA is not available: the NVIDIA driver shows no GPU"),
            (Gpu, none(), (false, false), None, "CUDA is not available: no library"),
            (Gpu, none(), (true, false), Some(2), "2"),
            (Gpu, none(), (true, false), Some(0), "CUDA is not available: torch in /usr/bin/python3"),
            (Auto, Ok(8), (true, true), Some(2), "8"),
            (Auto, Ok(0), (true, false), Some(2), "16"),
            (Auto, Ok(0), (true, true), Some(2), "2"),
            (Auto, none(), (false, true), Some(2), "2"),
            (Auto, none(), (false, true), Some(0), "16"),
            (Auto, none(), (true, false), None, "16"),
            (Xpu, none(), (false, false), Some(4), "4"),
            (Xpu, none(), (false, false), Some(0), "xpu is not available: torch in /usr/bin/python3"),
            (Device("npu".to_owned()), none(), (false, false), Some(4), "4"),
            (
                Device("foo".to_owned()),
                none(),
                (false, false),
                None,
                "unsupported --nproc-per-node value \"foo\"\nhint: ",
            ),
        ];
        for (wanted, cuda, device_files, torch, answer) in cases {
            let said = match decide(&wanted, &Pretend { cuda: cuda.clone(), device_files, torch }) {
                Ok(count) => count.to_string(),
                Err(error) => error.to_string(),
            };
            assert!(said.starts_with(answer), "{wanted:?} with {cuda:?} {device_files:?} {torch:?}: {said}");
        }
    }

    #[test]
    fn this_machine_has_a_cpu() {
        assert!(!allowed_cpus().unwrap().is_empty());
        let disk_space = disk_space(Path::new("/")).unwrap();
        assert!(disk_space.total >= disk_space.free);
    }

    /// A stand-in for Python: ignores the question and runs the given shell lines. Another process writes the file: one
    /// that this process has open for writing could not be run while a test beside this one forks.
    fn stand_in(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("python");
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod +x "$0""#;
        assert!(Command::new("sh").arg("-c").arg(write).arg(&path).arg(script).status().unwrap().success());
        path
    }

    #[test]
    fn an_interpreter_that_does_not_answer_is_explained() {
        for (script, wanted) in [
            ("echo noise; echo instep-device-count 3; echo more", "Ok(Some(3))"),
            ("echo instep-device-count unknown", "Ok(None)"),
            ("echo instep-device-count many", "which answered \"many\""),
            ("echo 'ModuleNotFoundError: No module named torch' >&2; exit 1", "exit status: 1: ModuleNotFoundError"),
            ("exit 3", "exit status: 3: it printed nothing"),
            // A grandchild that keeps the pipe open does not hold the answer back.
            ("sleep 60 & echo instep-device-count 2; kill $! ", "Ok(Some(2))"),
            ("exec sleep 60", "no answer within 0 s"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let python = stand_in(folder.path(), script);
            let timeout = Duration::from_millis(if script.starts_with("exec") { 100 } else { 20_000 });
            let answer = ask_torch(&python, "npu", timeout);
            let said = answer.as_ref().map_or_else(ToString::to_string, |count| format!("Ok({count:?})"));
            assert!(said.contains(wanted), "{script}: {said}");
        }
        let missing = ask_torch(Path::new("/nonexistent/python"), "xpu", Duration::from_secs(1)).unwrap_err();
        assert!(missing.to_string().contains("could not be started"), "{missing}");
    }
}
