//! The server on real sockets: what clients see, whatever they do.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use instep_store::protocol::HELLO;
use instep_store::{
    Client, ClientId, Companion, Context, Error, Key, Limits, Notice, Request, Server, listen_loopback,
};

const DEADLINE: Duration = Duration::from_secs(20);

/// A server whose notices can be read.
struct Store {
    server: Server,
    notices: Receiver<String>,
}

impl Store {
    fn start() -> Store {
        Store::with(None)
    }

    fn with(companion: Option<Box<dyn Companion>>) -> Store {
        Store::bounded(Limits::default(), companion)
    }

    fn bounded(limits: Limits, companion: Option<Box<dyn Companion>>) -> Store {
        let (sender, notices) = channel();
        let notify = move |notice: Notice| sender.send(notice.to_string()).unwrap_or_default();
        let server = Server::start_with(limits, listen_loopback(0).unwrap(), companion, notify).unwrap();
        Store { server, notices }
    }

    fn client(&self) -> Client {
        Client::connect("127.0.0.1", self.server.port(), DEADLINE).unwrap()
    }

    /// A bare connection, past the hello.
    fn raw(&self) -> TcpStream {
        let mut stream = self.silent();
        stream.write_all(&HELLO).unwrap();
        stream
    }

    fn silent(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.server.port())).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    fn notice(&self) -> String {
        self.notices.recv_timeout(DEADLINE).unwrap()
    }
}

fn encoded(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Reads until the server has closed the connection.
fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the connection stayed open: {error}"),
    }
}

