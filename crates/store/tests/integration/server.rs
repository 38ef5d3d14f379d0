//! The server on real sockets: what clients see, whatever they do.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use instep_store::protocol::HELLO;
use instep_store::{Client, ClientId, Companion, Context, Error, Key, Notice, Request, Server, listen_loopback};

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
        let (sender, notices) = channel();
        let notify = move |notice: Notice| sender.send(notice.to_string()).unwrap_or_default();
        let server = Server::start(listen_loopback(0).unwrap(), companion, notify).unwrap();
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
