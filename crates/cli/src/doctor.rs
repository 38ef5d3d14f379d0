//! `instep doctor`: says what is there and what is missing.
//!
//! Each check is a fact that was looked up and a judgement of it: the functions that read the machine are named after
//! what they read, those called `judge_…` only decide and are tested as plain data. A problem is what keeps `instep run`
//! from working at all; everything else that may hurt is a warning. Nothing imports torch.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use instep_launch::devices::{self, Nvidia, NvidiaError, Space};
use instep_launch::interpreter;
use serde::Serialize;

use crate::console;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Oldest Python that the wheel installs on.
const OLDEST_PYTHON: (u32, u32) = (3, 10);
/// Oldest torch whose store protocol and launcher environment are ours.
const OLDEST_TORCH: (u32, u32) = (2, 2);
/// The torch that the tests run with.
const TESTED_TORCH: (u32, u32) = (2, 15);
/// Kernel of the oldest distribution that the wheel supports.
const OLDEST_KERNEL: (u32, u32) = (4, 18);
/// Data loaders pass file descriptors between processes; the usual limit of 1024 is quickly used up.
const FEW_OPEN_FILES: u64 = 4096;
/// Data loaders pass batches through shared memory; containers often get 64 MiB.
const SMALL_SHARED_MEMORY: u64 = 1 << 30;
const SMALL_TEMPORARY_SPACE: u64 = 1 << 30;
/// Ports that c10d and static rendezvous use where the user names none.
const DEFAULT_PORTS: [u16; 2] = [29400, 29500];
/// Longest waits: a name server that does not answer, a GPU driver that first has to wake its GPUs.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    check: &'static str,
    verdict: Verdict,
    finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

fn ok(check: &'static str, finding: impl Into<String>) -> Check {
    Check { check, verdict: Verdict::Ok, finding: finding.into(), hint: None }
}

fn warning(check: &'static str, finding: impl Into<String>, hint: impl Into<String>) -> Check {
    Check { check, verdict: Verdict::Warning, finding: finding.into(), hint: Some(hint.into()) }
}

fn problem(check: &'static str, finding: impl Into<String>, hint: impl Into<String>) -> Check {
    Check { check, verdict: Verdict::Problem, finding: finding.into(), hint: Some(hint.into()) }
}

#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    ready: bool,
    warnings: usize,
    problems: usize,
    checks: &'a [Check],
}

impl<'a> Report<'a> {
    fn new(checks: &'a [Check]) -> Self {
        let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        let (warnings, problems) = (count(Verdict::Warning), count(Verdict::Problem));
        Self { version: VERSION, ready: problems == 0, warnings, problems, checks }
    }
}

