//! What two sides with and without the same key make of each other, and of whoever sits between them.

use instep_noise::{
    ANSWER_BYTES, Error, FRAME_OVERHEAD, HELLO_BYTES, Initiator, Key, MAX_PLAINTEXT, Opener, Sealer, Session, respond,
};
use proptest::collection::vec;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use proptest::sample::Index;

const PROLOGUE: &[u8] = b"test 1";

fn key(secret: &str) -> Key {
    Key::derive("test", secret.as_bytes())
}

/// Both ends of a connection: of the one who connects, and of the one who was connected to.
fn connected() -> (Session, Session) {
    let (initiator, hello) = Initiator::start(&key("secret"), PROLOGUE).expect("random numbers");
    let (responder, answer) = respond(&key("secret"), PROLOGUE, &hello).expect("the same key");
    (initiator.finish(&answer).expect("the same key"), responder)
}

fn sealed(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    sealer.seal(bytes, &mut frames).expect("sealed");
    frames
}

fn opened(opener: &mut Opener, frames: &[u8]) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let consumed = opener.open(frames, &mut bytes)?;
    assert_eq!(consumed, frames.len(), "whole frames");
    Ok(bytes)
}

#[test]
fn both_directions_carry_bytes() {
    let (mut client, mut server) = connected();
    assert!(client.opener.is_proved(), "the answer is the proof");
    assert!(!server.opener.is_proved(), "a hello may be a recording");
    let question = sealed(&mut client.sealer, b"who leads?");
    assert_eq!(opened(&mut server.opener, &question).as_deref(), Ok(&b"who leads?"[..]));
    assert!(server.opener.is_proved());
    let answer = sealed(&mut server.sealer, b"I do");
    assert_eq!(answer.len(), 4 + FRAME_OVERHEAD);
    assert_eq!(opened(&mut client.opener, &answer).as_deref(), Ok(&b"I do"[..]));
    assert!(!question.windows(4).any(|window| window == b"lead"));
}

#[test]
fn another_key_or_protocol_fails_on_both_sides_alike() {
    for (theirs, prologue) in [(key("secret2"), PROLOGUE), (key("secret"), b"test 2".as_slice())] {
        let (_, hello) = Initiator::start(&theirs, prologue).expect("random numbers");
        assert_eq!(respond(&key("secret"), PROLOGUE, &hello).err(), Some(Error::NotProved));
        // Somebody who pretends to be the job, without its key, gets no further.
        let (initiator, _) = Initiator::start(&key("secret"), PROLOGUE).expect("random numbers");
        let (_, answer) = respond(&theirs, prologue, &hello).expect("their own hello");
        assert_eq!(initiator.finish(&answer).err(), Some(Error::NotProved));
    }
}

#[test]
fn a_recorded_connection_cannot_be_repeated() {
    let (initiator, hello) = Initiator::start(&key("secret"), PROLOGUE).expect("random numbers");
    let (mut server, answer) = respond(&key("secret"), PROLOGUE, &hello).expect("the same key");
    let mut client = initiator.finish(&answer).expect("the same key");
    let frame = sealed(&mut client.sealer, b"let me in");
    assert!(opened(&mut server.opener, &frame).is_ok());
    // Again, on a connection of its own: the hello is answered, with another ephemeral key, and the frame is void.
    let (mut again, other_answer) = respond(&key("secret"), PROLOGUE, &hello).expect("the hello is genuine");
    assert_ne!(answer, other_answer);
    assert_eq!(opened(&mut again.opener, &frame), Err(Error::NotAuthentic));
    assert!(!again.opener.is_proved());
    // And the answer of one connection is void on another.
    let (other, _) = Initiator::start(&key("secret"), PROLOGUE).expect("random numbers");
    assert_eq!(other.finish(&answer).err(), Some(Error::NotProved));
}

#[test]
fn frames_repeated_moved_left_out_or_returned_are_errors() {
    let frames = |sealer: &mut Sealer| [&b"one"[..], b"two", b"three"].map(|bytes| sealed(sealer, bytes));
    for order in [[0, 0, 1], [1, 0, 2], [0, 2, 1]] {
        let (mut client, mut server) = connected();
        let frames = frames(&mut client.sealer);
        let stream: Vec<u8> = order.iter().flat_map(|index| frames[*index].clone()).collect();
        let mut bytes = Vec::new();
        assert_eq!(server.opener.open(&stream, &mut bytes), Err(Error::NotAuthentic), "{order:?}");
        assert!(b"onetwothree".starts_with(&bytes), "{order:?}: nothing that did not stand there");
    }
    let (mut client, _) = connected();
    let own = sealed(&mut client.sealer, b"mirror");
    assert_eq!(opened(&mut client.opener, &own), Err(Error::NotAuthentic));
}