#[test]
fn every_operation_of_the_client_works() {
    let store = Store::start();
    for host in ["127.0.0.1", "localhost"] {
        let mut client = Client::connect(host, store.server.port(), DEADLINE).unwrap();
        client.set("k", b"v").unwrap();
        client.append("k", b"w").unwrap();
        assert_eq!(client.get("k").unwrap(), b"vw");
        assert_eq!(client.try_get("none").unwrap(), None);
        assert_eq!(client.try_get("k").unwrap(), Some(b"vw".to_vec()));
        assert_eq!(client.add("n", 40).unwrap(), 40);
        assert_eq!(client.add("n", 2).unwrap(), 42);
        assert_eq!(client.compare_set("c", b"", b"1").unwrap(), b"1");
        assert_eq!(client.compare_set("c", b"0", b"2").unwrap(), b"1");
        assert!(client.check(&["k".into(), "n".into()]).unwrap());
        assert!(!client.check(&["k".into(), "none".into()]).unwrap());
        client.wait(&["k".into(), "n".into()]).unwrap();
        client.multi_set(&[("x".into(), b"1".to_vec()), ("y".into(), vec![])]).unwrap();
        let values = client.multi_get(&["y".into(), "x".into()]).unwrap();
        assert_eq!(values, [b"".to_vec(), b"1".to_vec()]);
        assert_eq!(client.add(Key::raw("init/"), 1).unwrap(), 1);
        assert_eq!(client.num_keys().unwrap(), 6);
        let mut keys = client.list_keys().unwrap();
        keys.sort();
        assert_eq!(keys, [b"c", b"k", b"n", b"x", b"y"]);
        client.queue_push("q", b"item").unwrap();
        assert_eq!(client.queue_length("q").unwrap(), 1);
        assert_eq!(client.queue_pop("q").unwrap(), Some(b"item".to_vec()));
        assert_eq!(client.try_queue_pop("q").unwrap(), None);
        client.barrier("b", 1).unwrap();
        for key in ["k", "n", "c", "x", "y", "b"] {
            assert!(client.delete(key).unwrap());
        }
        assert!(client.delete(Key::raw("init/")).unwrap());
        assert!(!client.delete("k").unwrap());
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_however_they_are_cut() {
    let store = Store::start();
    let mut requests = Vec::new();
    let mut expected = Vec::new();
    for index in 1..=1000i64 {
        requests.push(Request::Set { key: b"/k", value: b"v" });
        requests.push(Request::Add { key: b"/n", delta: 1 });
        expected.extend_from_slice(&index.to_le_bytes());
    }
    let bytes = encoded(&requests);
    for piece in [1, 7, 4096, bytes.len()] {
        let mut stream = store.raw();
        let mut copy = stream.try_clone().unwrap();
        let bytes = bytes.clone();
        let writer = thread::spawn(move || bytes.chunks(piece).for_each(|piece| copy.write_all(piece).unwrap()));
        assert_eq!(read(&mut stream, expected.len()), expected, "{piece} bytes a write");
        writer.join().unwrap();
        store.client().delete("n").unwrap();
    }
}

#[test]
fn the_hello_may_arrive_byte_by_byte() {
    let store = Store::start();
    let mut stream = store.silent();
    for byte in HELLO {
        stream.write_all(&[byte]).unwrap();
        thread::yield_now();
    }
    stream.write_all(&encoded(&[Request::Ping { nonce: 7 }])).unwrap();
    assert_eq!(read(&mut stream, 4), 7u32.to_le_bytes());
}

#[test]
fn one_and_two_thousand_waiters_are_woken_by_one_set() {
    let store = Store::start();
    for count in [1, 2000] {
        let key = format!("/go/{count}");
        let wait = encoded(&[Request::Wait { keys: vec![key.as_bytes()] }, Request::Ping { nonce: 1 }]);
        let mut waiters: Vec<TcpStream> = (0..count).map(|_| store.raw()).collect();
        for waiter in &mut waiters {
            waiter.write_all(&wait).unwrap();
        }
        for waiter in &mut waiters {
            // The answer to the ping proves that the wait before it is registered.
            assert_eq!(read(waiter, 4), [1, 0, 0, 0]);
        }
        store.client().set(Key::raw(&key), b"").unwrap();
        for waiter in &mut waiters {
            assert_eq!(read(waiter, 1), [0]);
        }
    }
}

#[test]
fn a_wait_that_times_out_leaves_the_connection_usable() {
    let store = Store::start();
    let mut client = store.client();
    client.set_timeout(Duration::from_millis(50));
    let failure = client.get("never").unwrap_err();
    assert!(matches!(failure, Error::Timeout { .. }), "{failure}");
    assert_eq!(failure.to_string(), "the store did not have \"never\" within 50ms");
    let failure = client.barrier("alone", 2).unwrap_err();
    assert!(matches!(failure, Error::Timeout { .. }), "{failure}");
    client.set_timeout(DEADLINE);
    let mut asked = 0;
    let interrupt = move || {
        asked += 1;
        asked == 3
    };
    let mut interrupted = Client::connect_with("127.0.0.1", store.server.port(), DEADLINE, interrupt).unwrap();
    assert!(matches!(interrupted.get("never"), Err(Error::Interrupted)));
    assert_eq!(interrupted.num_keys().unwrap(), 1);
    let too_large = client.set("k".repeat(9000).as_str(), b"");
    assert!(matches!(too_large, Err(Error::TooLarge(_))), "{too_large:?}");
    // What arrives later belongs to nobody.
    let mut other = store.client();
    other.set("never", b"now").unwrap();
    assert_eq!(other.add("alone", 0).unwrap(), 1);
    assert_eq!(client.get("never").unwrap(), b"now");
}

#[test]
fn a_waiter_that_is_gone_is_forgotten() {
    let store = Store::start();
    let wait = encoded(&[Request::Wait { keys: vec![b"/k"] }, Request::Ping { nonce: 1 }]);
    let mut gone = store.raw();
    gone.write_all(&wait).unwrap();
    read(&mut gone, 4);
    drop(gone);
    let mut client = store.client();
    client.queue_push("k", b"for nobody").unwrap();
    assert_eq!(client.queue_length("k").unwrap(), 1);
    client.set("k", b"v").unwrap();
    assert_eq!(client.get("k").unwrap(), b"v");
}

#[test]
fn unknown_clients_and_protocol_violators_are_disconnected_and_named() {
    let store = Store::start();
    let hello = |rest: &[u8]| [&HELLO[..], rest].concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "not a store client, it began with \"GET / HTTP/1.1"),
        (b"\x03\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0".to_vec(), "older than 2.2"),
        (b"\x00\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v".to_vec(), "older than 2.2"),
        (hello(&[99]), "operation 99 is unknown"),
        (hello(&HELLO), "may only be the first"),
        (hello(&[3, 255, 255, 255, 255, 255, 255, 255, 255]), "over the limit of 8192"),
        (
            hello(&encoded(&[Request::Set { key: b"/t", value: b"text" }, Request::Add { key: b"/t", delta: 1 }])),
            "the value of \"/t\" is not one",
        ),
    ];
    for (bytes, reason) in cases {
        let mut stream = store.silent();
        stream.write_all(&bytes).unwrap();
        assert_eq!(read_to_end(&mut stream), b"");
        let notice = store.notice();
        assert!(notice.contains(reason), "{notice}");
    }
    // One that says nothing is no news.
    drop(store.silent());
    store.client().num_keys().unwrap();
    assert!(matches!(store.notices.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout)));
}

