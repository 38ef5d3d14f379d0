//! `instep task` with real processes, against a master that answers from a script.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::scripted_master::Master;
use flate2::Compression;
use flate2::write::GzEncoder;
use instep_agent::folder::{ShareFolder, StateFolder};
use instep_agent::order::{Machine, StopOrder, TaskOrder};
use instep_api::link::{Device, DeviceKind, Entrypoint, Exit, RunAs, Share, Start};
use instep_api::wire::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

struct Case {
    master: Master,
    folder: tempfile::TempDir,
    order: TaskOrder,
}

impl Case {
    /// A trial with two slots whose entrypoint is this.
    fn of(entrypoint: &str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let master = Master::start();
        let storage = folder.path().join("checkpoints");
        let config = json!({"checkpoint_storage": {"type": "shared_fs", "host_path": storage}, "debug": false});
        let environment = [
            ("DET_TASK_TYPE", "TRIAL".to_owned()),
            ("DET_EXPERIMENT_CONFIG", config.to_string()),
            ("DET_TRIAL_ID", "9".to_owned()),
            ("DET_EXPERIMENT_ID", "7".to_owned()),
            ("DET_TRIAL_SEED", "1".to_owned()),
            ("DET_HPARAMS", r#"{"x":1}"#.to_owned()),
            ("DET_STEPS_COMPLETED", "0".to_owned()),
            ("DET_TRIAL_RUN_ID", "1".to_owned()),
        ];
        let device = |id| Device { id, kind: DeviceKind::Cpu, brand: "CPU".to_owned(), uuid: String::new() };
        let order = TaskOrder {
            start: Start {
                share: Share { allocation: "7.u.1".to_owned(), resources: "share-1".to_owned() },
                task: "7.u".to_owned(),
                devices: vec![0, 1],
                container: "c0ffee00".to_owned(),
                environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
                user_environment: vec!["GREETING=hello".to_owned()],
                secrets: Default::default(),
                entrypoint: Entrypoint::Shell(entrypoint.to_owned()),
                token: "allocation-token".to_owned(),
                context: true,
                rendezvous: true,
                run_as: None,
                run_group: None,
                shared_memory_bytes: None,
                mounts: Vec::new(),
                paths: Vec::new(),
                service: None,
                ssh_keys: None,
                job_token: None,
                notes: vec!["a note of the master".to_owned()],
                decided_at: Timestamp(0),
            },
            machine: Machine {
                masters: String::new(),
                agent: "agent-0".to_owned(),
                master: master.address.clone(),
                certificates: None,
                master_id: "m".to_owned(),
                cluster_id: "c".to_owned(),
                devices: vec![device(0), device(1)],
                python: python(),
                binary: env!("CARGO_BIN_EXE_instep").into(),
                window_seconds: 600,
                // Ours: the folders of these tests are closed to others.
                default_user: RunAs::unnamed(0, 0),
                allowed_mounts: Vec::new(),
            },
            cgroup: None,
        };
        Case { master, folder, order }
    }

    fn context(self, files: &[(&str, &str)]) -> Case {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o755);
            archive.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
        *self.master.context.lock().unwrap() = archive.into_inner().unwrap().finish().unwrap();
        self
    }

    fn share(&self) -> ShareFolder {
        let state = StateFolder::at(self.folder.path().join("state"));
        state.prepare().unwrap();
        state.note_contact().unwrap();
        state.share("share-1").unwrap()
    }

    fn start(&self, options: &[&str]) -> (ShareFolder, Child) {
        let share = self.share();
        share.create(&self.order).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_instep"));
        let child = command.arg("task").arg(share.path()).args(options).stdin(Stdio::null()).spawn().unwrap();
        (share, child)
    }

    fn run(&self, options: &[&str]) -> (ShareFolder, Exit) {
        let (share, mut child) = self.start(options);
        assert!(child.wait().unwrap().success());
        let exit = share.exit().unwrap().exit;
        (share, exit)
    }

    fn wait_for_output(&self, text: &str) {
        wait_until(text, || self.master.output().contains(text));
    }
}

