//! The coordinator on real sockets: launchers that join, fail and finish, strangers, and torchrun's nodes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use instep_diagnosis::remote::NodeEvidence;
use instep_launch::control::token::JobToken;
use instep_launch::control::{self, FromCoordinator, Hello, Start, ToCoordinator, WireTerms};
use instep_launch::coordinator::{Coordinator, CoordinatorSettings};
use instep_launch::events::EventLog;
use instep_launch::failure::{ExitStatus, Failure};
use instep_policy::membership::{LauncherId, MembershipTerms, Quorum};
use instep_store::{Client, Notice, Server};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const TOKEN: u64 = 42;
static NEXT_LAUNCHER: AtomicU64 = AtomicU64::new(100);

pub(crate) fn terms(nodes: usize, max_restarts: u32, fixed_ranks: bool) -> MembershipTerms {
    MembershipTerms {
        min_nodes: nodes,
        max_nodes: nodes,
        fixed_ranks,
        max_restarts,
        last_call: Duration::from_secs(30),
        join_timeout: Duration::from_secs(60),
        max_changes: 10,
        settle: Duration::from_millis(100),
        rejoin_window: Duration::from_secs(1),
        fence: Duration::ZERO,
        quorum: Quorum::Majority,
        step_recovery: false,
    }
}

pub(crate) fn serve(terms: &MembershipTerms) -> Server {
    serve_with_notices(terms, None).0
}

/// The server, and what it tells the person who leads the job.
pub(crate) fn serve_with_notices(terms: &MembershipTerms, token: Option<JobToken>) -> (Server, Receiver<String>) {
    let listeners = instep_store::listen_loopback(0).expect("listen");
    let master_port = listeners[0].local_addr().expect("address").port();
    let settings = CoordinatorSettings {
        run_id: "job".to_owned(),
        terms: terms.clone(),
        host_token: TOKEN,
        token,
        launcher: LauncherId(TOKEN),
        master_address: "localhost".to_owned(),
        master_port,
        worker_serves_store: false,
        heartbeat: None,
        endpoint: None,
        leadership: Arc::default(),
        events: EventLog::default(),
    };
    let coordinator = Coordinator::new(settings, Instant::now());
    let (sender, notices) = channel();
    let notify = move |notice: Notice| sender.send(notice.to_string()).unwrap_or_default();
    (Server::start(listeners, Some(Box::new(coordinator)), notify).expect("serve"), notices)
}

/// What a node says of itself that fits the job.
pub(crate) fn hello(terms: &MembershipTerms) -> Hello {
    Hello {
        protocol: control::PROTOCOL,
        version: "0".to_owned(),
        run_id: "job".to_owned(),
        host_token: None,
        launcher: LauncherId(NEXT_LAUNCHER.fetch_add(1, Ordering::Relaxed)),
        last_round: None,
        votes: Vec::new(),
        busy: false,
        after_silence: false,
        standby_port: None,
        address: "a".to_owned(),
        process: 1,
        workers: 2,
        role: "default".to_owned(),
        node_rank: 0,
        spares: 0,
        stands_by: true,
        terms: WireTerms::from(terms),
    }
}

/// A launcher reduced to its connection.
pub(crate) struct Launcher {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Launcher {
    fn connect(server: &Server) -> Launcher {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("connect");
        stream.set_read_timeout(Some(TIMEOUT)).expect("socket option");
        let lines = BufReader::new(stream.try_clone().expect("clone"));
        Launcher { stream, lines }
    }

    pub(crate) fn join(server: &Server, terms: &MembershipTerms, change: impl FnOnce(&mut Hello)) -> Launcher {
        let mut launcher = Launcher::connect(server);
        let mut hello = hello(terms);
        change(&mut hello);
        launcher.say(&ToCoordinator::Hello(hello));
        launcher
    }

    pub(crate) fn say(&mut self, message: &ToCoordinator) {
        self.stream.write_all(&control::encode(message)).expect("send");
    }

    /// The next message that is not about waiting; `None` at the end of the connection.
    pub(crate) fn next_message(&mut self) -> Option<FromCoordinator> {
        std::iter::from_fn(|| self.any_message()).find(|message| !matches!(message, FromCoordinator::Waiting { .. }))
    }

    /// What is waited for, the next time that this is said.
    pub(crate) fn next_waiting(&mut self) -> Option<String> {
        std::iter::from_fn(|| self.any_message()).find_map(|message| match message {
            FromCoordinator::Waiting { reason } => Some(reason),
            _ => None,
        })
    }

