//! What the machine lends to workers: GPUs, CPUs, files, memory and space.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use instep_launch::machine::devices::{self, DiskSpace};
use instep_launch::machine::nvidia::{self, Nvidia, NvidiaError};

use super::check::{Check, DRIVER_TIMEOUT, ok, problem, read_text, warning};

/// Data loaders pass file descriptors between processes; the usual limit of 1024 is quickly used up.
const FEW_OPEN_FILES: u64 = 4096;
/// Data loaders pass batches through shared memory; containers often get 64 MiB.
const SMALL_SHARED_MEMORY: u64 = 1 << 30;
const SMALL_TEMPORARY_SPACE: u64 = 1 << 30;

/// `None`: the driver did not answer in time.
pub(super) fn judge_gpus(nvidia: Option<Result<Nvidia, NvidiaError>>, visible: Option<&str>, rocm: bool) -> Check {
    let nvidia = match nvidia {
        Some(Ok(nvidia)) => nvidia,
        Some(Err(NvidiaError::NoLibrary)) if rocm => {
            return ok("GPUs", "ROCm; counted by torch when --nproc-per-node is gpu or auto");
        }
        Some(Err(NvidiaError::NoLibrary)) => return ok("GPUs", "none (no NVIDIA driver): training on CPUs"),
        Some(Err(error)) => {
            return warning("GPUs", error.to_string(), "run `nvidia-smi`; after a driver update, reboot");
        }
        None => {
            let finding = format!("the NVIDIA driver did not answer within {} s", DRIVER_TIMEOUT.as_secs());
            return warning("GPUs", finding, "run `nvidia-smi` for details");
        }
    };
    let driver = format!("driver {}, CUDA {}", nvidia.driver, nvidia.cuda);
    if nvidia.gpus.is_empty() {
        return warning("GPUs", format!("no GPU found ({driver})"), "run `nvidia-smi` for details");
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
    let shown = nvidia::filter_visible(&nvidia.gpus, Some(variable)).len();
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

pub(super) fn cpus() -> Check {
    match devices::allowed_cpus() {
        Ok(allowed) => {
            let all = thread_count_of_machine().unwrap_or(allowed.len());
            judge_cpus(allowed.len(), all, cpu_quota())
        }
        Err(error) => warning("CPUs", error.to_string(), "--nproc-per-node=cpu will not work; use a number"),
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

pub(super) fn judge_cpus(allowed: usize, all: usize, quota: Option<f64>) -> Check {
    let finding = if allowed < all { format!("{allowed} of {all} (CPU affinity)") } else { format!("{allowed}") };
    match quota {
        Some(quota) if quota < allowed as f64 => warning(
            "CPUs",
            format!("{finding}, but the cgroup limits CPU time to {quota:.1} CPUs"),
            format!(
                "--nproc-per-node=cpu starts {allowed} workers here; use a number, or raise the container's CPU limit"
            ),
        ),
        _ => ok("CPUs", finding),
    }
}

pub(super) fn open_files() -> Check {
    let limits = read_text("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers = line.unwrap_or_default().split_whitespace();
    judge_open_files(numbers.next(), numbers.next())
}

pub(super) fn judge_open_files(soft: Option<&str>, hard: Option<&str>) -> Check {
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
pub(super) fn writable_space(folder: &Path) -> io::Result<DiskSpace> {
    let file = folder.join(format!("instep-doctor-{}", std::process::id()));
    let written = OpenOptions::new().write(true).create_new(true).open(&file).and_then(|mut file| file.write_all(b"x"));
    // Whatever came of writing, nothing stays behind.
    let _ = fs::remove_file(&file);
    written?;
    devices::disk_space(folder)
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

pub(super) fn judge_shared_memory(space: io::Result<DiskSpace>) -> Check {
    const NAME: &str = "shared memory";
    let more = "data loaders pass batches through it: docker run --ipc=host, or --shm-size=8g";
    match space {
        Ok(space) => {
            let finding = format!("/dev/shm: {}, {} free", size(space.total), size(space.free));
            if space.free < SMALL_SHARED_MEMORY { warning(NAME, finding, more) } else { ok(NAME, finding) }
        }
        Err(error) => warning(NAME, format!("/dev/shm is not writable: {error}"), more),
    }
}

/// Tries on a child what a look into a stuck worker needs: `/proc/PID/mem` has the permissions of process_vm_readv.
pub(super) fn worker_stacks() -> Check {
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

pub(super) fn judge_worker_stacks(scope: Option<&str>, readable: Option<bool>) -> Check {
    const NAME: &str = "worker stacks";
    let scope = scope.map_or("Yama is off".to_owned(), |scope| format!("ptrace_scope {scope}"));
    match readable {
        Some(true) => ok(NAME, format!("can be read ({scope})")),
        Some(false) => warning(
            NAME,
            format!("cannot be read ({scope})"),
            "stack traces of stuck workers need kernel.yama.ptrace_scope 0 or 1; in Docker, --cap-add=SYS_PTRACE",
        ),
        None => ok(NAME, format!("not checked: no /bin/sh ({scope})")),
    }
}

pub(super) fn judge_temporary_folder(folder: &Path, space: io::Result<DiskSpace>) -> Check {
    const NAME: &str = "temporary folder";
    let place = folder.display();
    match space {
        Ok(space) => {
            let finding = format!("{place}: {} free", size(space.free));
            if space.free < SMALL_TEMPORARY_SPACE {
                warning(NAME, finding, "worker logs go there: free some space, or set TMPDIR or --log-dir")
            } else {
                ok(NAME, finding)
            }
        }
        Err(error) => problem(
            NAME,
            format!("{place} is not writable: {error}"),
            "set TMPDIR to a writable folder, or use --log-dir",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, wanted) in
            [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (5 << 40, "5.0 TiB")]
        {
            assert_eq!(size(bytes), wanted);
        }
    }
}
