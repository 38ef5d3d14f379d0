//! Encrypted streams over a pair of sockets that hold little.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use instep_noise::{Initiator, Key, respond};
use proptest::prelude::*;

use super::*;

/// Two ends of an encrypted connection whose sockets hold so many bytes, about.
fn pair(room: usize) -> (Stream, Stream) {
    let (one, other) = UnixStream::pair().unwrap();
    for socket in [&one, &other] {
        socket.set_nonblocking(true).unwrap();
        socket2::SockRef::from(socket).set_send_buffer_size(room).unwrap();
    }
    let key = Key::derive("test", b"secret");
    let (initiator, hello) = Initiator::start(&key, &[]).unwrap();
    let (session, answer) = respond(&key, &[], &hello).unwrap();
    (Stream::new(one, Some(initiator.finish(&answer).unwrap())), Stream::new(other, Some(session)))
}

fn content(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

/// As `Stream::receive`, into bytes; `None` where nothing is there yet.
fn receive(stream: &mut Stream, into: &mut [u8]) -> Option<io::Result<usize>> {
    // SAFETY: our own bytes.
    match unsafe { stream.receive(into.as_mut_ptr(), into.len()) } {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        result => Some(result),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_sent_arrives_however_it_is_cut(
        messages in proptest::collection::vec((0usize..100, prop_oneof![0usize..200, 0usize..300_000]), 1..8),
        room in 4096usize..200_000,
        pieces in proptest::collection::vec(1usize..200_000, 1..5),
        peeks: bool,
    ) {
        let (mut sender, mut receiver) = pair(room);
        let parts: Vec<(Vec<u8>, Vec<u8>)> = messages
            .iter()
            .enumerate()
            .map(|(seed, (header, payload))| (content(*header, seed), content(*payload, seed + 100)))
            .collect();
        let expected: Vec<u8> = parts.iter().flat_map(|(header, payload)| [&header[..], payload].concat()).collect();
        let (mut found, mut sent, mut done, mut turn) = (Vec::<u8>::new(), 0, 0, 0);
        while found.len() < expected.len() {
            while let Some((header, payload)) = parts.get(sent) {
                if done == header.len() + payload.len() {
                    (sent, done) = (sent + 1, 0);
                    continue;
                }
                // SAFETY: the payload is alive.
                match unsafe { sender.send(header, payload.as_ptr(), payload.len(), done) } {
                    Ok(out) => done += out,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let mut bytes = vec![0; pieces[turn % pieces.len()].min(expected.len() - found.len())];
            turn += 1;
            if peeks {
                let mut first = vec![0; bytes.len().min(1000)];
                let ahead = receiver.peek(&mut first);
                prop_assert_eq!(&first[..ahead], &expected[found.len()..found.len() + ahead]);
            }
            if let Some(read) = receive(&mut receiver, &mut bytes) {
                found.extend(&bytes[..read.unwrap()]);
            }
        }
        prop_assert!(found == expected && !sender.is_sending());
        drop(sender);
        prop_assert_eq!(receive(&mut receiver, &mut [0; 9]).unwrap().unwrap(), 0);
    }
}

#[test]
fn a_bit_that_changed_on_the_way_is_an_error_from_then_on() {
    for at in [2, 700, 70_000] {
        let (mut sender, receiver) = pair(400_000);
        let bytes = content(140_000, 3);
        assert!(sender.send_all(&bytes, Instant::now() + Duration::from_secs(9)));
        // What is on the wire goes through other hands.
        let mut wire = vec![0; 300_000];
        // SAFETY: our own bytes.
        let length = unsafe { crate::socket::receive(&receiver, wire.as_mut_ptr(), wire.len()) }.unwrap();
        wire[at] ^= 4;
        let (hand, end) = UnixStream::pair().unwrap();
        for socket in [&hand, &end] {
            socket.set_nonblocking(true).unwrap();
        }
        socket2::SockRef::from(&hand).set_send_buffer_size(400_000).unwrap();
        assert!(crate::socket::send_all(&hand, &wire[..length], Instant::now() + Duration::from_secs(9)));
        let mut receiver = Stream { socket: end.into(), cipher: receiver.cipher };
        let (mut found, mut piece) = (Vec::new(), vec![0; 50_000]);
        let error = loop {
            match receive(&mut receiver, &mut piece).expect("everything is there") {
                Ok(read) => found.extend(&piece[..read]),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(found.len() <= at && bytes.starts_with(&found), "{} bytes before that at {at}", found.len());
        assert_eq!(receiver.peek(&mut [0; 9]), 0);
        assert_eq!(receive(&mut receiver, &mut piece).unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

#[test]
fn memory_for_frames_is_made_once() {
    let (mut sender, mut receiver) = pair(400_000);
    let (bytes, mut piece) = (content(150_000, 5), vec![0; 150_000]);
    let capacities = |sender: &Stream, receiver: &Stream| {
        let (outgoing, incoming) =
            (&sender.cipher.as_ref().unwrap().outgoing, &receiver.cipher.as_ref().unwrap().incoming);
        [
            outgoing.frames.capacity(),
            outgoing.gathered.capacity(),
            incoming.frames.capacity(),
            incoming.opened.capacity(),
        ]
    };
    let mut warm = None;
    for round in 0..20 {
        assert!(sender.send_all(&bytes[..round], Instant::now() + Duration::from_secs(9)));
        assert!(sender.send_all(&bytes, Instant::now() + Duration::from_secs(9)));
        let mut left = bytes.len() + round;
        while left > 0 {
            let wanted = left.min(40_000);
            left -= receive(&mut receiver, &mut piece[..wanted]).unwrap().unwrap();
        }
        if round == 5 {
            warm = Some(capacities(&sender, &receiver));
        }
    }
    assert_eq!(warm, Some(capacities(&sender, &receiver)));
}