/// Runs every check and prints what was found; the exit code is 1 if `instep run` cannot work here.
pub(crate) fn run(json: bool) -> anyhow::Result<ExitCode> {
    let checks = examine();
    let report = Report::new(&checks);
    let text = if json { serde_json::to_string_pretty(&report)? + "\n" } else { render(&report, colours()) };
    console::print(text.as_bytes());
    Ok(if report.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn colours() -> bool {
    let unset_or = |name: &str, allowed: &str| std::env::var_os(name).is_none_or(|value| value == allowed);
    io::stdout().is_terminal() && unset_or("NO_COLOR", "") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn render(report: &Report<'_>, colours: bool) -> String {
    let width = report.checks.iter().map(|check| check.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in report.checks {
        let (word, colour) = match check.verdict {
            Verdict::Ok => ("ok", "32"),
            Verdict::Warning => ("warning", "33"),
            Verdict::Problem => ("problem", "31"),
        };
        let (start, end) = if colours { (format!("\x1b[{colour}m"), "\x1b[0m") } else { (String::new(), "") };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{start}{word:7}{end}  {:width$}  {}", check.check, check.finding);
        if let Some(hint) = &check.hint {
            let _ = writeln!(text, "{:7}  {:width$}  hint: {hint}", "", "");
        }
    }
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    text.push('\n');
    text.push_str(&match (report.problems, report.warnings) {
        (0, 0) => "ready".to_owned(),
        (0, warnings) => format!("ready, with {}", plural(warnings, "warning")),
        (problems, 0) => plural(problems, "problem"),
        (problems, warnings) => format!("{}, {}", plural(problems, "problem"), plural(warnings, "warning")),
    });
    text.push('\n');
    text
}

fn examine() -> Vec<Check> {
    // The two slow ones run beside the others.
    let host = read_text("/proc/sys/kernel/hostname").unwrap_or_default();
    let addresses = in_background({
        let host = host.clone();
        move || (host.as_str(), 0).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect::<Vec<_>>())
    });
    let nvidia = in_background(devices::nvidia);

    let mut checks = vec![ok("instep", VERSION), judge_platform(std::env::consts::OS, std::env::consts::ARCH)];
    checks.push(judge_kernel(&read_text("/proc/sys/kernel/osrelease").unwrap_or_default()));
    checks.extend(python());
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned());
    checks.push(judge_gpus(
        nvidia.recv_timeout(DRIVER_TIMEOUT).ok(),
        visible.as_deref(),
        Path::new("/dev/kfd").exists(),
    ));
    checks.push(cpus());
    checks.push(open_files());
    checks.push(judge_shared_memory(writable_space(Path::new("/dev/shm"))));
    checks.push(worker_stacks());
    checks.push(loopback());
    checks.push(default_ports());
    checks.push(judge_host_name(&host, addresses.recv_timeout(RESOLVE_TIMEOUT).ok()));
    let folder = std::env::temp_dir();
    let space = writable_space(&folder);
    checks.push(judge_temporary_folder(&folder, space));
    checks
}

/// Runs something that may hang. A thread that outlasts its deadline ends with the process.
fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // The receiver may have given up.
    thread::spawn(move || sender.send(work()).ok());
    receiver
}

fn read_text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Reads `2.15` from `2.15.0+cpu`, `4.18` from `4.18.0-553.el8`.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn judge_platform(system: &str, architecture: &str) -> Check {
    let finding = format!("{system} {architecture}");
    match (system, architecture) {
        ("linux", "x86_64") => ok("platform", finding),
        _ => warning("platform", finding, "instep is tested on linux x86_64; please report what does not work here"),
    }
}

fn judge_kernel(release: &str) -> Check {
    match major_minor(release) {
        Some(version) if version >= OLDEST_KERNEL => ok("kernel", release),
        Some(_) => {
            let (major, minor) = OLDEST_KERNEL;
            warning("kernel", release, format!("instep is made for Linux {major}.{minor} and newer"))
        }
        None => warning("kernel", "unknown", "/proc/sys/kernel/osrelease cannot be read; is /proc mounted?"),
    }
}

/// Python, torch and the wheel.
fn python() -> Vec<Check> {
    let binary = std::env::current_exe().ok();
    let found = match interpreter::find(None, |name| std::env::var_os(name), binary.as_deref()) {
        Ok(found) => found,
        Err(error) => {
            let text = error.to_string();
            let (finding, hint) = text.split_once("\nhint: ").unwrap_or((&text, "install Python 3"));
            return vec![problem("Python", finding, hint)];
        }
    };
    let place = format!("{} ({})", found.path.display(), found.chosen_because);
    match found.inspect() {
        Ok(inspection) => vec![
            judge_python(&inspection.version, &place),
            judge_torch(inspection.installed("torch").as_deref(), &found.path),
            judge_wheel(inspection.installed("instep").as_deref(), &found.path),
        ],
        Err(error) => vec![problem(
            "Python",
            format!("{place} does not run: {error}"),
            "repair it, or name another with --python or PYTHON_EXEC",
        )],
    }
}

fn judge_python(version: &str, place: &str) -> Check {
    let finding = format!("{version} at {place}");
    if major_minor(version).is_some_and(|version| version >= OLDEST_PYTHON) {
        return ok("Python", finding);
    }
    let (major, minor) = OLDEST_PYTHON;
    warning("Python", finding, format!("scripts run, but the instep package needs Python {major}.{minor} or newer"))
}

fn judge_torch(version: Option<&str>, python: &Path) -> Check {
    let install = format!("{} -m pip install torch", python.display());
    let Some(version) = version else {
        return warning("torch", "not installed in this Python", format!("{install}, or choose another Python"));
    };
    let (oldest, tested) = (OLDEST_TORCH, TESTED_TORCH);
    match major_minor(version) {
        Some(release) if release > tested => {
            ok("torch", format!("{version} (newer than {}.{}, which is tested)", tested.0, tested.1))
        }
        Some(release) if release >= oldest => ok("torch", version),
        _ => warning("torch", version, format!("instep supports torch {}.{} and newer", oldest.0, oldest.1)),
    }
}

fn judge_wheel(version: Option<&str>, python: &Path) -> Check {
    let install = format!("{} -m pip install instep=={VERSION}", python.display());
    match version {
        Some(VERSION) => ok("wheel", format!("{VERSION}, as this binary")),
        Some(other) => warning("wheel", format!("{other} in this Python, but this binary is {VERSION}"), install),
        None => warning(
            "wheel",
            "the instep package is not installed in this Python",
            format!("`instep run` works without it; for `import instep`: {install}"),
        ),
    }
}

/// `None`: the driver did not answer in time.
fn judge_gpus(nvidia: Option<Result<Nvidia, NvidiaError>>, visible: Option<&str>, rocm: bool) -> Check {
    let nvidia = match nvidia {
        Some(Ok(nvidia)) => nvidia,
        Some(Err(NvidiaError::NoLibrary)) if rocm => {
            return ok("GPUs", "ROCm; counted by torch when --nproc-per-node is gpu or auto");
        }
        Some(Err(NvidiaError::NoLibrary)) => return ok("GPUs", "none (no NVIDIA driver): training on CPUs"),
        Some(Err(error)) => {
            return warning("GPUs", error.to_string(), "see what `nvidia-smi` says; after a driver update, reboot");
        }
        None => {
            let finding = format!("the NVIDIA driver did not answer within {} s", DRIVER_TIMEOUT.as_secs());
            return warning("GPUs", finding, "see what `nvidia-smi` says");
        }
    };
    let driver = format!("driver {}, CUDA {}", nvidia.driver, nvidia.cuda);
    if nvidia.gpus.is_empty() {
        return warning("GPUs", format!("none, although there is a {driver}"), "see what `nvidia-smi` says");
    }
    let mut models: Vec<(&str, usize)> = Vec::new();
    for gpu in &nvidia.gpus {
        match models.iter_mut().find(|(name, _)| *name == gpu.name) {
            Some((_, count)) => *count += 1,
            None => models.push((&gpu.name, 1)),
        }
    }
    let models: Vec<String> = models.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    let finding = format!("{} ({driver})", models.join(", "));
    let Some(variable) = visible else {
        return ok("GPUs", finding);
    };
    let shown = devices::filter_visible(&nvidia.gpus, Some(variable)).len();
    let finding = format!("{finding}, {shown} visible: CUDA_VISIBLE_DEVICES={variable}");
    if shown > 0 {
        ok("GPUs", finding)
    } else {
        warning(
            "GPUs",
            finding,
            "unset CUDA_VISIBLE_DEVICES, or list GPUs as `nvidia-smi -L` names them, without repeats",
        )
    }
}

fn cpus() -> Check {
    match devices::allowed_cpus() {
        Ok(allowed) => {
            let all = thread_count_of_machine().unwrap_or(allowed.len());
            judge_cpus(allowed.len(), all, cpu_quota())
        }
        Err(error) => warning("CPUs", error.to_string(), "--nproc-per-node=cpu will not work; say a number"),
    }
}

fn thread_count_of_machine() -> Option<usize> {
    let text = read_text("/proc/cpuinfo")?;
    Some(text.lines().filter(|line| line.starts_with("processor")).count()).filter(|&count| count > 0)
}

/// CPUs' worth of time that the control group allows, where it sets a limit.
fn cpu_quota() -> Option<f64> {
    let groups = read_text("/proc/self/cgroup")?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A limit of any group above counts as well.
    Path::new(group)
        .ancestors()
        .filter_map(|group| {
            let group = group.strip_prefix("/").ok()?;
            let text = read_text(Path::new("/sys/fs/cgroup").join(group).join("cpu.max"))?;
            let (quota, period) = text.split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        })
        .reduce(f64::min)
}

fn judge_cpus(allowed: usize, all: usize, quota: Option<f64>) -> Check {
    let finding = if allowed < all { format!("{allowed} of {all} (CPU affinity)") } else { format!("{allowed}") };
    match quota {
        Some(quota) if quota < allowed as f64 => warning(
            "CPUs",
            format!("{finding}, but the control group grants the time of {quota:.1}"),
            format!(
                "--nproc-per-node=cpu starts {allowed} workers here; say a number, or raise the container's CPU limit"
            ),
        ),
        _ => ok("CPUs", finding),
    }
}

fn open_files() -> Check {
    let limits = read_text("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers = line.unwrap_or_default().split_whitespace();
    judge_open_files(numbers.next(), numbers.next())
}

fn judge_open_files(soft: Option<&str>, hard: Option<&str>) -> Check {
    let (Some(soft), Some(hard)) = (soft, hard) else {
        return warning("open files", "the limit is unknown", "/proc/self/limits cannot be read; is /proc mounted?");
    };
    let few = |limit: &str| limit.parse().is_ok_and(|limit: u64| limit < FEW_OPEN_FILES);
    let finding = format!("at most {soft} (can be raised to {hard})");
    match (few(soft), few(hard)) {
        (false, _) => ok("open files", format!("at most {soft}")),
        (true, false) => warning("open files", finding, format!("data loaders may run out: ulimit -n {hard}")),
        (true, true) => warning(
            "open files",
            format!("at most {soft}"),
            "data loaders may run out; ask for a higher limit (limits.conf, docker run --ulimit nofile=65536)",
        ),
    }
}

/// Size of a folder's file system, after a file was written there and removed.
fn writable_space(folder: &Path) -> io::Result<Space> {
    let file = folder.join(format!("instep-doctor-{}", std::process::id()));
    let written = OpenOptions::new().write(true).create_new(true).open(&file).and_then(|mut file| file.write_all(b"x"));
    // Whatever came of writing, nothing stays behind.
    let _ = fs::remove_file(&file);
    written?;
    devices::space(folder)
}

/// `1.5 GiB`.
fn size(bytes: u64) -> String {
    let (mut amount, mut unit) = (bytes as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if amount < 1024.0 {
            break;
        }
        (amount, unit) = (amount / 1024.0, larger);
    }
    if amount < 10.0 && unit != "B" { format!("{amount:.1} {unit}") } else { format!("{amount:.0} {unit}") }
}

fn judge_shared_memory(space: io::Result<Space>) -> Check {
    const NAME: &str = "shared memory";
    let more = "data loaders pass batches through it: docker run --ipc=host, or --shm-size=8g";
    match space {
        Ok(space) => {
            let finding = format!("/dev/shm: {}, {} free", size(space.total), size(space.free));
            if space.free < SMALL_SHARED_MEMORY { warning(NAME, finding, more) } else { ok(NAME, finding) }
        }
        Err(error) => warning(NAME, format!("/dev/shm cannot be written: {error}"), more),
    }
}

/// Tries on a child what a look into a stuck worker needs: `/proc/PID/mem` has the permissions of process_vm_readv.
fn worker_stacks() -> Check {
    let scope = read_text("/proc/sys/kernel/yama/ptrace_scope");
    let child = Command::new("/bin/sh")
        .args(["-c", "read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let readable = child.ok().map(|mut child| {
        let readable = fs::File::open(format!("/proc/{}/mem", child.id())).is_ok();
        // Its input ends here, and so does it.
        drop(child.stdin.take());
        let _ = child.wait();
        readable
    });
    judge_worker_stacks(scope.as_deref(), readable)
}

fn judge_worker_stacks(scope: Option<&str>, readable: Option<bool>) -> Check {
    const NAME: &str = "worker stacks";
    let scope = scope.map_or("Yama is off".to_owned(), |scope| format!("ptrace_scope {scope}"));
    match readable {
        Some(true) => ok(NAME, format!("can be read ({scope})")),
        Some(false) => warning(
            NAME,
            format!("cannot be read ({scope})"),
            "stack traces of stuck workers need kernel.yama.ptrace_scope 0 or 1; in Docker, --cap-add=SYS_PTRACE",
        ),
        None => ok(NAME, format!("not tried, there is no /bin/sh ({scope})")),
    }
}

fn loopback() -> Check {
    let binds = |address: IpAddr| TcpListener::bind(SocketAddr::new(address, 0)).map(drop);
    judge_loopback(binds(Ipv4Addr::LOCALHOST.into()), binds(Ipv6Addr::LOCALHOST.into()))
}

fn judge_loopback(version_4: io::Result<()>, version_6: io::Result<()>) -> Check {
    match (version_4, version_6) {
        (Ok(()), Ok(())) => ok("loopback", "127.0.0.1 and ::1"),
        (Ok(()), Err(_)) => ok("loopback", "127.0.0.1 (no IPv6)"),
        (Err(error), Ok(())) => warning(
            "loopback",
            format!("::1 only; 127.0.0.1: {error}"),
            "torch's default master address is 127.0.0.1: bring up the lo interface with its IPv4 address",
        ),
        (Err(error), Err(_)) => problem(
            "loopback",
            format!("no port can be bound: {error}"),
            "bring up the lo interface: ip link set lo up",
        ),
    }
}

fn default_ports() -> Check {
    let busy = DEFAULT_PORTS.iter().filter(|&&port| {
        let any = |address: IpAddr| TcpListener::bind(SocketAddr::new(address, port)).map(drop);
        // Dual-stack where there is IPv6, as the store listens.
        let bound = any(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Err(error),
            _ => any(Ipv4Addr::UNSPECIFIED.into()),
        });
        bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    });
    judge_default_ports(&busy.map(|&port| (port, holder(port))).collect::<Vec<_>>())
}

fn judge_default_ports(busy: &[(u16, Option<String>)]) -> Check {
    const NAME: &str = "default ports";
    if busy.is_empty() {
        return ok(NAME, DEFAULT_PORTS.map(|port| port.to_string()).join(" and ") + " are free");
    }
    let busy: Vec<String> = busy
        .iter()
        .map(|(port, holder)| match holder {
            Some(holder) => format!("{port} is held by {holder}"),
            None => format!("{port} is in use (perhaps by another user's job)"),
        })
        .collect();
    warning(
        NAME,
        busy.join(", "),
        "only jobs over several nodes use them; give those another --rdzv-endpoint HOST:PORT",
    )
}

/// The process that listens on a port, as far as this user may see.
fn holder(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| read_text(table).unwrap_or_default());
    let socket = format!("socket:[{}]", tables.iter().find_map(|table| listening_inode(table, port))?);
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        // Not `self` and its like: the number is wanted.
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let mut files = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        files.find(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == socket.as_str()))?;
        let name = read_text(entry.path().join("comm")).unwrap_or_default();
        Some(format!("{name} (pid {pid})"))
    })
}

