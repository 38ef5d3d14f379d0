//! What this machine lends to workers, and how many workers `--nproc-per-node` therefore means.
//!
//! [`WorkersPerNode`] is the option as typed, [`count_workers`] turns it into a number, [`visible_gpus`] lists the GPUs
//! in the order CUDA numbers them, [`allowed_cpus`] is the scheduling affinity mask.
//!
//! torch is never loaded into this process. NVIDIA GPUs are counted through NVML, with the rules by which torch 2.15
//! (`torch/cuda/__init__.py`) reads `CUDA_VISIBLE_DEVICES`. Where NVML cannot answer (ROCm, XPU, plug-in devices) the
//! workers' own Python is asked, in a child process with a deadline.
//!
//! Two things NVML does not know, here as in torch: a torch built without CUDA still sees the GPUs counted, and the order
//! is that of the PCI bus, which differs from CUDA's only where a machine mixes GPU models and `CUDA_DEVICE_ORDER` is not
//! `PCI_BUS_ID`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::interpreter::{self, Interpreter};
use crate::numa::parse_cpu_list;

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
        "Cuda is not available. ({0})\nhint: use --nproc-per-node=cpu or a number to train without GPUs; `instep doctor` shows what was found"
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
    #[error("cannot count {device} devices: asked torch in {}, {cause}\nhint: say the number: --nproc-per-node=N", .python.display())]
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
        match nvidia() {
            Ok(driver) => Ok(filter_visible(&driver.gpus, cuda_visible_devices().as_deref()).len()),
            Err(error) => Err(error.to_string()),
        }
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
pub struct Space {
    /// Size of the file system.
    pub total: u64,
    /// What can still be written.
    pub free: u64,
}

/// How large the file system that holds `path` is.
pub fn space(path: &Path) -> io::Result<Space> {
    let statistics = nix::sys::statvfs::statvfs(path)?;
    let block = statistics.fragment_size();
    Ok(Space {
        total: statistics.blocks().saturating_mul(block),
        free: statistics.blocks_available().saturating_mul(block),
    })
}

/// One NVIDIA GPU. Its CUDA index is its position in [`visible_gpus`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Index as `nvidia-smi` shows it, whatever `CUDA_VISIBLE_DEVICES` says.
    pub index: usize,
    /// As sysfs writes it: `0000:dc:00.0`.
    pub pci_address: String,
    /// `GPU-…`, or `MIG-…` where a MIG instance was selected.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Names of the GPU's MIG instances.
    pub mig_uuids: Vec<String>,
}

/// The NVIDIA driver of this machine and all its GPUs, in PCI order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvidia {
    /// Driver version, as in `580.65.06`.
    pub driver: String,
    /// Newest CUDA version the driver runs, as in `13.0`.
    pub cuda: String,
    /// Every GPU that the driver shows to this process.
    pub gpus: Vec<Gpu>,
}

/// Why NVML does not answer.
#[derive(Debug, thiserror::Error)]
pub enum NvidiaError {
    /// There is no NVIDIA driver on this machine or in this container.
    #[error("the NVIDIA driver's library libnvidia-ml.so.1 is not installed")]
    NoLibrary,
    /// The library is there but the driver does not work.
    #[error("the NVIDIA driver does not answer: {0}")]
    Failed(NvmlError),
}

/// Asks NVML for the driver and its GPUs.
pub fn nvidia() -> Result<Nvidia, NvidiaError> {
    let nvml = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init().map_err(|error| match error {
        NvmlError::LibloadingError(_) => NvidiaError::NoLibrary,
        error => NvidiaError::Failed(error),
    })?;
    survey(&nvml).map_err(NvidiaError::Failed)
}

fn survey(nvml: &Nvml) -> Result<Nvidia, NvmlError> {
    let cuda = nvml.sys_cuda_driver_version()?;
    let mut gpus = Vec::new();
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        let address = device.pci_info()?;
        let mut mig_uuids = Vec::new();
        if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
            // Slots without an instance answer "not found".
            for slot in 0..device.mig_device_count().unwrap_or(0) {
                mig_uuids.extend(device.mig_device_by_index(slot).and_then(|instance| instance.uuid()));
            }
        }
        gpus.push(Gpu {
            index: index as usize,
            pci_address: format!("{:04x}:{:02x}:{:02x}.0", address.domain, address.bus, address.device),
            uuid: device.uuid()?,
            name: device.name()?,
            mig_uuids,
        });
    }
    Ok(Nvidia { driver: nvml.sys_driver_version()?, cuda: format!("{}.{}", cuda / 1000, cuda % 1000 / 10), gpus })
}