#[test]
fn answers_that_were_due_before_a_violation_still_arrive() {
    let store = Store::start();
    let mut stream = store.raw();
    stream.write_all(&encoded(&[Request::Ping { nonce: 5 }])).unwrap();
    assert_eq!(read(&mut stream, 4), 5u32.to_le_bytes());
    stream.write_all(&[encoded(&[Request::Ping { nonce: 6 }]), vec![200]].concat()).unwrap();
    assert_eq!(read_to_end(&mut stream), 6u32.to_le_bytes());
}

#[test]
fn a_slow_reader_holds_up_itself_alone() {
    const VALUE: usize = 1 << 20;
    const GETS: usize = 300;
    let store = Store::start();
    let mut client = store.client();
    client.set("large", &vec![7; VALUE]).unwrap();
    client.get("large").unwrap();
    let mut slow = store.raw();
    let gets = encoded(&vec![Request::Get { key: b"/large" }; GETS]);
    slow.write_all(&gets).unwrap();
    // 300 MiB are asked for and nothing is read; the others are served meanwhile.
    for round in 0..200 {
        assert_eq!(client.add("n", 1).unwrap(), round + 1);
    }
    for _ in 0..GETS {
        assert_eq!(read(&mut slow, 8), (VALUE as u64).to_le_bytes());
        assert!(read(&mut slow, VALUE).iter().all(|byte| *byte == 7));
    }
    slow.write_all(&encoded(&[Request::Ping { nonce: 3 }])).unwrap();
    assert_eq!(read(&mut slow, 4), 3u32.to_le_bytes());
}

#[test]
fn a_flood_of_pipelined_requests_is_answered_as_fast_as_it_is_read() {
    const COUNT: usize = 200_000;
    let store = Store::start();
    let mut stream = store.raw();
    let mut client = store.client();
    client.set("k", &[1; 100]).unwrap();
    client.get("k").unwrap();
    let mut copy = stream.try_clone().unwrap();
    let writer = thread::spawn(move || {
        let gets = encoded(&vec![Request::Get { key: b"/k" }; COUNT]);
        copy.write_all(&gets).unwrap();
    });
    let answer = read(&mut stream, 108);
    for _ in 1..COUNT {
        assert_eq!(read(&mut stream, 108), answer);
    }
    writer.join().unwrap();
}

#[test]
fn a_long_stream_of_sets_is_carried_out_in_order_and_what_follows_is_answered() {
    let store = Store::start();
    let mut client = store.client();
    for round in 0..20 {
        for number in 0..500 {
            client.set("key", format!("{round}/{number}").as_bytes()).expect("set");
        }
        assert_eq!(client.get("key").expect("get"), format!("{round}/499").as_bytes());
    }
}

#[test]
fn large_values_pass_whole() {
    let store = Store::start();
    let mut client = store.client();
    let value: Vec<u8> = (0..8 << 20).map(|index| (index % 251) as u8).collect();
    client.set("large", &value).unwrap();
    assert_eq!(client.get("large").unwrap(), value);
    let keys = vec![Key::from("large"); 4];
    assert!(client.multi_get(&keys).unwrap().iter().all(|found| *found == value));
}

