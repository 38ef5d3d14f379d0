//! Generations on real sockets: what the coordinator tells launchers and writes for ranks, and what it believes of them.

use instep_launch::control::{FromCoordinator, Hello, LostWorker, MovedRank, Replace, ToCoordinator};
use instep_launch::failure::{ExitStatus, Failure};
use instep_policy::membership::MembershipTerms;
use instep_store::{Client, Server};
use serde_json::{Value, json};

use crate::coordinator::{Launcher, TIMEOUT, TOKEN, failed_worker, serve, terms};

/// Two nodes of two ranks each, of which these have a session.
struct Job {
    first: Launcher,
    second: Launcher,
    ranks: Client,
    _server: Server,
}

impl Job {
    fn start(terms: &MembershipTerms, sessions: &[usize]) -> Job {
        Job::with_spares(terms, sessions, 0)
    }

    /// The first node has so many spares.
    fn with_spares(terms: &MembershipTerms, sessions: &[usize], spares: usize) -> Job {
        let server = serve(terms);
        let join = |change: &dyn Fn(&mut Hello)| Launcher::join(&server, terms, change).welcome();
        let mut first = join(&|hello| (hello.host_token, hello.spares) = (Some(TOKEN), spares));
        let mut second = join(&|hello| (hello.node_rank, hello.address) = (1, "b".to_owned()));
        assert_eq!((first.start().first_rank, second.start().first_rank), (0, 2));
        let mut ranks = Client::connect("127.0.0.1", server.port(), TIMEOUT).expect("connect");
        for rank in sessions {
            ranks.set(&format!("instep/recovery/session/{rank}"), b"0").expect("set");
        }
        Job { first, second, ranks, _server: server }
    }

    /// The second node loses a worker.
    fn lose(&mut self, rank: usize, incarnation: u32, exit: i32) {
        let failure = Failure { exit: ExitStatus(exit), message: None, ..failed_worker(rank) };
        self.second.say(&ToCoordinator::Lost { workers: vec![LostWorker { incarnation, hung: false, failure }] });
    }

    /// Both nodes are told the same.
    fn told(&mut self) -> FromCoordinator {
        let heard = self.first.next_message().expect("a message");
        assert_eq!(self.second.next_message().as_ref(), Some(&heard));
        heard
    }

    fn replaced(&mut self) -> Replace {
        match self.told() {
            FromCoordinator::Replace(replace) => *replace,
            other => panic!("expected a replacement, heard {other:?}"),
        }
    }

    fn published(&mut self, key: &str) -> Value {
        let value = self.ranks.get(&format!("instep/recovery/{key}")).expect("published");
        serde_json::from_slice(&value).expect("JSON")
    }
}

fn recovering(max_restarts: u32) -> MembershipTerms {
    MembershipTerms { step_recovery: true, ..terms(2, max_restarts, true) }
}