/// The NVIDIA GPUs that CUDA shows to a process started now, in CUDA's order. Empty where NVML does not answer.
pub fn visible_gpus() -> Vec<Gpu> {
    let all = nvidia().map(|driver| driver.gpus).unwrap_or_default();
    filter_visible(&all, cuda_visible_devices().as_deref())
}

fn cuda_visible_devices() -> Option<String> {
    std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned())
}

/// Applies `CUDA_VISIBLE_DEVICES` as torch 2.15 reads it.
///
/// The first entry decides whether the list holds indices, GPU UUIDs or MIG names. The list ends before the first entry
/// that is invalid or of another kind; a duplicate makes it empty. UUIDs may be cut short as long as they are unambiguous.
/// Of several MIG instances CUDA shows a process only the first.
pub fn filter_visible(all: &[Gpu], variable: Option<&str>) -> Vec<Gpu> {
    let Some(variable) = variable else {
        return all.to_vec();
    };
    if variable.starts_with("MIG-") {
        let entries = entries_with_prefix(variable, "MIG-").unwrap_or_default();
        return entries.first().and_then(|entry| mig_instance(all, entry)).into_iter().collect();
    }
    let wanted = if variable.starts_with("GPU-") {
        entries_with_prefix(variable, "GPU-").and_then(|entries| positions_of_uuids(all, &entries))
    } else {
        indices(variable)
    };
    wanted.unwrap_or_default().into_iter().map_while(|position| all.get(position).cloned()).collect()
}

/// Leading entries with the prefix; `None` for a duplicate.
fn entries_with_prefix<'a>(variable: &'a str, prefix: &str) -> Option<Vec<&'a str>> {
    let mut entries = Vec::new();
    for entry in variable.split(',') {
        if entries.contains(&entry) {
            return None;
        }
        if !entry.starts_with(prefix) {
            break;
        }
        entries.push(entry);
    }
    Some(entries)
}

/// Positions of the GPUs that the (possibly shortened) UUIDs name; `None` for a duplicate.
fn positions_of_uuids(all: &[Gpu], entries: &[&str]) -> Option<Vec<usize>> {
    let mut positions = Vec::new();
    for entry in entries {
        let mut matches = all.iter().enumerate().filter(|(_, gpu)| gpu.uuid.starts_with(entry));
        let (Some((position, _)), None) = (matches.next(), matches.next()) else {
            break;
        };
        if positions.contains(&position) {
            return None;
        }
        positions.push(position);
    }
    Some(positions)
}

/// Leading entries that are indices; `None` for a duplicate. Text behind the digits is ignored: `1gpu2` is 1.
fn indices(variable: &str) -> Option<Vec<usize>> {
    let mut indices = Vec::new();
    for entry in variable.split(',') {
        let entry = entry.trim();
        let entry = entry.strip_prefix('+').unwrap_or(entry);
        let digits = entry.len() - entry.trim_start_matches(|character: char| character.is_ascii_digit()).len();
        let Ok(index) = entry[..digits].parse::<usize>() else {
            break;
        };
        if indices.contains(&index) {
            return None;
        }
        indices.push(index);
    }
    Some(indices)
}

