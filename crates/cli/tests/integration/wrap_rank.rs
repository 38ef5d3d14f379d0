//! `instep wrap-rank` alone and under a real `mpirun`.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::fs::OpenOptions;
use std::process::{Command, Output};

const INSTEP: &str = env!("CARGO_BIN_EXE_instep");

fn wrapped(arguments: &[&str]) -> Command {
    let mut command = Command::new(INSTEP);
    command.arg("wrap-rank").args(arguments).env("DET_RUN_DIR", "/nonexistent");
    command
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_line_begins_with_the_rank_and_the_code_is_the_program_s() {
    let done = wrapped(&["3", "--", "sh", "-c", "echo out; printf 'a\\rb\\nc' >&2; exit 7"]).output().unwrap();
    assert_eq!(done.status.code(), Some(7));
    assert_eq!(text(&done), ("[rank=3] out\n".to_owned(), "[rank=3] a\n[rank=3] b\n[rank=3] c\n".to_owned()));
    let killed = wrapped(&["MY_RANK", "--", "sh", "-c", "kill -9 $$"]).env("MY_RANK", "1").output().unwrap();
    assert_eq!(killed.status.code(), Some(137));
    let missing = wrapped(&["0", "--", "no-such-program-anywhere"]).output().unwrap();
    assert!(text(&missing).1.contains("cannot start no-such-program-anywhere"), "{missing:?}");
}

#[test]
fn in_a_task_lines_go_into_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("train/logs");
    std::fs::create_dir_all(&logs).unwrap();
    for name in ["stdout.log", "stderr.log"] {
        OpenOptions::new().create(true).append(true).open(logs.join(name)).unwrap();
    }
    let run = |more: &[&str]| {
        let arguments = [more, &["2", "--", "echo", "hello"]].concat();
        let done = wrapped(&arguments).env("DET_RUN_DIR", folder.path()).output().unwrap();
        text(&done).0
    };
    assert_eq!(run(&[]), "");
    assert_eq!(std::fs::read_to_string(logs.join("stdout.log")).unwrap(), "[rank=2] hello\n");
    assert_eq!(run(&["--no-redirect-stdio"]), "[rank=2] hello\n");
}

/// Needs `mpirun`, which the machines of the project's own tests have.
#[test]
fn open_mpi_s_ranks_are_known_without_being_told() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return;
    }
    let done = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", INSTEP, "wrap-rank", "--"])
        .args(["sh", "-c", "echo I am $OMPI_COMM_WORLD_RANK"])
        .env("DET_RUN_DIR", "/nonexistent")
        .output()
        .unwrap();
    let (out, error) = text(&done);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[rank=0] I am 0", "[rank=1] I am 1"], "{error}");
}