/// Finds a listening socket in the kernel's table: `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode`.
fn listening_inode(table: &str, port: u16) -> Option<&str> {
    let ending = format!(":{port:04X}");
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1)?.ends_with(&ending) && *fields.get(3)? == "0A").then_some(())?;
        fields.get(9).copied()
    })
}

/// `None`: the resolver did not answer in time.
fn judge_host_name(host: &str, addresses: Option<io::Result<Vec<IpAddr>>>) -> Check {
    const NAME: &str = "host name";
    let hint = "jobs on this machine alone are fine; over several nodes give --local-addr, or mend /etc/hosts or DNS";
    match addresses {
        None => {
            let finding = format!("{host}: no answer from the resolver within {} s", RESOLVE_TIMEOUT.as_secs());
            warning(NAME, finding, hint)
        }
        Some(Err(error)) => warning(NAME, format!("{host} does not resolve: {error}"), hint),
        Some(Ok(mut addresses)) => {
            addresses.dedup();
            let text = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            // Peers are told the first address that resolves, and 127.0.1.1 means themselves.
            match addresses.first() {
                None => warning(NAME, format!("{host} resolves to no address"), hint),
                Some(first) if first.is_loopback() => {
                    warning(NAME, format!("{host} resolves to {text}, which other nodes cannot reach"), hint)
                }
                Some(_) => ok(NAME, format!("{host} resolves to {text}")),
            }
        }
    }
}