#[test]
fn generations_are_published_for_ranks_and_ordered_from_launchers() {
    let mut job = Job::start(&recovering(1), &[0, 1, 2, 3]);
    job.lose(3, 0, -9);
    let reason = "rank 3 on b was killed by SIGKILL";
    let first = json!({"generation": 1, "lost": [3], "incarnations": {"3": 1}, "reason": reason});
    assert_eq!(job.published("generation/1"), first);
    assert_eq!(job.published("latest"), first);
    let replace = job.replaced();
    assert_eq!((replace.generation, replace.incarnations.into_iter().collect()), (1, vec![(3, 1)]));
    assert_eq!(replace.lost[0].last_lines, Vec::<String>::new(), "what it wrote stays on its node");

    job.ranks.set("instep/recovery/resumed/1", br#"{"step": 17}"#).expect("set");
    assert!(matches!(job.told(), FromCoordinator::Recovered { generation: 1, step: 17, .. }));
    job.lose(2, 0, -9);
    let second = json!({"generation": 2, "lost": [2], "incarnations": {"2": 1, "3": 1},
        "reason": "rank 2 on b was killed by SIGKILL"});
    assert_eq!(job.published("generation/2"), second);
    assert_eq!(job.published("generation/1"), first);
    job.replaced();
}

#[test]
fn ranks_that_the_others_wait_for_are_named() {
    let mut job = Job::start(&recovering(1), &[0, 1, 2, 3]);
    job.lose(3, 0, -9);
    job.replaced();
    for rank in [0, 2] {
        job.ranks.set(&format!("instep/recovery/connecting/1/{rank}"), b"1").expect("set");
    }
    let whom = "the others wait for ranks 1,3: starting, or still computing; see `instep diagnose`";
    let said = format!("not recovered after 10 s (generation 1): {whom}");
    assert_eq!(job.second.next_waiting(), Some(said));
}

#[test]
fn ranks_are_told_before_the_stop_that_a_generation_is_abandoned() {
    let mut job = Job::start(&recovering(1), &[0, 1, 3]);
    job.lose(3, 0, -9);
    let why = "rank 3 on b was killed by SIGKILL: rank 2 has no instep.elastic.Session, so all workers restart";
    let reason = format!("{why}; restart 1 of 1");
    assert_eq!(job.published("generation/1"), json!({"generation": 1, "abandoned": reason}));
    assert_eq!(job.told(), FromCoordinator::Stop { reason, at_once: false });
}

#[test]
fn ranks_of_a_lost_node_move_to_one_with_spares() {
    let Job { mut first, second, mut ranks, _server } = Job::with_spares(&recovering(1), &[0, 1, 2, 3], 2);
    drop(second);
    let Some(FromCoordinator::Replace(replace)) = first.next_message() else { panic!("expected a replacement") };
    assert_eq!((replace.generation, replace.incarnations.into_iter().collect()), (1, vec![(2, 1), (3, 1)]));
    assert_eq!(replace.reason, "node b (pid 1) was lost: its connection broke");
    let told =
        |moved: &MovedRank| (moved.rank, moved.local_rank, moved.local_world_size, moved.group_rank, moved.role_rank);
    assert_eq!(replace.moved.iter().map(told).collect::<Vec<_>>(), [(2, 0, 2, 1, 2), (3, 1, 2, 1, 3)]);
    assert!(replace.moved.iter().all(|moved| moved.address == "a"));
    ranks.set("instep/recovery/resumed/1", br#"{"step": 17}"#).expect("set");
    assert!(matches!(first.next_message(), Some(FromCoordinator::Recovered { generation: 1, step: 17, .. })));
    let ends = (0..4).map(|rank| Failure { exit: ExitStatus(0), ..failed_worker(rank) }).collect();
    first.say(&ToCoordinator::RanksFinished { ends });
    first.say(&ToCoordinator::Finished {});
    assert_eq!(first.next_message(), Some(FromCoordinator::Complete {}), "the lost node is not waited for");
}

#[test]
fn without_spares_for_all_ranks_of_a_lost_node_all_workers_restart() {
    let Job { mut first, second, mut ranks, _server } = Job::with_spares(&recovering(1), &[0, 1, 2, 3], 1);
    drop(second);
    let reason = "node b (pid 1) was lost: its connection broke: the other nodes are 1 spare short (--spares), so all workers \
                  restart; restart 1 of 1";
    assert_eq!(first.next_message(), Some(FromCoordinator::Stop { reason: reason.to_owned(), at_once: false }));
    let value = ranks.get("instep/recovery/generation/1").expect("published");
    assert!(String::from_utf8_lossy(&value).contains("abandoned"));
}

#[test]
fn a_node_that_is_started_in_place_of_a_lost_one_stands_by() {
    let terms = recovering(1);
    let Job { mut first, second, ranks: _ranks, _server } = Job::with_spares(&terms, &[0, 1, 2, 3], 2);
    drop(second);
    assert!(matches!(first.next_message(), Some(FromCoordinator::Replace(_))));
    let mut third = Launcher::join(&_server, &terms, |hello| hello.node_rank = 1).welcome();
    let Some(FromCoordinator::StandBy(start)) = third.next_message() else {
        panic!("expected what the ranks were told")
    };
    assert_eq!((start.world_size, start.first_rank), (4, 4), "it has no ranks of its own");
    first.say(&ToCoordinator::Finished {});
    assert_eq!(third.next_message(), Some(FromCoordinator::Complete {}));
}

#[test]
fn what_ranks_write_is_not_trusted() {
    let mut job = Job::start(&recovering(0), &[0, 1, 2, 3]);
    job.lose(3, 0, 1);
    job.replaced();
    let long = format!("{{\"step\": 1{}}}", " ".repeat(2000));
    for wrong in ["", "17", "{}", "{\"step\": -1}", "{\"step\": \"1\"}", "[[[[", long.as_str()] {
        job.ranks.set("instep/recovery/resumed/1", wrong.as_bytes()).expect("set");
    }
    job.ranks.set("instep/recovery/resumed/1", br#"{"step": 17, "more": 1}"#).expect("set");
    assert!(matches!(job.told(), FromCoordinator::Recovered { step: 17, .. }), "the first that can be read");
}

#[test]
fn a_rank_that_fails_twice_in_one_step_ends_the_job_with_what_it_wrote() {
    let mut job = Job::start(&recovering(3), &[0, 1, 2, 3]);
    for generation in 1..=2 {
        job.lose(3, generation - 1, 1);
        job.replaced();
        job.ranks.set(&format!("instep/recovery/resumed/{generation}"), br#"{"step": 17}"#).expect("set");
        assert!(matches!(job.told(), FromCoordinator::Recovered { .. }));
    }
    let FromCoordinator::Fail { reason, failures } = job.told() else { panic!("expected the end") };
    assert_eq!(reason, "rank 3 failed twice in step 17: rank 3 on b exited with code 1");
    assert_eq!(failures.iter().map(|failure| failure.rank).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_rank_that_says_in_which_step_it_fails_is_replaced_once() {
    let mut job = Job::start(&recovering(3), &[0, 1, 2, 3]);
    for wrong in ["", "17", "{\"incarnation\": 9, \"step\": 17}"] {
        job.ranks.set("instep/recovery/failed/3", wrong.as_bytes()).expect("set");
    }
    job.ranks.set("instep/recovery/failed/3", br#"{"incarnation": 0, "step": 17}"#).expect("set");
    job.lose(3, 0, 1);
    job.replaced();
    job.ranks.set("instep/recovery/resumed/1", br#"{"step": 17}"#).expect("set");
    assert!(matches!(job.told(), FromCoordinator::Recovered { .. }));
    job.ranks.set("instep/recovery/failed/3", br#"{"incarnation": 1, "step": 17}"#).expect("set");
    job.lose(3, 1, 1);
    let FromCoordinator::Fail { reason, .. } = job.told() else { panic!("expected the end") };
    assert_eq!(reason, "rank 3 failed twice in step 17: rank 3 on b exited with code 1");
}

#[test]
fn a_session_that_is_used_wrongly_ends_the_job_without_a_replacement() {
    for message in ["instep.errors.SessionMisuse: no", "SessionMisuse: no"] {
        let mut job = Job::start(&recovering(3), &[0, 1, 2, 3]);
        let failure = Failure { message: Some(message.to_owned()), ..failed_worker(3) };
        let worker = LostWorker { incarnation: 0, hung: false, failure };
        job.second.say(&ToCoordinator::Lost { workers: vec![worker] });
        let FromCoordinator::Fail { reason, failures } = job.told() else { panic!("expected the end") };
        assert!(reason.contains("SessionMisuse: no): the script uses its session wrongly"), "{reason}");
        assert_eq!(failures.iter().map(|failure| failure.rank).collect::<Vec<_>>(), [3]);
    }
}

#[test]
fn a_rank_that_cannot_recover_has_all_restart_before_it_ends() {
    let mut job = Job::start(&recovering(1), &[0, 1, 2, 3]);
    job.lose(3, 0, -9);
    job.replaced();
    job.ranks.set("instep/recovery/impossible", b"rank 0 waited 30 s for rank 3").expect("set");
    let why = "rank 3 on b was killed by SIGKILL: rank 0 waited 30 s for rank 3, so all workers restart";
    let reason = format!("{why}; restart 1 of 1");
    assert_eq!(job.told(), FromCoordinator::Stop { reason, at_once: false });
}

#[test]
fn a_rank_that_ends_with_0_while_another_waits_is_the_cause() {
    let mut job = Job::start(&recovering(0), &[0, 1, 2, 3]);
    job.ranks.set("instep/recovery/waiting", br#"{"rank": 0, "generation": 1}"#).expect("set");
    let end = Failure { exit: ExitStatus(0), ..failed_worker(3) };
    job.second.say(&ToCoordinator::RanksFinished { ends: vec![end] });
    let FromCoordinator::Fail { reason, failures } = job.told() else { panic!("expected the end") };
    let why = "rank 3 ended with exit code 0 while rank 0 was training, so all workers restart";
    assert_eq!(reason, format!("{why}; restarts are off (--max-restarts 0)"));
    let said = failures.iter().map(|failure| (failure.rank, failure.describe())).collect::<Vec<_>>();
    assert_eq!(said, [(3, why.to_owned())]);
}

#[test]
fn a_rank_that_hangs_is_killed_where_all_have_a_session() {
    let hung = |rank| ToCoordinator::Hung { rank, incarnation: 0 };
    let mut job = Job::start(&recovering(1), &[0, 1, 2]);
    job.second.say(&hung(2));
    job.second.say(&ToCoordinator::Ping { at: 1 });
    assert_eq!(job.second.next_message(), Some(FromCoordinator::Ping { at: 1 }), "nothing is said of rank 2");
    job.ranks.set("instep/recovery/session/3", b"0").expect("set");
    job.second.say(&hung(3));
    assert_eq!(job.second.next_message(), Some(FromCoordinator::Kill { rank: 3, incarnation: 0 }));
}

#[test]
fn a_node_of_torchrun_is_refused_by_name() {
    let terms = recovering(0);
    let server = serve(&terms);
    let mut first = Launcher::join(&server, &terms, |hello| hello.host_token = Some(TOKEN)).welcome();
    let mut foreign = Client::connect("127.0.0.1", server.port(), TIMEOUT).expect("connect");
    let info = br#"{"role": "default", "rank": 1, "local_world_size": 2}"#;
    foreign.set("job/torchelastic/role_info/1", info).expect("set");
    let Some(FromCoordinator::Fail { reason, .. }) = first.next_message() else { panic!("expected the end") };
    assert!(
        reason.starts_with("node 1 (torchrun) cannot replace single ranks (--recover step): run instep"),
        "{reason}"
    );
}
