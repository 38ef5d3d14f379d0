//! Who is let in at the ports of ranks: strangers that replay, guess, stop half-way or say nothing are not.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]
#![expect(unsafe_code, reason = "messages are given raw memory")]

mod ranks;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use instep_collectives::{Bound, Group, Options, Rank, Secret, Source, Target};
use ranks::middle::{Middle, message_port, with_message_port};
use ranks::{PATIENCE, options};

/// Waits until the other side hangs up.
fn is_hung_up_on(stranger: &mut TcpStream) -> bool {
    stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut rest = Vec::new();
    match stranger.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn bound(host: &str) -> Bound {
    let secret = Some(Secret::new("of the job"));
    let bound = Group::bind(Options { island: Some(host.to_owned()), secret, ..options(false) }).unwrap();
    bound.open_to_network().unwrap();
    bound
}

fn send(group: &Group, bytes: &[u8]) {
    // SAFETY: the buffer outlives the wait.
    let ticket = unsafe { group.send(Source::of(bytes), Rank(0), 7, PATIENCE) }.unwrap();
    ticket.wait(PATIENCE).unwrap();
}

fn receive(group: &Group) -> [u8; 5] {
    let mut bytes = [0; 5];
    // SAFETY: the buffer outlives the wait.
    let ticket = unsafe { group.receive(Target::of(&mut bytes), Some(Rank(1)), 7, PATIENCE) }.unwrap();
    ticket.wait(PATIENCE).unwrap();
    bytes
}

#[test]
fn what_a_rank_said_is_of_no_use_to_those_who_recorded_it() {
    let [first, second] = ["a", "b"].map(bound);
    let addresses = [first.address().clone(), second.address().clone()];
    let port = message_port(&addresses[0]);
    let middle = Middle::before(port, None);
    let through = [with_message_port(&addresses[0], middle.port), addresses[1].clone()];
    let step = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let group = first.connect(Rank(0), &addresses, 0, PATIENCE).unwrap();
            // Who receives first calls, and the connection is to be the other one's.
            step.wait();
            assert_eq!(&receive(&group), b"money");
            let recorded = middle.recorded();
            // All at once, and only the hello; with a message behind it, and cut off.
            for part in [&recorded[..], &recorded[..112], &recorded[..150]] {
                let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                // It may be hung up on before it has said all.
                let _ = stranger.write_all(part);
                if part.len() < recorded.len() {
                    let _ = stranger.shutdown(Shutdown::Write);
                }
                assert!(is_hung_up_on(&mut stranger), "{} bytes of {}", part.len(), recorded.len());
            }
            step.wait();
            assert_eq!(&receive(&group), b"other");
            group.barrier().unwrap();
        });
        scope.spawn(|| {
            let group = second.connect(Rank(1), &through, 0, PATIENCE).unwrap();
            send(&group, b"money");
            step.wait();
            step.wait();
            send(&group, b"other");
            group.barrier().unwrap();
        });
    });
}

#[test]
fn hundreds_of_strangers_of_every_kind_keep_nobody_out() {
    let [first, second] = ["a", "b"].map(bound);
    let addresses = [first.address().clone(), second.address().clone()];
    let text = format!("{:?}", addresses[0]);
    let endpoint = text.split_whitespace().find(|word| word.starts_with("127.")).unwrap().trim_end_matches(')');
    let ports = [endpoint.rsplit(':').next().unwrap().parse().unwrap(), message_port(&addresses[0])];
    let kinds: [&[u8]; 6] = [b"", b"instepS3", &[0x55; 112], b"GET / HTTP/1.1\r\n\r\n", b"instepS1", &[0; 200]];
    // Before anybody listens to them, and while ranks connect and work.
    let strangers: Vec<TcpStream> = (0..300)
        .map(|number| {
            let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, ports[number % 2])).unwrap();
            let _ = stranger.write_all(kinds[number % kinds.len()]);
            stranger
        })
        .collect();
    thread::scope(|scope| {
        let addresses = &addresses;
        scope.spawn(move || {
            let group = first.connect(Rank(0), addresses, 0, PATIENCE).unwrap();
            assert_eq!(&receive(&group), b"hello");
            group.barrier().unwrap();
        });
        scope.spawn(move || {
            let group = second.connect(Rank(1), addresses, 0, PATIENCE).unwrap();
            send(&group, b"hello");
            group.barrier().unwrap();
        });
    });
    drop(strangers);
}
