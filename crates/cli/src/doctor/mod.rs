//! `instep doctor`: says what is there and what is missing.
//!
//! Each check is a fact that was looked up and a judgement of it: the functions that read the machine are named after
//! what they read, those called `judge_…` only decide and are tested as plain data. A problem is what keeps `instep run`
//! from working at all; everything else that may hurt is a warning. Nothing imports torch.
//!
//! `software`, `machine` and `network` hold the checks, each a `check`; here they are run and shown.

mod check;
mod machine;
mod network;
mod software;

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use instep_launch::host_name;
use instep_launch::machine::nvidia;
use instep_launch::plan::scheduler;
use serde::Serialize;

use self::check::{Check, DRIVER_TIMEOUT, RESOLVE_TIMEOUT, VERSION, Verdict, ok, read_text};
use self::machine::{
    cpus, judge_gpus, judge_shared_memory, judge_temporary_folder, open_files, worker_stacks, writable_space,
};
use self::network::{
    INTERFACES, default_ports, interfaces, judge_host_name, judge_interfaces, judge_scheduler, loopback,
};
use self::software::{judge_kernel, judge_platform, python};
use crate::console;

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
    let nvidia = in_background(nvidia::find);

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
    checks.push(judge_interfaces(&interfaces(), std::env::var(INTERFACES).ok().as_deref()));
    checks.push(judge_host_name(&host, addresses.recv_timeout(RESOLVE_TIMEOUT).ok()));
    let variable = |name: &str| std::env::var(name).ok();
    let tasks = scheduler::tasks_on_one_node(variable);
    checks.push(judge_scheduler(scheduler::describe(variable, &host_name()), tasks));
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use instep_launch::PlanError;
    use instep_launch::machine::devices::DiskSpace;
    use instep_launch::machine::nvidia::{Gpu, Nvidia, NvidiaError};

    use super::check::{problem, warning};
    use super::machine::{judge_cpus, judge_open_files, judge_worker_stacks};
    use super::network::{Interface, judge_default_ports, judge_loopback};
    use super::software::{judge_python, judge_torch, judge_wheel};
    use super::*;

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
        let roomy = DiskSpace { total: 8 << 30, free: 7 << 30 };
        let docker = DiskSpace { total: 64 << 20, free: 64 << 20 };
        let ethernet = |name: &str, addresses: &[IpAddr], megabits| {
            let addresses = addresses.to_vec();
            Interface { name: name.to_owned(), addresses, megabits, mtu: Some(9000) }
        };
        let up = [ethernet("eth0", &[public], Some(25_000)), ethernet("docker0", &[], None)];
        let unset = PlanError { message: "SLURM_NODEID is not set".to_owned(), hint: "use srun".to_owned() };
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
            (judge_torch(Some("2.16.0a0+git1"), python), Verdict::Ok, "newer than the tested 2.15"),
            (judge_torch(Some("2.1.2"), python), Verdict::Warning, "2.1.2"),
            (judge_torch(None, python), Verdict::Warning, "not installed"),
            (judge_wheel(Some(VERSION), python), Verdict::Ok, VERSION),
            (judge_wheel(Some("0.0.1"), python), Verdict::Warning, "0.0.1"),
            (judge_wheel(None, python), Verdict::Warning, "not installed"),
            (judge_gpus(Some(Err(NvidiaError::NoLibrary)), None, false), Verdict::Ok, "none"),
            (judge_gpus(Some(Err(NvidiaError::NoLibrary)), None, true), Verdict::Ok, "ROCm"),
            (judge_gpus(None, None, false), Verdict::Warning, "did not answer"),
            (judge_gpus(gpus(&[]), None, false), Verdict::Warning, "no GPU found"),
            (judge_gpus(gpus(&["A", "B", "A"]), None, false), Verdict::Ok, "2 x A, 1 x B (driver 580.1, CUDA 13.0)"),
            (judge_gpus(gpus(&["A", "A"]), Some("1"), false), Verdict::Ok, "1 visible: CUDA_VISIBLE_DEVICES=1"),
            (judge_gpus(gpus(&["A", "A"]), Some("1,1"), false), Verdict::Warning, "0 visible"),
            (judge_cpus(8, 8, None), Verdict::Ok, "8"),
            (judge_cpus(4, 8, Some(4.0)), Verdict::Ok, "4 of 8"),
            (judge_cpus(64, 64, Some(2.5)), Verdict::Warning, "limits CPU time to 2.5"),
            (judge_open_files(Some("1048576"), Some("1048576")), Verdict::Ok, "1048576"),
            (judge_open_files(Some("unlimited"), Some("unlimited")), Verdict::Ok, "unlimited"),
            (judge_open_files(Some("1024"), Some("524288")), Verdict::Warning, "can be raised to 524288"),
            (judge_open_files(Some("1024"), Some("1024")), Verdict::Warning, "at most 1024"),
            (judge_open_files(None, None), Verdict::Warning, "unknown"),
            (judge_shared_memory(Ok(roomy)), Verdict::Ok, "8.0 GiB, 7.0 GiB free"),
            (judge_shared_memory(Ok(docker)), Verdict::Warning, "64 MiB"),
            (judge_shared_memory(denied()), Verdict::Warning, "not writable"),
            (judge_worker_stacks(Some("1"), Some(true)), Verdict::Ok, "ptrace_scope 1"),
            (judge_worker_stacks(Some("2"), Some(false)), Verdict::Warning, "ptrace_scope 2"),
            (judge_worker_stacks(None, None), Verdict::Ok, "not checked"),
            (judge_loopback(Ok(()), Ok(())), Verdict::Ok, "127.0.0.1 and ::1"),
            (judge_loopback(Ok(()), denied()), Verdict::Ok, "no IPv6"),
            (judge_loopback(denied(), Ok(())), Verdict::Warning, "::1 only"),
            (judge_loopback(denied(), denied()), Verdict::Problem, "any port"),
            (judge_default_ports(&[]), Verdict::Ok, "29400 and 29500 are free"),
            (judge_default_ports(&[(29500, Some("python (pid 7)".to_owned()))]), Verdict::Warning, "python (pid 7)"),
            (judge_default_ports(&[(29400, None)]), Verdict::Warning, "29400 is in use"),
            (judge_interfaces(&up, None), Verdict::Ok, "eth0 10.0.0.7 (25 Gbit/s, MTU 9000)"),
            (judge_interfaces(&up, Some("")), Verdict::Ok, "eth0 10.0.0.7"),
            (judge_interfaces(&up, Some("eth0")), Verdict::Ok, "(chosen by INSTEP_SOCKET_IFNAME)"),
            (judge_interfaces(&up, Some("docker0")), Verdict::Warning, "leaves no address"),
            (judge_interfaces(&up, Some("eth0, ib0")), Verdict::Warning, "names ib0, which is not here or not up"),
            (judge_interfaces(&[], None), Verdict::Ok, "none but loopback"),
            (judge_host_name("node1", Some(Ok(vec![public, public]))), Verdict::Ok, "node1 resolves to 10.0.0.7"),
            (judge_host_name("node1", Some(Ok(vec![loopback, public]))), Verdict::Warning, "127.0.1.1"),
            (judge_host_name("node1", Some(denied())), Verdict::Warning, "does not resolve"),
            (judge_host_name("node1", None), Verdict::Warning, "no answer"),
            (judge_scheduler(None, None), Verdict::Ok, "none"),
            (judge_scheduler(Some(Ok("Slurm job 7".to_owned())), Some(1)), Verdict::Ok, "Slurm job 7"),
            (judge_scheduler(Some(Ok("Slurm job 7".to_owned())), Some(4)), Verdict::Warning, "4 tasks on one node"),
            (judge_scheduler(Some(Err(unset)), None), Verdict::Warning, "SLURM_NODEID is not set"),
            (judge_temporary_folder(Path::new("/tmp"), Ok(roomy)), Verdict::Ok, "/tmp: 7.0 GiB free"),
            (judge_temporary_folder(Path::new("/tmp"), Ok(docker)), Verdict::Warning, "64 MiB"),
            (judge_temporary_folder(Path::new("/tmp"), denied()), Verdict::Problem, "not writable"),
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
}