    fn any_message(&mut self) -> Option<FromCoordinator> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).expect("an answer in time") == 0 {
            return None;
        }
        Some(serde_json::from_str(&line).expect("a message"))
    }

    pub(crate) fn welcome(mut self) -> Launcher {
        assert_eq!(self.next_message(), Some(FromCoordinator::Welcome {}));
        self
    }

    pub(crate) fn start(&mut self) -> Start {
        match self.next_message() {
            Some(FromCoordinator::Start(start)) => start,
            other => panic!("expected the start, heard {other:?}"),
        }
    }
}

pub(crate) fn failed_worker(rank: usize) -> Failure {
    Failure {
        rank,
        local_rank: 0,
        host: "b".to_owned(),
        pid: 9,
        exit: ExitStatus(3),
        time: 1.0,
        stopped: false,
        after_stop: false,
        blame: None,
        sentence: None,
        error_file: None,
        message: Some("ValueError: no".to_owned()),
        traceback: None,
        last_lines: Vec::new(),
    }
}

fn failure(rank: usize) -> ToCoordinator {
    ToCoordinator::Failed(Box::new(failed_worker(rank)))
}

#[test]
fn two_nodes_start_restart_on_clean_keys_and_complete() {
    let terms = terms(2, 1, false);
    let server = serve(&terms);
    let mut second = Launcher::join(&server, &terms, |hello| hello.address = "b".to_owned()).welcome();
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    let (a, b) = (first.start(), second.start());
    assert_eq!((a.group_rank, a.first_rank, a.world_size), (0, 0, 4), "the host is first whoever came first");
    assert_eq!((b.group_rank, b.first_rank, b.master_port), (1, 2, server.port()));
    assert!(a.secret.is_some() && a.secret == b.secret, "workers of all nodes know the same");

    let mut worker = Client::connect("127.0.0.1", server.port(), TIMEOUT).expect("worker of round 0");
    worker.set("key", b"old").expect("set");
    assert_eq!(worker.get("key").expect("get"), b"old");

    second.say(&failure(2));
    for launcher in [&mut first, &mut second] {
        let Some(FromCoordinator::Stop { reason, .. }) = launcher.next_message() else {
            panic!("expected to be stopped")
        };
        assert_eq!(reason, "rank 2 on b exited with code 3 (ValueError: no); restart 1 of 1");
        launcher.say(&ToCoordinator::Stopped {});
    }
    let (c, d) = (first.start(), second.start());
    assert_eq!((c.restarts, d.round), (1, 1));
    assert!(c.secret.is_some() && c.secret == d.secret && c.secret != a.secret, "a round has one of its own");
    let mut worker = Client::connect("127.0.0.1", server.port(), TIMEOUT).expect("worker of round 1");
    assert_eq!(worker.try_get("key").expect("try_get"), None, "keys of the dead round are invisible");

    first.say(&ToCoordinator::Finished {});
    second.say(&ToCoordinator::Finished {});
    assert_eq!(first.next_message(), Some(FromCoordinator::Complete {}));
    assert_eq!(second.next_message(), Some(FromCoordinator::Complete {}));
}

#[test]
fn every_node_hears_of_the_failure_that_ended_the_job() {
    let terms = terms(2, 0, false);
    let server = serve(&terms);
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    let mut second = Launcher::join(&server, &terms, |_| {}).welcome();
    first.start();
    second.start();
    second.say(&failure(2));
    let Some(FromCoordinator::Fail { failures, .. }) = first.next_message() else { panic!("expected the failure") };
    assert_eq!(failures[0].message.as_deref(), Some("ValueError: no"));
}