/// The GPU that holds the instance, named by the instance. Both spellings are known: `MIG-<uuid>` and, from drivers before
/// 470, `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
fn mig_instance(all: &[Gpu], entry: &str) -> Option<Gpu> {
    let parent = entry.strip_prefix("MIG-").filter(|rest| rest.starts_with("GPU-"));
    let parent = parent.map(|rest| rest.split('/').next().unwrap_or(rest));
    all.iter()
        .find(|gpu| match parent {
            Some(parent) => gpu.uuid == parent && !gpu.mig_uuids.is_empty(),
            None => gpu.mig_uuids.iter().any(|uuid| uuid == entry),
        })
        .map(|gpu| Gpu { uuid: entry.to_owned(), ..gpu.clone() })
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
            let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
            Err(failed(format!("which ended with {status}: {}", last.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn gpu(index: usize, uuid: &str) -> Gpu {
        Gpu {
            index,
            pci_address: format!("0000:{index:02x}:00.0"),
            uuid: uuid.to_owned(),
            name: "Test GPU".to_owned(),
            mig_uuids: Vec::new(),
        }
    }

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

    #[test]
    fn cuda_visible_devices_as_torch_reads_it() {
        let all = [gpu(0, "GPU-aa11"), gpu(1, "GPU-ab22"), gpu(2, "GPU-b333"), gpu(3, "GPU-c444")];
        let cases: [(Option<&str>, &[usize]); 30] = [
            (None, &[0, 1, 2, 3]),
            (Some(""), &[]),
            (Some("-1"), &[]),
            (Some("0"), &[0]),
            (Some("+1"), &[1]),
            (Some("+"), &[]),
            (Some("3,1"), &[3, 1]),
            (Some(" 2 , 0 "), &[2, 0]),
            (Some("0,-1,1"), &[0]),
            (Some("0,,1"), &[0]),
            (Some("0,x,1"), &[0]),
            (Some("0,9,1"), &[0]),
            (Some("9"), &[]),
            (Some("1gpu2,2ampere"), &[1, 2]),
            (Some("0x1"), &[0]),
            (Some("1,1"), &[]),
            (Some("0,9,0"), &[]),
            (Some("0,-1,0"), &[0]),
            (Some("99999999999999999999"), &[]),
            (Some("GPU-b333,GPU-aa11"), &[2, 0]),
            (Some("GPU-b,GPU-aa"), &[2, 0]),
            (Some("GPU-a"), &[]),
            (Some("GPU-c,GPU-a,GPU-b"), &[3]),
            (Some("GPU-c,GPU-c"), &[]),
            (Some("GPU-c,GPU-c4"), &[]),
            (Some("GPU-zz"), &[]),
            (Some("GPU-c,0"), &[3]),
            (Some("GPU-c, GPU-b"), &[3]),
            (Some("0,GPU-c"), &[0]),
            (Some("NoDevFiles"), &[]),
        ];
        for (variable, wanted) in cases {
            let visible: Vec<usize> = filter_visible(&all, variable).iter().map(|gpu| gpu.index).collect();
            assert_eq!(visible, wanted, "CUDA_VISIBLE_DEVICES={variable:?}");
        }
    }

    #[test]
    fn one_mig_instance_is_visible() {
        let mut split = gpu(1, "GPU-bb");
        split.mig_uuids = vec!["MIG-1111".to_owned(), "MIG-2222".to_owned()];
        let all = [gpu(0, "GPU-aa"), split];
        for (variable, wanted) in [
            ("MIG-2222", Some("MIG-2222")),
            ("MIG-2222,MIG-1111", Some("MIG-2222")),
            ("MIG-1111,0", Some("MIG-1111")),
            ("MIG-GPU-bb/1/0", Some("MIG-GPU-bb/1/0")),
            ("MIG-GPU-aa/1/0", None),
            ("MIG-3333,MIG-1111", None),
            ("MIG-1111,MIG-1111", None),
        ] {
            let visible = filter_visible(&all, Some(variable));
            assert_eq!(visible.first().map(|gpu| gpu.uuid.as_str()), wanted, "{variable}");
            assert!(visible.len() <= 1);
            assert!(visible.iter().all(|gpu| gpu.index == 1));
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
    fn what_is_counted_where() {
        use WorkersPerNode::{Auto, Count, Cpu, Device, Gpu, Xpu};
        let none = || Err("no library".to_owned());
        let cases = [
            (Count(3), Ok(0), (false, false), None, "3"),
            (Count(0), Ok(0), (false, false), None, "--nproc-per-node must be at least 1, but is 0"),
            (Cpu, Ok(8), (true, true), Some(8), "16"),
            (Gpu, Ok(8), (true, true), Some(2), "8"),
            (Gpu, Ok(0), (true, true), Some(2), "Cuda is not available. (the NVIDIA driver shows no GPU"),
            (Gpu, none(), (false, false), None, "Cuda is not available. (no library)"),
            (Gpu, none(), (true, false), Some(2), "2"),
            (Gpu, none(), (true, false), Some(0), "Cuda is not available. (torch in /usr/bin/python3"),
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
        let space = space(Path::new("/")).unwrap();
        assert!(space.total >= space.free);
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
    fn the_interpreter_is_asked_and_its_silence_explained() {
        for (script, wanted) in [
            ("echo noise; echo instep-device-count 3; echo more", "Ok(Some(3))"),
            ("echo instep-device-count unknown", "Ok(None)"),
            ("echo instep-device-count many", "which answered \"many\""),
            ("echo 'ModuleNotFoundError: No module named torch' >&2; exit 1", "exit status: 1: ModuleNotFoundError"),
            ("exit 3", "exit status: 3: it said nothing"),
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