fn judge_temporary_folder(folder: &Path, space: io::Result<Space>) -> Check {
    const NAME: &str = "temporary folder";
    let place = folder.display();
    match space {
        Ok(space) => {
            let finding = format!("{place}: {} free", size(space.free));
            if space.free < SMALL_TEMPORARY_SPACE {
                warning(NAME, finding, "worker logs go there: make room, or set TMPDIR or --log-dir")
            } else {
                ok(NAME, finding)
            }
        }
        Err(error) => problem(
            NAME,
            format!("{place} cannot be written: {error}"),
            "set TMPDIR to a folder that can be written, or give every run a --log-dir",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_launch::devices::Gpu;

    fn denied<T>() -> io::Result<T> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn gpus(names: &[&str]) -> Option<Result<Nvidia, NvidiaError>> {
        let gpus = names.iter().enumerate().map(|(index, name)| Gpu {
            index,
            pci_address: String::new(),
            uuid: format!("GPU-{index}"),
            name: (*name).to_owned(),
            mig_uuids: Vec::new(),
        });
        Some(Ok(Nvidia { driver: "580.1".to_owned(), cuda: "13.0".to_owned(), gpus: gpus.collect() }))
    }

    #[test]
    fn judgements() {
        let python = Path::new("/venv/bin/python");
        let loopback: IpAddr = Ipv4Addr::new(127, 0, 1, 1).into();
        let public: IpAddr = Ipv4Addr::new(10, 0, 0, 7).into();
        let roomy = Space { total: 8 << 30, free: 7 << 30 };
        let docker = Space { total: 64 << 20, free: 64 << 20 };
        let cases = [
            (judge_platform("linux", "x86_64"), Verdict::Ok, "linux x86_64"),
            (judge_platform("linux", "aarch64"), Verdict::Warning, "linux aarch64"),
            (judge_kernel("6.8.0-40-generic"), Verdict::Ok, "6.8.0"),
            (judge_kernel("4.18.0-553.el8"), Verdict::Ok, "4.18"),
            (judge_kernel("3.10.0-1160.el7"), Verdict::Warning, "3.10"),
            (judge_kernel(""), Verdict::Warning, "unknown"),
            (judge_python("3.10.0", "/usr/bin/python3"), Verdict::Ok, "3.10.0 at /usr/bin/python3"),
            (judge_python("3.9.18", "/usr/bin/python3"), Verdict::Warning, "3.9.18"),
            (judge_torch(Some("2.15.0+cpu"), python), Verdict::Ok, "2.15.0+cpu"),
            (judge_torch(Some("2.16.0a0+git1"), python), Verdict::Ok, "newer than 2.15"),
            (judge_torch(Some("2.1.2"), python), Verdict::Warning, "2.1.2"),
            (judge_torch(None, python), Verdict::Warning, "not installed"),
            (judge_wheel(Some(VERSION), python), Verdict::Ok, VERSION),
            (judge_wheel(Some("0.0.1"), python), Verdict::Warning, "0.0.1"),
            (judge_wheel(None, python), Verdict::Warning, "not installed"),
            (judge_gpus(Some(Err(NvidiaError::NoLibrary)), None, false), Verdict::Ok, "none"),
            (judge_gpus(Some(Err(NvidiaError::NoLibrary)), None, true), Verdict::Ok, "ROCm"),
            (judge_gpus(None, None, false), Verdict::Warning, "did not answer"),
            (judge_gpus(gpus(&[]), None, false), Verdict::Warning, "none, although"),
            (judge_gpus(gpus(&["A", "B", "A"]), None, false), Verdict::Ok, "2 x A, 1 x B (driver 580.1, CUDA 13.0)"),
            (judge_gpus(gpus(&["A", "A"]), Some("1"), false), Verdict::Ok, "1 visible: CUDA_VISIBLE_DEVICES=1"),
            (judge_gpus(gpus(&["A", "A"]), Some("1,1"), false), Verdict::Warning, "0 visible"),
            (judge_cpus(8, 8, None), Verdict::Ok, "8"),
            (judge_cpus(4, 8, Some(4.0)), Verdict::Ok, "4 of 8"),
            (judge_cpus(64, 64, Some(2.5)), Verdict::Warning, "the time of 2.5"),
            (judge_open_files(Some("1048576"), Some("1048576")), Verdict::Ok, "1048576"),
            (judge_open_files(Some("unlimited"), Some("unlimited")), Verdict::Ok, "unlimited"),
            (judge_open_files(Some("1024"), Some("524288")), Verdict::Warning, "can be raised to 524288"),
            (judge_open_files(Some("1024"), Some("1024")), Verdict::Warning, "at most 1024"),
            (judge_open_files(None, None), Verdict::Warning, "unknown"),
            (judge_shared_memory(Ok(roomy)), Verdict::Ok, "8.0 GiB, 7.0 GiB free"),
            (judge_shared_memory(Ok(docker)), Verdict::Warning, "64 MiB"),
            (judge_shared_memory(denied()), Verdict::Warning, "cannot be written"),
            (judge_worker_stacks(Some("1"), Some(true)), Verdict::Ok, "ptrace_scope 1"),
            (judge_worker_stacks(Some("2"), Some(false)), Verdict::Warning, "ptrace_scope 2"),
            (judge_worker_stacks(None, None), Verdict::Ok, "not tried"),
            (judge_loopback(Ok(()), Ok(())), Verdict::Ok, "127.0.0.1 and ::1"),
            (judge_loopback(Ok(()), denied()), Verdict::Ok, "no IPv6"),
            (judge_loopback(denied(), Ok(())), Verdict::Warning, "::1 only"),
            (judge_loopback(denied(), denied()), Verdict::Problem, "no port"),
            (judge_default_ports(&[]), Verdict::Ok, "29400 and 29500 are free"),
            (judge_default_ports(&[(29500, Some("python (pid 7)".to_owned()))]), Verdict::Warning, "python (pid 7)"),
            (judge_default_ports(&[(29400, None)]), Verdict::Warning, "29400 is in use"),
            (judge_host_name("node1", Some(Ok(vec![public, public]))), Verdict::Ok, "node1 resolves to 10.0.0.7"),
            (judge_host_name("node1", Some(Ok(vec![loopback, public]))), Verdict::Warning, "127.0.1.1"),
            (judge_host_name("node1", Some(denied())), Verdict::Warning, "does not resolve"),
            (judge_host_name("node1", None), Verdict::Warning, "no answer"),
            (judge_temporary_folder(Path::new("/tmp"), Ok(roomy)), Verdict::Ok, "/tmp: 7.0 GiB free"),
            (judge_temporary_folder(Path::new("/tmp"), Ok(docker)), Verdict::Warning, "64 MiB"),
            (judge_temporary_folder(Path::new("/tmp"), denied()), Verdict::Problem, "cannot be written"),
        ];
        for (check, verdict, finding) in cases {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert!(check.finding.contains(finding), "{check:?} does not say {finding:?}");
            assert_eq!(check.hint.is_some(), verdict != Verdict::Ok, "{check:?}");
        }
    }

    #[test]
    fn the_table_is_aligned_and_ends_with_a_summary() {
        let checks = [ok("instep", "0.1.0"), warning("host name", "vm", "mend it"), problem("loopback", "none", "up")];
        let table = render(&Report::new(&checks), false);
        let wanted = "\
ok       instep     0.1.0
warning  host name  vm
                    hint: mend it
problem  loopback   none
                    hint: up

1 problem, 1 warning
";
        assert_eq!(table, wanted);
        assert!(render(&Report::new(&checks[..2]), false).ends_with("\nready, with 1 warning\n"));
        assert!(render(&Report::new(&checks[..1]), false).ends_with("\nready\n"));
        let coloured = render(&Report::new(&checks), true);
        assert!(coloured.contains("\x1b[31mproblem\x1b[0m  loopback"), "{coloured:?}");
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, wanted) in
            [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (5 << 40, "5.0 TiB")]
        {
            assert_eq!(size(bytes), wanted);
        }
    }

    #[test]
    fn the_holder_of_a_port_is_named() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(holder(port).unwrap().ends_with(&format!("(pid {})", std::process::id())));
        drop(listener);
        let table = "  sl  local_address rem_address   st\n 0: 0100007F:72D8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1";
        assert_eq!(listening_inode(table, 29400), Some("4711"));
        assert_eq!(listening_inode(table, 29500), None);
    }
}