#[test]
fn what_all_nodes_see_of_a_hang_reaches_the_first_once() {
    let terms = terms(2, 0, false);
    let server = serve(&terms);
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    let mut second = Launcher::join(&server, &terms, |_| {}).welcome();
    first.start();
    second.start();
    second.say(&ToCoordinator::Overdue {});
    let asked = |launcher: &mut Launcher| match launcher.next_message() {
        Some(FromCoordinator::Diagnose(request)) => request,
        other => panic!("expected to be asked, heard {other:?}"),
    };
    let (one, two) = (asked(&mut first), asked(&mut second));
    assert_eq!((one.concludes_from, two.concludes_from), (Some(2), None));
    assert!(one.limit == two.limit && one.limit < control::MAX_LINE_BYTES);
    let number = one.number;
    let evidence = |host: &str| Box::new(NodeEvidence::within(one.limit, host, &[], 7, &|_, _| None));
    // Not one that was asked for, then the answer, then once more, and a second question too soon after the first.
    second.say(&ToCoordinator::Evidence { number: number + 1, evidence: evidence("another") });
    second.say(&ToCoordinator::Evidence { number, evidence: evidence("b") });
    second.say(&ToCoordinator::Evidence { number, evidence: evidence("again") });
    second.say(&ToCoordinator::Overdue {});
    second.say(&ToCoordinator::Finished {});
    assert_eq!(first.next_message(), Some(FromCoordinator::Evidence { number, evidence: evidence("b") }));
    first.say(&ToCoordinator::Evidence { number, evidence: evidence("a") });
    assert_eq!(first.next_message(), Some(FromCoordinator::Evidence { number, evidence: evidence("a") }));
    first.say(&ToCoordinator::Finished {});
    assert_eq!(first.next_message(), Some(FromCoordinator::Complete {}));
    assert_eq!(second.next_message(), Some(FromCoordinator::Complete {}));
}

#[test]
fn a_broken_connection_is_noticed_at_once() {
    let terms = terms(2, 0, false);
    let server = serve(&terms);
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    let second = Launcher::join(&server, &terms, |hello| hello.address = "b".to_owned()).welcome();
    first.start();
    drop(second);
    let Some(FromCoordinator::Fail { reason, .. }) = first.next_message() else { panic!("expected the loss") };
    assert!(reason.starts_with("node b (pid 1) was lost: its connection broke"), "{reason}");
}

