//! Workers that use the store through relays, and whoever should not.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use instep_policy::membership::{LauncherId, MembershipTerms, Quorum};
use instep_store::{Client, Server};

use super::StoreRelay;
use crate::console::Note;
use crate::control::token::JobToken;
use crate::coordinator::{Coordinator, CoordinatorSettings};
use crate::election::shared::SharedLeadership;
use crate::events::EventLog;

const TIMEOUT: Duration = Duration::from_secs(30);

fn token(digit: &str) -> JobToken {
    JobToken::parse(&digit.repeat(64)).expect("a token")
}

/// The server of the launcher that leads a job of two nodes.
fn leader() -> Server {
    let terms = MembershipTerms {
        min_nodes: 2,
        max_nodes: 2,
        fixed_ranks: true,
        max_restarts: 0,
        last_call: Duration::ZERO,
        join_timeout: TIMEOUT,
        max_changes: 0,
        settle: Duration::ZERO,
        rejoin_window: Duration::ZERO,
        fence: Duration::ZERO,
        quorum: Quorum::Majority,
        step_recovery: false,
    };
    let settings = CoordinatorSettings {
        run_id: "job".to_owned(),
        terms,
        host_token: 1,
        token: Some(token("a")),
        launcher: LauncherId(1),
        master_address: "localhost".to_owned(),
        master_port: 1,
        worker_serves_store: false,
        heartbeat: None,
        endpoint: None,
        leadership: Arc::new(SharedLeadership::default()),
        events: EventLog::default(),
    };
    let coordinator = Coordinator::new(settings, Instant::now());
    let listeners = instep_store::listen_loopback(0).expect("listen");
    Server::start(listeners, Some(Box::new(coordinator)), |_| {}).expect("a server")
}

fn relay(digit: &str, server: &Server) -> (StoreRelay, Receiver<Note>) {
    let (sender, notes) = channel();
    let relay = StoreRelay::start(token(digit), sender).expect("a relay");
    relay.set_upstream(SocketAddr::from(([127, 0, 0, 1], server.port())));
    (relay, notes)
}

fn worker(relay: &StoreRelay) -> Client {
    Client::connect(&relay.address().host, relay.address().port, TIMEOUT).expect("connected")
}

#[test]
fn workers_use_the_store_through_their_launcher() {
    let server = leader();
    let (relay, _notes) = relay("a", &server);
    let (mut one, mut other) = (worker(&relay), worker(&relay));
    one.set("key", b"value").expect("set");
    assert_eq!(other.get("key").expect("a value"), b"value");
    // As much as a value may be: more than the relay reads ahead.
    let large: Vec<u8> = (0..8 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    one.set("large", &large).expect("set");
    assert!(other.get("large").expect("a value") == large, "as it was sent");
    // Whoever waits is woken, over the connections of both.
    let waiting = std::thread::spawn(move || other.get("late").expect("a value"));
    one.set("late", b"now").expect("set");
    assert_eq!(waiting.join().expect("no panic"), b"now");
}

#[test]
fn a_worker_that_ends_is_gone_in_the_store_and_one_that_only_writes_is_heard() {
    let server = leader();
    let (relay, _notes) = relay("a", &server);
    let mut bytes = instep_store::protocol::HELLO.to_vec();
    instep_store::Request::Set { key: b"/last", value: b"words" }.encode(&mut bytes);
    let mut ending = TcpStream::connect(("127.0.0.1", relay.address().port)).expect("connected");
    ending.write_all(&bytes).expect("sent");
    // The rest of the stream must arrive before the worker counts as gone.
    let mut reader = worker(&relay);
    assert_eq!(reader.get("last").expect("a value"), b"words");
    ending.shutdown(Shutdown::Write).expect("half closed");
    ending.set_read_timeout(Some(TIMEOUT)).expect("socket option");
    assert_eq!(ending.read(&mut [0; 16]).expect("the relay closes"), 0);
}

#[test]
fn nobody_reaches_the_store_past_a_launcher_or_through_one_of_another_job() {
    let server = leader();
    let past = Client::connect("127.0.0.1", server.port(), Duration::from_secs(1));
    assert!(past.and_then(|mut client| client.get("key")).is_err(), "the port itself answers no store client");
    let (other, _notes) = relay("b", &server);
    let through = Client::connect("127.0.0.1", other.address().port, Duration::from_secs(1));
    assert!(through.and_then(|mut client| client.set("key", b"value")).is_err(), "another token");
    let (own, _notes) = relay("a", &server);
    assert_eq!(worker(&own).num_keys().expect("a number"), 0, "nothing was written");
}

#[test]
fn a_leader_that_is_gone_closes_its_workers_connections() {
    let server = leader();
    let (relay, _notes) = relay("a", &server);
    let mut client = worker(&relay);
    client.set("key", b"value").expect("set");
    server.shutdown();
    assert!(client.get("key").is_err());
    let next = leader();
    relay.set_upstream(SocketAddr::from(([127, 0, 0, 1], next.port())));
    assert_eq!(worker(&relay).num_keys().expect("a number"), 0, "the next leader's store");
}