fn python() -> std::path::PathBuf {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().into()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn alive(process: i32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn json_file(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// What a task sees, in both kinds of view.
const LOOK_AROUND: &str = r#"
import json, os, sys
run = os.environ["DET_RUN_DIR"]
print("[rank=1] WARNING: greeting is", os.environ["GREETING"], file=sys.stderr)
print("slots", json.load(open(run + "/info/cluster.json"))["slot_ids"])
print("config", json.load(open(run + "/info/trial.json"))["config"]["checkpoint_storage"]["type"])
print("rendezvous", json.load(open(run + "/info/rendezvous.json"))["container_addrs"])
print("model", sorted(os.listdir(run + "/train/model")))
print("hook", os.environ["FROM_HOOK"], os.path.basename(os.getcwd()))
open(os.environ["TMPDIR"] + "/mine", "w").close()
with open(run + "/train/logs/stdout.log", "w") as log:
    log.write("by name\n")
sys.exit(3)
"#;

#[test]
fn a_task_finds_everything_and_its_output_arrives() {
    for (options, run) in [(&[][..], "/run/determined"), (&["--plain"][..], "shares/share-1/task/run")] {
        let case = Case::of("python3 ../look.py").context(&[
            ("look.py", LOOK_AROUND),
            ("sub/a", ""),
            ("startup-hook.sh", "export FROM_HOOK=yes\ncd sub\n"),
        ]);
        let (share, exit) = case.run(options);
        let output = case.master.output();
        assert_eq!(exit, Exit::code(3), "{output}");
        for expected in [
            "a note of the master",
            "New trial runner in (container share-1) on agent agent-0",
            "greeting is hello\n",
            "slots [0, 1]\n",
            "config shared_fs\n",
            "rendezvous ['127.0.0.1']\n",
            "model ['look.py', 'startup-hook.sh', 'sub']\n",
            "hook yes sub\n",
            "by name\n",
        ] {
            assert!(output.contains(expected), "{expected:?} in\n{output}");
        }
        let seen = case.master.seen.lock().unwrap();
        assert!(seen.lines.iter().any(|(rank, text)| *rank == Some(1) && text == "greeting is hello\n"));
        assert!(seen.tokens.iter().all(|token| token == "Bearer allocation-token"));
        assert!(seen.requests.iter().any(|request| request.ends_with("/allocations/7.u.1/acceleratorData")));
        // Private in either view, and readable by its owner alone.
        let task = share.task();
        assert!(task.join("tmp/mine").exists(), "{run}");
        assert!(!Path::new("/tmp/mine").exists());
        assert_eq!(fs::metadata(task.path()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(json_file(&task.join("run/info/resources.json")), json!({"gpu_uuids": []}));
    }
}

#[test]
fn programs_and_modules_that_are_missing_are_explained() {
    let case = Case::of("python3 -m no_such_module_anywhere");
    let (_, exit) = case.run(&[]);
    assert_eq!(exit, Exit::code(1));
    assert!(case.master.output().contains("which has no `no_such_module_anywhere`"), "{}", case.master.output());
    let mut case = Case::of("");
    case.order.start.entrypoint = Entrypoint::Arguments(vec!["no-such-program".to_owned()]);
    let (_, exit) = case.run(&[]);
    assert_eq!(exit, Exit::code(127));
    assert!(case.master.output().contains("`no-such-program` was not found"), "{}", case.master.output());
}

#[test]
fn a_context_that_leads_out_is_no_fault_of_the_script() {
    let case = Case::of("true");
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..5].copy_from_slice(b"../xy");
    header.set_size(0);
    header.set_cksum();
    let mut archive = GzEncoder::new(Vec::new(), Compression::fast());
    archive.write_all(header.as_bytes()).unwrap();
    archive.write_all(&[0; 1024]).unwrap();
    *case.master.context.lock().unwrap() = archive.finish().unwrap();
    let (_, exit) = case.run(&[]);
    assert!(matches!(&exit, Exit::Failed { why } if why.contains("`../xy`")), "{exit:?}");
}

#[test]
fn storage_that_cannot_be_used_ends_the_trial() {
    let mut case = Case::of("true");
    let file = case.folder.path().join("file");
    fs::write(&file, "").unwrap();
    let config = json!({"checkpoint_storage": {"type": "directory", "container_path": file}});
    case.order.start.environment.insert("DET_EXPERIMENT_CONFIG".to_owned(), config.to_string());
    let (_, exit) = case.run(&[]);
    assert_eq!(exit, Exit::code(1));
    assert!(case.master.output().contains("Checkpoint storage validation failed"), "{}", case.master.output());
}

/// Starts a child in a session of its own, says both process ids, ignores SIGTERM if told to, and sleeps.
const STUBBORN: &str = r#"
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
if sys.argv[1:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pids", os.getpid(), child.pid, "", flush=True)
time.sleep(1000)
"#;

fn pids(case: &Case) -> Vec<i32> {
    case.wait_for_output("pids ");
    let output = case.master.output();
    let line = output.lines().find_map(|line| line.strip_prefix("pids ")).unwrap();
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

#[test]
fn a_stop_ends_the_whole_tree_also_one_that_does_not_want_to() {
    for (how, lost) in [("", false), (" stubborn", true)] {
        let case = Case::of(&format!("python3 s.py{how}")).context(&[("s.py", STUBBORN)]);
        let (share, mut child) = case.start(&[]);
        let pids = pids(&case);
        let begin = Instant::now();
        share.write_stop(&StopOrder { grace_seconds: 1, why: "paused".to_owned(), lost }).unwrap();
        child.wait().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(30));
        let expected = if lost { Exit::Lost { why: "paused".to_owned() } } else { Exit::Killed };
        assert_eq!(share.exit().map(|ending| ending.exit), Some(expected));
        assert!(pids.iter().all(|pid| !alive(*pid)), "{pids:?}");
        assert!(case.master.output().contains("stopped: paused"), "{}", case.master.output());
    }
}

#[test]
fn a_program_gets_the_signals_that_its_supervisor_keeps_for_itself() {
    let case = Case::of("grep SigBlk /proc/self/status");
    let (_share, mut child) = case.start(&[]);
    case.wait_for_output("SigBlk");
    child.wait().unwrap();
    assert!(case.master.output().contains("SigBlk:\t0000000000000000"), "{}", case.master.output());
}

#[test]
fn whoever_of_the_two_is_killed_the_tree_ends() {
    for supervisor in [false, true] {
        let case = Case::of("python3 s.py").context(&[("s.py", STUBBORN)]);
        let (share, mut child) = case.start(&[]);
        let pids = pids(&case);
        let guardian = share.pid().unwrap();
        let children = fs::read_to_string(format!("/proc/{guardian}/task/{guardian}/children")).unwrap();
        let inner: i32 = children.trim().parse().unwrap();
        kill(Pid::from_raw(if supervisor { inner } else { guardian }), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        wait_until("the end of the tree", || pids.iter().all(|pid| !alive(*pid)));
        wait_until("the end of the share", || !share.is_looked_after());
        let exit = share.exit().map(|ending| ending.exit);
        // Without a guardian nobody says how it ended, until the agent looks.
        assert!(if supervisor { matches!(exit, Some(Exit::Lost { .. })) } else { exit.is_none() }, "{exit:?}");
    }
}

#[test]
fn a_task_that_hears_nothing_ends_by_itself() {
    let mut case = Case::of("python3 s.py").context(&[("s.py", STUBBORN)]);
    case.order.machine.window_seconds = 2;
    let (share, mut child) = case.start(&[]);
    let state = StateFolder::of_share(&share).unwrap();
    let pids = pids(&case);
    state.note_contact().unwrap();
    child.wait().unwrap();
    let exit = share.exit().map(|ending| ending.exit);
    assert!(matches!(&exit, Some(Exit::Lost { why }) if why.contains("no contact")), "{exit:?}");
    assert!(pids.iter().all(|pid| !alive(*pid)));
}

#[test]
fn a_share_is_run_once() {
    let case = Case::of("echo ran");
    let (share, exit) = case.run(&[]);
    assert_eq!(exit, Exit::code(0));
    let again = Command::new(env!("CARGO_BIN_EXE_instep")).arg("task").arg(share.path()).status().unwrap();
    assert!(again.success());
    assert_eq!(case.master.output().matches("ran\n").count(), 1);
}

/// What only root can do is tested where tests run as root.
#[test]
fn root_runs_tasks_as_the_user_they_belong_to() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mut case = Case::of("id -u; id -G; touch $TMPDIR/mine here && ls -n here | cut -d' ' -f3");
    fs::set_permissions(case.folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    case.order.start.run_as = Some(RunAs::unnamed(65534, 65534));
    let storage = case.folder.path().join("checkpoints");
    fs::create_dir(&storage).unwrap();
    fs::set_permissions(&storage, fs::Permissions::from_mode(0o1777)).unwrap();
    for options in [&[][..], &["--plain"][..]] {
        let (share, exit) = case.run(options);
        let output = case.master.output();
        assert_eq!(exit, Exit::code(0), "{output}");
        assert!(output.contains("65534\n65534\n65534\n"), "{output}");
        share.remove().unwrap();
    }
    fs::remove_dir(&storage).unwrap();
    let (_, exit) = case.run(&[]);
    assert_eq!(exit, Exit::code(1), "root makes no folders that the user could not");
    assert!(case.master.output().contains("Checkpoint storage validation failed"), "{}", case.master.output());
}

#[test]
fn host_folders_are_seen_where_they_are_wanted() {
    for options in [&[][..], &["--plain"][..]] {
        let mut case = Case::of("cat data/file; touch data/no 2>/dev/null || echo read only");
        let host = case.folder.path().join("host");
        fs::create_dir(&host).unwrap();
        fs::write(host.join("file"), "found\n").unwrap();
        let mount = instep_api::link::Mount {
            host_path: host.to_str().unwrap().to_owned(),
            task_path: "data".to_owned(),
            read_only: true,
        };
        case.order.start.mounts = vec![mount];
        let (_, exit) = case.run(options);
        let output = case.master.output();
        assert_eq!(exit, Exit::code(0), "{output}");
        assert!(output.contains("found\n"), "{output}");
        // Without a namespace it is a link, which cannot forbid anything.
        assert_eq!(output.contains("read only\n"), options.is_empty(), "{output}");
        case.order.start.mounts[0].task_path = "/no-such-place-here".to_owned();
        let share = case.share();
        share.remove().unwrap();
        let (_, exit) = case.run(options);
        // With a namespace the place is made, by root on the machine itself.
        let is_refused = matches!(&exit, Exit::Failed { why } if why.contains("bind_mounts") && why.contains("hint"));
        assert_eq!(is_refused, !options.is_empty(), "{exit:?}");
        let _ = fs::remove_dir("/no-such-place-here");
    }
}

#[test]
fn a_flood_arrives_whole_and_in_order() {
    let case = Case::of("seq 1 200000");
    let (_, exit) = case.run(&[]);
    assert_eq!(exit, Exit::code(0));
    let output = case.master.output();
    let numbers: Vec<u32> = output.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(numbers, (1..=200_000).collect::<Vec<_>>());
}