#[test]
fn connecting_fails_with_the_cause_when_nobody_listens() {
    let port = listen_loopback(0).unwrap()[0].local_addr().unwrap().port();
    let began = Instant::now();
    let failure = Client::connect("127.0.0.1", port, Duration::from_millis(200)).unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(200));
    let Error::Connect { source, .. } = &failure else {
        panic!("{failure}");
    };
    assert_eq!(source.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_client_notices_that_the_server_is_gone() {
    let store = Store::start();
    let mut client = store.client();
    store.server.shutdown();
    let failure = client.num_keys().unwrap_err();
    assert!(matches!(failure, Error::Closed { .. }), "{failure}");
    assert!(matches!(client.num_keys(), Err(Error::Closed { .. })));
}

#[test]
fn a_restarted_server_gets_its_port_back() {
    let store = Store::start();
    let port = store.server.port();
    let mut client = store.client();
    client.set("k", b"v").unwrap();
    store.server.shutdown();
    drop(client);
    let server = Server::start(listen_loopback(port).unwrap(), None, |_| {}).unwrap();
    assert_eq!(server.port(), port);
}

/// Lines that start with `I`, sent back; some are commands to the store.
struct Echo {
    clients: Vec<ClientId>,
    ticks: u64,
}

impl Companion for Echo {
    fn claims(&self, first: u8) -> bool {
        first == b'I'
    }

    fn connected(&mut self, client: ClientId, _: SocketAddr, context: &mut Context<'_>) {
        self.clients.push(client);
        context.send(client, b"welcome\n".to_vec());
    }

    fn received(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> usize {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return 0;
        };
        match &bytes[..end] {
            b"I generation" => drop(context.begin_generation()),
            b"I set" => context.set(b"/from-companion", b"yes"),
            b"I add" => drop(context.add(b"/count", 2)),
            b"I close" => context.close(client),
            b"I stop" => context.stop(),
            _ => {}
        }
        context.send(client, bytes[..=end].to_vec());
        end + 1
    }

    fn closed(&mut self, client: ClientId, context: &mut Context<'_>) {
        self.clients.retain(|known| *known != client);
        context.set(b"/closed", client.0.to_string().as_bytes());
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Option<Instant> {
        self.ticks += 1;
        context.set(b"/ticks", self.ticks.to_string().as_bytes());
        Some(context.now + Duration::from_millis(10))
    }

    fn refuses(&mut self, request: &Request<'_>, _: SocketAddr) -> Option<String> {
        matches!(request, Request::Get { key: b"/secret" }).then(|| "not for you".to_owned())
    }
}

fn echo() -> Store {
    Store::with(Some(Box::new(Echo { clients: vec![], ticks: 0 })))
}

fn ask(stream: &mut TcpStream, line: &str) -> String {
    stream.write_all(line.as_bytes()).unwrap();
    String::from_utf8(read(stream, line.len())).unwrap()
}

#[test]
fn a_companion_shares_the_port() {
    let store = echo();
    let mut line = store.silent();
    line.write_all(b"I he").unwrap();
    assert_eq!(read(&mut line, 8), b"welcome\n");
    assert_eq!(ask(&mut line, "llo\n")[..], *"I he");
    assert_eq!(read(&mut line, 4), b"llo\n");

    // What it writes wakes store clients.
    let mut client = store.client();
    let mut raw = store.raw();
    raw.write_all(&encoded(&[Request::Wait { keys: vec![b"/from-companion"] }])).unwrap();
    assert_eq!(ask(&mut line, "I set\n"), "I set\n");
    assert_eq!(read(&mut raw, 1), [0]);
    assert_eq!(ask(&mut line, "I add\n"), "I add\n");
    assert_eq!(client.get("count").unwrap(), b"2");

    // Deadlines pass without any event.
    let ticks = |client: &mut Client| String::from_utf8(client.get("ticks").unwrap()).unwrap().parse::<u64>().unwrap();
    let before = ticks(&mut client);
    let began = Instant::now();
    while ticks(&mut client) < before + 20 {
        assert!(began.elapsed() < DEADLINE, "ticks stand still");
        thread::sleep(Duration::from_millis(5));
    }

    // New connections see a new generation.
    assert_eq!(ask(&mut line, "I generation\n"), "I generation\n");
    assert_eq!(client.try_get("from-companion").unwrap(), Some(b"yes".to_vec()));
    let mut newer = store.client();
    assert_eq!(newer.try_get("from-companion").unwrap(), None);

    drop(line);
    assert_eq!(newer.get("closed").unwrap(), b"0");
}

#[test]
fn a_companion_closes_refuses_and_stops() {
    let store = echo();
    let mut line = store.silent();
    line.write_all(b"I close\n").unwrap();
    assert_eq!(read_to_end(&mut line), b"welcome\n");

    let mut raw = store.raw();
    raw.write_all(&encoded(&[Request::Get { key: b"/secret" }])).unwrap();
    assert_eq!(read_to_end(&mut raw), b"");
    assert!(store.notice().ends_with("not for you"));

    // A message that never ends is cut off, and the companion is told.
    let mut endless = store.silent();
    let sent = endless.write_all(&vec![b'I'; 3 << 20]);
    drop(sent);
    read_to_end(&mut endless);
    assert!(store.notice().contains("more than 1048576 bytes"));
    assert_eq!(store.client().get("closed").unwrap(), b"2");

    let mut line = store.silent();
    line.write_all(b"I stop\n").unwrap();
    assert_eq!(read_to_end(&mut line), b"welcome\nI stop\n");
    store.server.join();
}

#[test]
#[ignore = "needs 20,000 open files; bench/store.py does the same with two processes"]
fn ten_thousand_connections_are_served() {
    let store = Store::start();
    let mut clients: Vec<Client> = (0..9_900).map(|_| store.client()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.add("n", 1).unwrap(), index as i64 + 1);
    }
}

#[test]
fn appending_cannot_pass_the_limit_of_a_value() {
    let store = Store::start();
    let mut client = store.client();
    let mib = vec![1; 1 << 20];
    for _ in 0..8 {
        client.append("k", &mib).unwrap();
    }
    assert_eq!(client.get("k").unwrap().len(), 8 << 20);
    // There is no reply to an append: the connection ends, as for every violation.
    client.append("k", b"x").unwrap();
    assert!(client.get("k").is_err());
    assert!(store.notice().ends_with("a value of 8388609 bytes is over the limit of 8388608"));
    assert_eq!(store.client().get("k").unwrap().len(), 8 << 20);
}

#[test]
fn what_all_clients_store_together_is_bounded() {
    let store = Store::bounded(Limits { stored: 1 << 20, ..Limits::default() }, None);
    let mut filling = store.client();
    let stored = (0..64).take_while(|key| {
        filling.set(format!("k{key}").as_str(), &[1; 64 << 10]).is_ok() && filling.check(&["k0".into()]).is_ok()
    });
    assert_eq!(stored.count(), 15);
    let notice = store.notice();
    assert!(notice.contains("all clients together would be over the limit of 1048576 bytes; delete keys"), "{notice}");
    // Others read, and make room.
    let mut other = store.client();
    assert_eq!(other.get("k14").unwrap().len(), 64 << 10);
    assert!(other.delete("k14").unwrap());
    other.set("k", b"v").unwrap();
    assert_eq!(other.get("k").unwrap(), b"v");
}

#[test]
fn requests_that_arrive_in_part_are_bounded_together() {
    let store = Store::bounded(Limits { incomplete: 4 << 20, ..Limits::default() }, None);
    let mut half = Vec::new();
    Request::Set { key: b"/k", value: &vec![1; 2 << 20] }.encode(&mut half);
    half.truncate(half.len() - 1);
    let mut sending: Vec<TcpStream> = (0..2).map(|_| store.raw()).collect();
    for stream in &mut sending {
        stream.write_all(&half).unwrap();
    }
    // The third is one too many, whichever of them is read last.
    let mut third = store.raw();
    let _ = third.write_all(&half);
    assert!(store.notice().contains("arrived in part are over the limit of 4194304 bytes together"));
    store.client().set("k", b"v").unwrap();
    assert_eq!(store.client().get("k").unwrap(), b"v");
}

#[test]
fn connections_are_bounded_and_closing_one_makes_room() {
    let store = Store::bounded(Limits { connections: 3, ..Limits::default() }, None);
    let mut clients: Vec<Client> = (0..3).map(|_| store.client()).collect();
    for client in &mut clients {
        client.add("n", 1).unwrap();
    }
    assert!(read_to_end(&mut store.silent()).is_empty());
    assert!(store.notice().ends_with("3 connections are open, which is the limit"));
    drop(clients.pop());
    let deadline = Instant::now() + DEADLINE;
    let joined =
        || Client::connect("127.0.0.1", store.server.port(), DEADLINE).and_then(|mut client| client.add("n", 1));
    while joined().is_err() {
        assert!(Instant::now() < deadline, "there is room");
    }
}

#[test]
fn half_requests_of_others_do_not_cost_a_rank_its_connection() {
    let store = Store::bounded(Limits { incomplete: 4 << 20, ..Limits::default() }, None);
    let mut half = Vec::new();
    Request::Set { key: b"/k", value: &[1; 1_900_000] }.encode(&mut half);
    half.truncate(half.len() - 1);
    let mut hoarding: Vec<TcpStream> = (0..2).map(|_| store.raw()).collect();
    for stream in &mut hoarding {
        stream.write_all(&half).unwrap();
    }
    let mut client = store.client();
    for round in 0..50 {
        client.set("k", &vec![round; 1 << 20]).unwrap();
        assert_eq!(client.get("k").unwrap(), vec![round; 1 << 20]);
    }
    let notice = store.notice();
    let named = |stream: &TcpStream| notice.contains(&format!("disconnected {}:", stream.local_addr().unwrap()));
    assert!(hoarding.iter().any(named), "{notice}");
}

#[test]
fn replies_that_nobody_reads_are_bounded_together() {
    let store = Store::bounded(Limits { unread: 4 << 20, ..Limits::default() }, None);
    let mut client = store.client();
    client.set("k", &[7; 4095]).unwrap();
    assert_eq!(client.get("k").unwrap(), [7; 4095]);
    // 134 MB, for one request of 360 KB.
    let mut hoarding = store.raw();
    hoarding.write_all(&encoded(&[Request::MultiGet { keys: vec![b"/k"; 32 << 10] }])).unwrap();
    let notice = store.notice();
    assert!(
        notice.ends_with("not read are over the limit of 4194304 bytes together; it has left the most"),
        "{notice}"
    );
    assert!(read_to_end(&mut hoarding).len() < 32 << 20);
    assert_eq!(client.get("k").unwrap(), [7; 4095]);
    // A list of keys is copied as a whole, for each who asks.
    let store = Store::bounded(Limits { request: 64 << 10, ..Limits::default() }, None);
    let mut client = store.client();
    let keys: Vec<String> = (10..20).map(|key| key.to_string().repeat(4000)).collect();
    keys.iter().for_each(|key| client.set(key.as_str(), b"").unwrap());
    assert!(client.list_keys().is_err());
    assert!(store.notice().ends_with("a reply of more than 65536 bytes is over the limit"));
}

#[test]
fn values_that_are_replaced_while_their_readers_are_slow_are_bounded_and_shared_ones_counted_once() {
    const VALUE: usize = 1 << 20;
    let store = Store::bounded(Limits { unread: 8 << 20, ..Limits::default() }, None);
    let mut client = store.client();
    let gets = encoded(&[Request::MultiGet { keys: vec![b"/k"; 16] }]);
    // 256 MiB are unread, of one value.
    client.set("k", &vec![100; VALUE]).unwrap();
    assert_eq!(client.get("k").unwrap(), vec![100; VALUE]);
    let mut slow: Vec<TcpStream> = (0..16).map(|_| store.raw()).collect();
    for stream in &mut slow {
        stream.write_all(&gets).unwrap();
        assert_eq!(read(stream, 8), (VALUE as u64).to_le_bytes());
    }
    for stream in &mut slow {
        assert_eq!(read(stream, 15 * 8 + 16 * VALUE).len(), 15 * 8 + 16 * VALUE);
    }
    assert!(matches!(store.notices.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout)));
    // Now of a value for each.
    for (round, stream) in (0..).zip(&mut slow) {
        client.set("k", &vec![round; VALUE]).unwrap();
        assert_eq!(client.get("k").unwrap(), vec![round; VALUE]);
        stream.write_all(&gets).unwrap();
        assert_eq!(read(stream, 8), (VALUE as u64).to_le_bytes());
    }
    assert!(store.notice().ends_with("over the limit of 8388608 bytes together; it has left the most"));
}

#[test]
fn whoever_says_nothing_makes_room_for_a_rank() {
    let store = Store::bounded(Limits { connections: 3, ..Limits::default() }, None);
    let silent = [store.silent(), store.silent()];
    let mut clients: Vec<Client> = (0..3).map(|_| store.client()).collect();
    for (before, client) in (0..).zip(&mut clients) {
        assert_eq!(client.add("n", 1).unwrap(), before + 1);
    }
    for mut stream in silent {
        let notice = store.notice();
        let peer = stream.local_addr().unwrap();
        assert!(notice.ends_with(&format!("{peer}: 3 connections are open, which is the limit")), "{notice}");
        assert!(read_to_end(&mut stream).is_empty());
    }
}