#[test]
fn a_node_that_does_not_fit_learns_nothing_of_the_job_and_its_leader_learns_why() {
    let terms = terms(2, 0, false);
    let (server, notices) = serve_with_notices(&terms, None);
    type Case = (fn(&mut Hello), &'static str);
    let cases: [Case; 5] = [
        (|hello| hello.protocol = 99, "it runs instep 0, this node "),
        (|hello| hello.run_id = "other".to_owned(), "it wants job \"other\", this one is \"job\""),
        (|hello| hello.terms.max_nodes = 3, "the job was started with --nnodes 2, that node with --nnodes 2:3"),
        (|hello| hello.terms.max_restarts = 5, "--max-restarts 0, that node with --max-restarts 5"),
        (|hello| hello.terms.step_recovery = true, "--recover round, that node with --recover step"),
    ];
    for (change, expected) in cases {
        let Some(FromCoordinator::Refused { reason }) = Launcher::join(&server, &terms, change).next_message() else {
            panic!("expected a refusal")
        };
        assert_eq!(reason, "its job token, job id, options or version of instep are not those of the job");
        let notice = notices.recv_timeout(TIMEOUT).expect("told");
        assert!(notice.starts_with("refused ") && notice.contains(": a (pid 1): "), "{notice}");
        assert!(notice.contains(expected), "{notice}");
    }
}

#[test]
fn hostile_names_cannot_move_the_cursor_or_fill_the_screen() {
    let terms = terms(2, 0, false);
    let (server, notices) = serve_with_notices(&terms, None);
    let hostile = |hello: &mut Hello| {
        hello.address = format!("x\u{1b}[2J\u{9b}31m\nerror: owned{}", "y".repeat(100_000));
        hello.run_id = "\u{7}other".to_owned();
    };
    assert!(matches!(Launcher::join(&server, &terms, hostile).next_message(), Some(FromCoordinator::Refused { .. })));
    let notice = notices.recv_timeout(TIMEOUT).expect("told");
    assert!(!notice.chars().any(char::is_control) && notice.len() < 600, "{notice}");
    // Nor those of a node that is in: the others are told of it.
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    let second = Launcher::join(&server, &terms, |hello| hello.address = "b\u{1b}[2J".to_owned()).welcome();
    first.start();
    drop(second);
    let Some(FromCoordinator::Fail { reason, .. }) = first.next_message() else { panic!("expected the loss") };
    assert!(reason.starts_with("node b [2J (pid 1) was lost"), "{reason}");
}

#[test]
fn unknown_clients_and_garbage_do_not_disturb_the_job() {
    let terms = terms(1, 0, false);
    let server = serve(&terms);
    for garbage in [&b"{\n"[..], b"{\"hello\": 7}\n", b"{\"finished\":{}}\n", b"{\"hello\":{}}\n{\"hello\":{}}\n"] {
        let mut not_a_coordinator = Launcher::connect(&server);
        not_a_coordinator.stream.write_all(garbage).expect("send");
        assert_eq!(not_a_coordinator.next_message(), None, "{}", garbage.escape_ascii());
    }
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    first.start();
}

#[test]
fn torchruns_dynamic_rendezvous_is_refused() {
    let server = serve(&terms(2, 0, false));
    let mut foreign = Client::connect("127.0.0.1", server.port(), TIMEOUT).expect("connect");
    assert!(foreign.compare_set("torch.rendezvous.job", b"", b"x").is_err());
}

#[test]
fn a_static_job_is_shared_with_torchrun() {
    let terms = terms(2, 0, true);
    let server = serve(&terms);
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    // What torchrun's node 1 does, key by key.
    let mut foreign = Client::connect("127.0.0.1", server.port(), TIMEOUT).expect("connect");
    let info = br#"{"role": "default", "rank": 1, "local_world_size": 3}"#;
    foreign.set("job/torchelastic/role_info/1", info).expect("set");
    assert_eq!(foreign.get("job/torchelastic/assigned_ranks/1").expect("ranks"), b"[2, 5, 2, 5]");
    let start = first.start();
    assert_eq!((start.world_size, start.secret), (5, None), "torchrun's workers could not be given a secret");
    first.say(&ToCoordinator::Finished {});
    assert_eq!(foreign.get("job/torchelastic/agent/terminal_state/num_members").expect("our count"), b"1");
    assert_eq!(foreign.add("job/torchelastic/agent/terminal_state/num_members", 1).expect("add"), 2);
    foreign.set("job/torchelastic/agent/terminal_state/last_member", b"1").expect("set");
    assert_eq!(first.next_message(), Some(FromCoordinator::Complete {}));
}

#[test]
fn a_static_job_of_our_nodes_does_not_look_for_torchrun_after_its_start() {
    let terms = terms(2, 1, true);
    let server = serve(&terms);
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    let second = |hello: &mut Hello| hello.node_rank = 1;
    let mut lost = Launcher::join(&server, &terms, second).welcome();
    assert_eq!((first.start().round, lost.start().round), (0, 0));
    drop(lost);
    assert!(matches!(first.next_message(), Some(FromCoordinator::Stop { .. })));
    first.say(&ToCoordinator::Stopped {});

    let mut foreign = Client::connect("127.0.0.1", server.port(), TIMEOUT).expect("connect");
    let info = br#"{"role": "default", "rank": 1, "local_world_size": 2}"#;
    foreign.set("job/torchelastic/role_info/1", info).expect("set");
    // Long enough to be noticed several times over, if anybody looked.
    foreign.set_timeout(Duration::from_millis(300));
    assert!(foreign.get("job/torchelastic/assigned_ranks/1").is_err());

    let mut replacement = Launcher::join(&server, &terms, second).welcome();
    assert_eq!((first.start().round, replacement.start().round), (1, 1));
}

/// So many launchers' worth of traffic over real sockets: all say hello at once, and all hear of the round.
fn meet(nodes: usize) -> Duration {
    let mut terms = terms(nodes, 0, false);
    terms.max_nodes = nodes + 1;
    terms.last_call = Duration::from_millis(1);
    let server = serve(&terms);
    let began = Instant::now();
    let mut launchers: Vec<Launcher> = (0..nodes)
        .map(|number| {
            Launcher::join(&server, &terms, |hello| {
                hello.address = format!("node{number}");
                hello.host_token = (number == 0).then_some(TOKEN);
                hello.standby_port = Some(1);
            })
        })
        .collect();
    let mut ranks = Vec::new();
    for launcher in &mut launchers {
        assert_eq!(launcher.next_message(), Some(FromCoordinator::Welcome {}));
        ranks.push(launcher.start().group_rank);
    }
    ranks.sort_unstable();
    assert_eq!(ranks, (0..nodes).collect::<Vec<_>>());
    began.elapsed()
}

#[test]
fn a_hundred_launchers_join_one_job() {
    meet(100);
}

#[test]
#[ignore = "measures: run it alone, with --nocapture"]
fn a_thousand_launchers_meet_within_five_seconds() {
    let took = meet(1000);
    println!("1000 launchers met in {:.2} s", took.as_secs_f64());
    assert!(took < Duration::from_secs(5), "{took:?}");
}
