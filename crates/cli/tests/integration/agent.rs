//! `instep agent` with real processes, against a master that answers from a script.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::scripted_master::{Connection, Master};
use instep_api::link::{Entrypoint, Exit, Order, Report, Share, Start};
use instep_api::wire::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that is ended with its test.
struct Agent(Child);

impl Agent {
    fn start(master: &Master, folder: &Path, more: &[&str]) -> Agent {
        let child = Command::new(env!("CARGO_BIN_EXE_instep"))
            .args(["agent", "--master", &master.address, "--name", "agent-0", "--slots", "2", "--token", "t"])
            .arg("--state-folder")
            .arg(folder)
            // Tests that root runs: tasks write to the tests' own folders.
            .args(["--default-user", "root"])
            // A killed agent leaves its control group behind; tests of limits are in tests/managed.
            .args(["--task-memory", "none", "--task-processes", "none"])
            .args(more)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Agent(child)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).unwrap();
    }

    /// Waits for its end; gives its code and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn share(name: &str) -> Share {
    Share { allocation: "7.u.1".to_owned(), resources: name.to_owned() }
}

fn start(name: &str, entrypoint: &str, devices: &[u32]) -> Order {
    Order::Start(Box::new(Start {
        share: share(name),
        task: "7.u".to_owned(),
        devices: devices.to_vec(),
        container: name.to_owned(),
        environment: [("DET_TASK_TYPE".to_owned(), "COMMAND".to_owned())].into(),
        user_environment: Vec::new(),
        secrets: Default::default(),
        entrypoint: Entrypoint::Shell(entrypoint.to_owned()),
        token: "a".to_owned(),
        context: false,
        rendezvous: false,
        run_as: None,
        run_group: None,
        shared_memory_bytes: None,
        mounts: Vec::new(),
        paths: Vec::new(),
        service: None,
        ssh_keys: None,
        job_token: None,
        notes: Vec::new(),
        decided_at: Timestamp(0),
    }))
}

fn stop(name: &str) -> Order {
    Order::Stop { share: share(name), grace_seconds: 1, why: "a test says so".to_owned() }
}

fn exit_of(connection: &mut Connection, name: &str) -> Exit {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        match connection.report(PATIENCE) {
            Some(Report::Exited { share, exit }) if share.resources == name => return exit.exit,
            Some(_) => {}
            None => break,
        }
    }
    panic!("no end of {name} was reported")
}

#[test]
fn orders_are_done_once_and_ends_are_told_until_thanked_for() {
    let (master, folder) = (Master::start(), tempfile::tempdir().unwrap());
    let state = folder.path().join("state");
    let agent = Agent::start(&master, &state, &[]);
    let mut connection = master.agent(600);
    assert_eq!(connection.hello.agent, "agent-0");
    assert_eq!(connection.hello.devices.len(), 2);
    assert!(connection.hello.shares.is_empty());
    let mark = folder.path().join("mark");
    let order = start("one", &format!("echo x >> {}; sleep 1; exit 4", mark.display()), &[0]);
    connection.order(&order);
    connection.order(&order);
    assert_eq!(connection.report(PATIENCE), Some(Report::Started { share: share("one") }));
    assert_eq!(exit_of(&mut connection, "one"), Exit::code(4));
    // The order comes again, after a lost message; the share is not run again.
    connection.order(&order);
    assert_eq!(exit_of(&mut connection, "one"), Exit::code(4));
    assert_eq!(fs::read_to_string(&mark).unwrap(), "x\n");
    drop(connection);
    let mut connection = master.agent(600);
    assert_eq!(connection.hello.shares.len(), 1);
    assert_eq!(connection.hello.shares[0].exit, Some(Exit::code(4).into()));
    connection.order(&Order::Forget { share: share("one") });
    connection.order(&stop("one"));
    assert!(matches!(exit_of(&mut connection, "one"), Exit::Lost { why } if why.contains("does not know")));
    assert!(!state.join("shares/one").exists());
    connection.order(&start("two", "true", &[0, 7]));
    assert!(matches!(exit_of(&mut connection, "two"), Exit::Failed { why } if why.contains("slots")));
    connection.order(&start("../three", "true", &[0]));
    assert!(matches!(exit_of(&mut connection, "../three"), Exit::Failed { .. }));
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn tasks_outlive_an_agent_that_is_killed() {
    let (master, folder) = (Master::start(), tempfile::tempdir().unwrap());
    let agent = Agent::start(&master, folder.path(), &[]);
    let mut connection = master.agent(600);
    connection.order(&start("one", "echo began; sleep 1000", &[0]));
    assert!(matches!(connection.report(PATIENCE), Some(Report::Started { .. })));
    let second = Agent::start(&master, folder.path(), &[]).end();
    assert_eq!(second.0, Some(1));
    assert!(second.1.contains("another agent uses the state folder") && second.1.contains("hint:"), "{}", second.1);
    agent.signal(Signal::SIGKILL);
    drop(agent);
    drop(connection);
    let agent = Agent::start(&master, folder.path(), &[]);
    let mut connection = master.agent(600);
    assert_eq!(connection.hello.shares.len(), 1);
    assert_eq!(connection.hello.shares[0].exit, None);
    assert_eq!(connection.hello.shares[0].devices, [0]);
    connection.order(&stop("one"));
    assert_eq!(exit_of(&mut connection, "one"), Exit::Killed);
    drop(connection);
    drop(agent);
}

#[test]
fn an_interrupt_ends_the_tasks_and_a_termination_leaves_them() {
    for (signal, survives) in [(Signal::SIGINT, false), (Signal::SIGTERM, true)] {
        let (master, folder) = (Master::start(), tempfile::tempdir().unwrap());
        let agent = Agent::start(&master, folder.path(), &[]);
        let mut connection = master.agent(3);
        connection.order(&start("one", "sleep 1000", &[0]));
        assert!(matches!(connection.report(PATIENCE), Some(Report::Started { .. })));
        agent.signal(signal);
        if !survives {
            // The master hears of it before the agent goes.
            assert!(matches!(exit_of(&mut connection, "one"), Exit::Lost { .. }));
        }
        let (code, said) = agent.end();
        assert_eq!(code, Some(0), "{said}");
        let exit = folder.path().join("shares/one/exit.json");
        assert_eq!(said.contains("1 task still running; they stop 3 s after"), survives, "{said}");
        assert_eq!(exit.exists(), !survives);
        // Nobody comes back, so it ends by itself.
        let end = Instant::now() + PATIENCE;
        while !exit.exists() {
            assert!(Instant::now() < end, "the task runs on");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_refusal_is_final_and_says_why() {
    let (master, folder) = (Master::start(), tempfile::tempdir().unwrap());
    *master.refuses.lock().unwrap() = Some("no such token".to_owned());
    let (code, said) = Agent::start(&master, folder.path(), &[]).end();
    assert_eq!(code, Some(1));
    assert!(said.contains("refuses the token: no such token") && said.contains("hint:"), "{said}");
}

#[test]
fn a_master_that_is_not_there_is_said_once_and_waited_for() {
    let (mut gone, folder) = (Master::start(), tempfile::tempdir().unwrap());
    gone.address = "http://127.0.0.1:9".to_owned();
    let agent = Agent::start(&gone, folder.path(), &[]);
    std::thread::sleep(Duration::from_secs(3));
    agent.signal(Signal::SIGTERM);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0));
    assert_eq!(said.matches("cannot reach the master at http://127.0.0.1:9").count(), 1, "{said}");
}
