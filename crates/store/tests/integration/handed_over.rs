//! Clients whose connections a companion claims, and hands over to the store behind an envelope.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use instep_store::protocol::HELLO;
use instep_store::{Client, ClientId, Companion, Context, Envelope, Limits, Request, Server, listen_loopback};

const DEADLINE: Duration = Duration::from_secs(20);

/// Claims everybody, and hands over whoever says `password`; what follows is the complement of what is meant.
struct Gate;

struct Complement;

impl Envelope for Complement {
    fn open(&mut self, arrived: &[u8], opened: &mut Vec<u8>) -> io::Result<usize> {
        if arrived.contains(&b'!') {
            return Err(io::Error::other("not genuine"));
        }
        opened.extend(arrived.iter().map(|byte| !byte));
        Ok(arrived.len())
    }

    fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        sealed.extend(plain.iter().map(|byte| !byte));
        Ok(())
    }
}

impl Companion for Gate {
    fn claims(&self, _: u8) -> bool {
        true
    }

    fn connected(&mut self, _: ClientId, _: SocketAddr, _: &mut Context<'_>) {}

    fn received(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> usize {
        match bytes.strip_prefix(b"password") {
            Some(_) => {
                context.serve_store(client, Box::new(Complement), Vec::new());
                b"password".len()
            }
            None if b"password".starts_with(bytes) => 0,
            None => {
                context.close(client);
                bytes.len()
            }
        }
    }

    fn closed(&mut self, _: ClientId, context: &mut Context<'_>) {
        context.set(b"/closed", b"a companion's");
    }

    fn tick(&mut self, _: &mut Context<'_>) -> Option<Instant> {
        None
    }
}

fn server(limits: Limits) -> Server {
    Server::start_with(limits, listen_loopback(0).unwrap(), Some(Box::new(Gate)), |_| {}).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn complement(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

fn requests(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = HELLO.to_vec();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    complement(&bytes)
}

fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    complement(&bytes)
}

#[test]
fn what_a_client_says_and_hears_goes_through_the_envelope() {
    let server = server(Limits::default());
    let (get, ping) = (Request::Get { key: b"/k" }, Request::Ping { nonce: 7 });
    let set = requests(&[Request::Set { key: b"/k", value: &[b'v'; 3 << 20] }, get, ping]);
    // Together with the password, and byte by byte at first.
    for pause in [0, 20] {
        let mut stream = connect(&server);
        let bytes = [b"password", &set[..]].concat();
        for byte in &bytes[..pause] {
            stream.write_all(&[*byte]).unwrap();
            std::thread::yield_now();
        }
        // Larger than what may be unsent: the ping behind it waits until it has been read.
        stream.write_all(&bytes[pause..]).unwrap();
        assert_eq!(read(&mut stream, 8), (3u64 << 20).to_le_bytes());
        assert!(read(&mut stream, 3 << 20).iter().all(|byte| *byte == b'v'));
        assert_eq!(read(&mut stream, 4), 7u32.to_le_bytes());
    }
}

#[test]
fn nobody_else_reaches_a_store_that_its_companion_keeps() {
    let server = server(Limits::default());
    assert!(
        Client::connect("127.0.0.1", server.port(), Duration::from_secs(1))
            .and_then(|mut client| client.num_keys())
            .is_err()
    );
    let mut inside = connect(&server);
    inside.write_all(&[b"password", &requests(&[Request::Check { keys: vec![b"/closed"] }])[..]].concat()).unwrap();
    assert_eq!(read(&mut inside, 1), [1], "whoever is closed by the companion is not told to it");
    // What is not genuine ends the connection, and so does what is no client of the store.
    for bytes in [&b"password!"[..], b"password", &[b"password", &complement(b"GET / HTTP/1.1")[..]].concat()] {
        let mut stream = connect(&server);
        stream.write_all(bytes).unwrap();
        if bytes == b"password" {
            drop(stream);
            continue;
        }
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        assert_eq!(heard, b"", "{}", bytes.escape_ascii());
    }
    // Clients that were handed over are no longer the companion's when they go.
    inside
        .write_all(&complement(&{
            let mut bytes = Vec::new();
            Request::Check { keys: vec![b"/closed"] }.encode(&mut bytes);
            bytes
        }))
        .unwrap();
    assert_eq!(read(&mut inside, 1), [1]);
}

#[test]
fn what_was_opened_and_is_not_complete_is_bounded() {
    let server = server(Limits { incomplete: 1 << 20, ..Limits::default() });
    let mut hoarder = connect(&server);
    let mut bytes = HELLO.to_vec();
    Request::Set { key: b"/k", value: &vec![0; 8 << 20] }.encode(&mut bytes);
    let half = complement(&bytes[..4 << 20]);
    let _ = hoarder.write_all(&[b"password", &half[..]].concat());
    let mut heard = Vec::new();
    let _ = hoarder.read_to_end(&mut heard);
    assert_eq!(heard, b"", "it was disconnected, and not served");
    let mut client = connect(&server);
    client.write_all(&[b"password", &requests(&[Request::Ping { nonce: 1 }])[..]].concat()).unwrap();
    assert_eq!(read(&mut client, 4), 1u32.to_le_bytes());
}