#[test]
fn nothing_is_opened_after_an_error() {
    // Of a length that frames have, and of lengths that none has.
    for bad in [[&[16, 0][..], &[7; 16]].concat(), vec![0, 0], vec![15, 0, 1, 2, 3]] {
        let (mut client, mut server) = connected();
        let genuine = sealed(&mut client.sealer, b"genuine");
        assert_eq!(opened(&mut server.opener, &bad), Err(Error::NotAuthentic));
        assert_eq!(opened(&mut server.opener, &genuine), Err(Error::NotAuthentic), "another try for the same place");
        assert!(!server.opener.is_proved());
    }
}

#[test]
fn no_bytes_are_a_frame_too() {
    let (mut client, mut server) = connected();
    let frame = sealed(&mut client.sealer, b"");
    assert_eq!(frame.len(), FRAME_OVERHEAD);
    assert_eq!(opened(&mut server.opener, &frame), Ok(Vec::new()));
    assert!(server.opener.is_proved());
}

proptest! {
    #[test]
    fn any_bytes_arrive_however_the_stream_is_cut(
        messages in vec(vec(any::<u8>(), 0..200), 1..5),
        long in 0usize..2,
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let (mut client, mut server) = connected();
        let mut sent = messages.concat();
        let mut stream: Vec<u8> = messages.iter().flat_map(|bytes| sealed(&mut client.sealer, bytes)).collect();
        // More than one frame holds.
        let large = vec![7; long * (MAX_PLAINTEXT + 100)];
        stream.extend(sealed(&mut client.sealer, &large));
        sent.extend(large);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        ends.push(stream.len());
        ends.sort_unstable();
        let (mut bytes, mut begin) = (Vec::new(), 0);
        for end in ends {
            begin += server.opener.open(&stream[begin..end], &mut bytes).expect("genuine");
        }
        prop_assert_eq!(begin, stream.len());
        prop_assert_eq!(bytes, sent);
    }

    #[test]
    fn a_changed_bit_is_an_error_or_waits_for_more(bytes in vec(any::<u8>(), 0..100), at in any::<Index>(), bit in 0u8..8) {
        let (mut client, mut server) = connected();
        let mut frame = sealed(&mut client.sealer, &bytes);
        let at = at.index(frame.len());
        frame[at] ^= 1u8 << bit;
        let mut found = Vec::new();
        match server.opener.open(&frame, &mut found) {
            Err(error) => prop_assert_eq!(error, Error::NotAuthentic),
            // The length was changed: it says that more follows.
            Ok(consumed) => prop_assert!(consumed == 0 && at < 2),
        }
        prop_assert!(found.is_empty() && !server.opener.is_proved());
    }

    #[test]
    fn half_a_frame_opens_nothing(bytes in vec(any::<u8>(), 0..100), end in any::<Index>()) {
        let (mut client, mut server) = connected();
        let frame = sealed(&mut client.sealer, &bytes);
        let mut found = Vec::new();
        prop_assert_eq!(server.opener.open(&frame[..end.index(frame.len())], &mut found), Ok(0));
        prop_assert!(found.is_empty());
    }

    #[test]
    fn whoever_has_no_key_proves_nothing(
        hello in vec(any::<u8>(), HELLO_BYTES),
        answer in vec(any::<u8>(), ANSWER_BYTES),
        frames in vec(any::<u8>(), 0..300),
    ) {
        let hello = hello.try_into().expect("its length");
        prop_assert_eq!(respond(&key("secret"), PROLOGUE, &hello).err(), Some(Error::NotProved));
        let (initiator, _) = Initiator::start(&key("secret"), PROLOGUE).expect("random numbers");
        let answer = answer.try_into().expect("its length");
        prop_assert_eq!(initiator.finish(&answer).err(), Some(Error::NotProved));
        let (_, mut server) = connected();
        let mut found = Vec::new();
        let result = server.opener.open(&frames, &mut found);
        prop_assert!(matches!(result, Ok(0) | Err(Error::NotAuthentic)));
        let mut room = vec![0; frames.len()];
        prop_assert_eq!(server.opener.open_frame(&frames, &mut room), Err(Error::NotAuthentic));
        prop_assert!(found.is_empty() && !server.opener.is_proved());
    }
}
