//! Send and receive: what arrives where, and what users see when it cannot.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]
#![expect(unsafe_code, reason = "messages are given raw memory")]

mod ranks;

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

use instep_collectives::{DataType, Error, Group, Kind, Operation, Options, Rank, Reduction, Source, Target, Ticket};
use ranks::{PATIENCE, every_path, options, threads};

fn send(group: &Group, bytes: &[u8], to: usize, tag: u64) -> Ticket {
    // SAFETY: every buffer of these tests outlives its ticket.
    unsafe { group.send(Source::of(bytes), Rank(to), tag, PATIENCE) }.unwrap()
}

fn receive(group: &Group, bytes: &mut [u8], from: Option<usize>, tag: u64) -> Ticket {
    // SAFETY: as above.
    unsafe { group.receive(Target::of(bytes), from.map(Rank), tag, PATIENCE) }.unwrap()
}

/// Different from message to message and place to place.
fn content(from: usize, to: usize, number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (from * 31 + to * 17 + number * 7 + at * 3) as u8).collect()
}

/// Nothing, little, the last that goes unasked, the first that does not, several pieces.
const LENGTHS: [usize; 6] = [0, 1, 1000, 64 << 10, (64 << 10) + 1, 3_000_001];

fn everybody_to_everybody(options: &Options, world: usize) {
    threads(world, options, |group| {
        let rank = group.rank().0;
        let sent: Vec<Vec<u8>> =
            (0..world).flat_map(|to| LENGTHS.map(|length| content(rank, to, length, length))).collect();
        let mut received: Vec<Vec<u8>> = (0..world).flat_map(|_| LENGTHS.map(|length| vec![0xee; length])).collect();
        let mut tickets = Vec::new();
        // Half of the ranks send first, half receive first; all use one tag, so the order must hold.
        for turn in 0..2 {
            if turn == rank % 2 {
                for (index, bytes) in sent.iter().enumerate() {
                    tickets.push(send(&group, bytes, index / LENGTHS.len(), 5));
                }
            } else {
                for (index, bytes) in received.iter_mut().enumerate() {
                    tickets.push(receive(&group, bytes, Some(index / LENGTHS.len()), 5));
                }
            }
        }
        // Collectives go on meanwhile.
        let mut values = [1i32];
        group.all_reduce(&mut values, Reduction::Sum).unwrap();
        assert_eq!(values, [world as i32]);
        for ticket in tickets {
            ticket.wait(PATIENCE).unwrap();
        }
        for (index, bytes) in received.iter().enumerate() {
            let (from, length) = (index / LENGTHS.len(), LENGTHS[index % LENGTHS.len()]);
            assert!(*bytes == content(from, rank, length, length), "{length} bytes from rank {from} at rank {rank}");
        }
    });
}

#[test]
fn messages_arrive_in_order_and_whole() {
    for options in every_path() {
        for world in [1, 2, 5] {
            everybody_to_everybody(&options, world);
        }
    }
}

#[test]
fn messages_with_different_tags_are_kept_apart() {
    for options in every_path() {
        threads(2, &options, |group| {
            if group.rank() == Rank(0) {
                for (tag, byte) in [(3, 30u8), (1, 10), (u64::MAX, 90), (1, 11)] {
                    send(&group, &[byte], 1, tag).wait(PATIENCE).unwrap();
                }
                return;
            }
            for (tag, byte) in [(1, 10u8), (u64::MAX, 90), (1, 11), (3, 30)] {
                let mut found = [0];
                receive(&group, &mut found, Some(0), tag).wait(PATIENCE).unwrap();
                assert_eq!(found, [byte]);
            }
        });
    }
}

#[test]
fn a_receive_from_anybody_says_from_whom() {
    for options in every_path() {
        threads(4, &options, |group| {
            let rank = group.rank().0;
            if rank != 2 {
                let bytes = vec![rank as u8; 100_000];
                send(&group, &bytes, 2, 9).wait(PATIENCE).unwrap();
                return;
            }
            let mut seen = Vec::new();
            for _ in 0..3 {
                let mut bytes = vec![0; 100_000];
                let ticket = receive(&group, &mut bytes, None, 9);
                ticket.wait(PATIENCE).unwrap();
                let from = ticket.source().unwrap().0;
                assert!(bytes.iter().all(|byte| *byte == from as u8));
                seen.push(from);
            }
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 3]);
        });
    }
}

#[test]
fn more_than_the_receiver_holds_waits_for_it() {
    for options in every_path() {
        // Far more small messages than a window, none of them asked for yet.
        const MESSAGES: usize = 200;
        let sending = Barrier::new(2);
        threads(2, &options, |group| {
            let bytes: Vec<Vec<u8>> = (0..MESSAGES).map(|number| content(0, 1, number, 20_000)).collect();
            if group.rank() == Rank(0) {
                let tickets: Vec<Ticket> = bytes.iter().map(|bytes| send(&group, bytes, 1, 0)).collect();
                // What fits the window is on its way, without anybody asking.
                tickets[10].wait(PATIENCE).unwrap();
                sending.wait();
                for ticket in tickets {
                    ticket.wait(PATIENCE).unwrap();
                }
                return;
            }
            sending.wait();
            for expected in bytes {
                let mut found = vec![0; expected.len()];
                receive(&group, &mut found, Some(0), 0).wait(PATIENCE).unwrap();
                assert!(found == expected);
            }
        });
    }
}

#[test]
fn a_message_of_another_size_is_an_error_that_names_both_sides_on_both() {
    for options in every_path() {
        for (sent, expected) in [(10, 11), (200_000, 100_000), (0, 1)] {
            let errors = threads(3, &options, |group| {
                let (bytes, mut target) = (vec![0; sent], vec![0; expected]);
                let ticket = match group.rank().0 {
                    0 => send(&group, &bytes, 1, 4),
                    1 => receive(&group, &mut target, Some(0), 4),
                    // Has nothing to do with it, and is told all the same.
                    _ => receive(&group, &mut target, Some(1), 4),
                };
                let own = ticket.wait(PATIENCE);
                // A small send may be over before anybody compares.
                own.and_then(|()| {
                    loop {
                        if let Err(error) = group.barrier() {
                            break Err::<(), Error>(error);
                        }
                    }
                })
                .unwrap_err()
            });
            for error in errors {
                let Error::Mismatch { rank: Rank(0), call, other_rank: Rank(1), other, .. } = &error else {
                    panic!("{error}")
                };
                assert_eq!((call.kind, other.kind), (Kind::Send, Kind::Receive));
                let text = error.to_string();
                assert!(text.contains(&format!("send({sent} bytes to rank 1, tag 4)")), "{text}");
                assert!(text.contains(&format!("receive({expected} bytes from rank 0, tag 4)")), "{text}");
            }
        }
    }
}

#[test]
fn a_timeout_names_the_rank_that_did_not_send() {
    for options in every_path() {
        let over = Barrier::new(3);
        threads(3, &options, |group| {
            if group.rank() == Rank(0) {
                let mut bytes = [0u8; 8];
                let limit = Duration::from_millis(80);
                // SAFETY: the buffer outlives the ticket.
                let ticket = unsafe { group.receive(Target::of(&mut bytes), Some(Rank(2)), 1, limit) }.unwrap();
                let error = ticket.wait(PATIENCE).unwrap_err();
                let text = error.to_string();
                assert!(matches!(&error, Error::Timeout { missing, .. } if *missing == [Rank(2)]), "{text}");
                assert!(text.contains("receive(8 bytes from rank 2, tag 1)"), "{text}");
                assert!(text.contains("rank 2 had not sent it"), "{text}");
            }
            over.wait();
            assert!(matches!(group.barrier(), Err(Error::Timeout { .. })));
        });
    }
}

#[test]
fn a_rank_that_leaves_fails_what_needs_it_and_nothing_else() {
    for options in every_path() {
        let (left, received) = (Barrier::new(3), Barrier::new(2));
        threads(3, &options, |group| {
            match group.rank().0 {
                2 => {
                    // What was sent before arrives.
                    send(&group, b"last words", 0, 7).wait(PATIENCE).unwrap();
                    drop(group);
                    left.wait();
                }
                1 => {
                    left.wait();
                    // Others still talk, and a receive from anybody still waits for them.
                    send(&group, b"hello", 0, 8).wait(PATIENCE).unwrap();
                    assert!(group.failure().is_none());
                    received.wait();
                    let mut bytes = [0; 5];
                    // SAFETY: as above. The group may have failed before this is asked of it, or while it waits.
                    let ticket = unsafe { group.receive(Target::of(&mut bytes), Some(Rank(0)), 8, PATIENCE) };
                    let error = ticket.and_then(|ticket| ticket.wait(PATIENCE)).unwrap_err();
                    assert!(matches!(error, Error::PeerLost { rank: Rank(2), .. }), "{error}");
                }
                _ => {
                    left.wait();
                    let mut bytes = [0; 10];
                    receive(&group, &mut bytes, Some(2), 7).wait(PATIENCE).unwrap();
                    assert_eq!(&bytes, b"last words");
                    let mut bytes = [0; 5];
                    let ticket = receive(&group, &mut bytes, None, 8);
                    ticket.wait(PATIENCE).unwrap();
                    assert_eq!((ticket.source(), &bytes), (Some(Rank(1)), b"hello"));
                    received.wait();
                    let mut nothing = [0; 5];
                    let error = receive(&group, &mut nothing, Some(2), 7).wait(PATIENCE).unwrap_err();
                    let Error::PeerLost { rank: Rank(2), .. } = error else { panic!("{error}") };
                }
            }
        });
    }
}

#[test]
fn whatever_is_asked_of_a_rank_that_has_left_fails_together() {
    for round in 0..100 {
        let left = Barrier::new(2);
        threads(2, &options(round % 2 == 0), |group| {
            if group.rank().0 == 1 {
                send(&group, b"last words", 0, 7).wait(PATIENCE).unwrap();
                drop(group);
                left.wait();
                return;
            }
            let mut bytes = [0; 10];
            receive(&group, &mut bytes, Some(1), 7).wait(PATIENCE).unwrap();
            left.wait();
            // The first is refused as soon as it is looked at: those that were asked with it must not be forgotten.
            let mut tickets = Vec::new();
            for _ in 0..32 {
                // SAFETY: what is sent is static.
                match unsafe { group.send(Source::of(b"too late"), Rank(1), 7, PATIENCE) } {
                    Ok(ticket) => tickets.push(ticket),
                    Err(error) => assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}"),
                }
            }
            for ticket in tickets {
                let error = ticket.wait(PATIENCE).unwrap_err();
                assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
            }
        });
    }
}

#[test]
fn abort_fails_messages_here_and_there() {
    for options in every_path() {
        let waiting = Barrier::new(2);
        threads(2, &options, |group| {
            let mut bytes = [0u8; 8];
            let ticket = receive(&group, &mut bytes, None, 0);
            waiting.wait();
            if group.rank() == Rank(0) {
                group.abort();
            }
            let error = ticket.wait(PATIENCE).unwrap_err();
            assert!(matches!(error, Error::Aborted { by: Rank(0) }), "{error}");
            waiting.wait();
            // SAFETY: the buffer outlives the call, which fails.
            assert!(unsafe { group.send(Source::of(&bytes), Rank(1), 0, PATIENCE) }.is_err());
        });
    }
}

#[test]
fn a_failed_collective_fails_messages_too() {
    for options in every_path() {
        threads(3, &options, |group| {
            let mut bytes = [0u8; 8];
            let error = match group.rank().0 {
                0 => group.barrier().unwrap_err(),
                1 => group.all_reduce(&mut [1f32], Reduction::Sum).unwrap_err(),
                _ => receive(&group, &mut bytes, Some(0), 0).wait(PATIENCE).unwrap_err(),
            };
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        });
    }
}

#[test]
fn messages_of_an_earlier_generation_are_not_received() {
    for options in every_path() {
        let barrier = Barrier::new(2);
        let addresses = std::sync::Mutex::new(vec![None; 2]);
        threads(2, &options, |group| {
            let rank = group.rank();
            addresses.lock().unwrap()[rank.0] = Some(group.address().clone());
            if rank == Rank(0) {
                send(&group, b"stale", 1, 1).wait(PATIENCE).unwrap();
            }
            barrier.wait();
            let all: Vec<_> = addresses.lock().unwrap().iter().flatten().cloned().collect();
            for generation in 1..20 {
                group.reconfigure(rank, &all, generation, PATIENCE).unwrap();
                let mut bytes = [0; 5];
                let ticket = receive(&group, &mut bytes, Some(1 - rank.0), 1);
                send(&group, b"fresh", 1 - rank.0, 1).wait(PATIENCE).unwrap();
                ticket.wait(PATIENCE).unwrap();
                assert_eq!(&bytes, b"fresh");
                // Who goes on aborts what is under way.
                barrier.wait();
            }
        });
    }
}

#[test]
fn bad_ranks_are_refused_and_disturb_nothing() {
    threads(2, &options(false), |group| {
        // SAFETY: nothing is touched.
        let refused = unsafe { group.send(Source::of(&[1u8]), Rank(2), 0, PATIENCE) };
        assert!(refused.unwrap_err().to_string().contains("a message to rank 2: it is not one of the 2 ranks"));
        group.barrier().unwrap();
    });
}

#[test]
fn operations_submitted_together_finish_together() {
    for options in every_path() {
        threads(3, &options, |group| {
            let mut buffers: Vec<Vec<i64>> = (0..5).map(|round| vec![round; 1000]).collect();
            let operations = |buffers: &mut [Vec<i64>]| -> Vec<Operation> {
                let reduce = |buffer: &mut Vec<i64>| {
                    let (input, output) = (Source::of(buffer), Target::of(buffer));
                    Operation::AllReduce { input, output, dtype: DataType::I64, reduction: Reduction::Sum }
                };
                buffers.iter_mut().map(reduce).collect()
            };
            // SAFETY: the buffers outlive the ticket.
            let ticket = unsafe { group.submit_together(operations(&mut buffers), PATIENCE) }.unwrap();
            let (sender, receiver) = channel();
            ticket.when_finished(move |result| sender.send(result.is_ok()).unwrap());
            ticket.wait(PATIENCE).unwrap();
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok(true));
            for (round, buffer) in buffers.iter().enumerate() {
                assert!(buffer.iter().all(|value| *value == 3 * round as i64));
            }
            // One that contradicts itself keeps all of them out.
            let mut wrong = operations(&mut buffers);
            wrong.push(Operation::Broadcast { buffer: Target::none(), dtype: DataType::I64, root: Rank(9) });
            // SAFETY: as above.
            assert!(unsafe { group.submit_together(wrong, PATIENCE) }.is_err());
            // SAFETY: no memory is involved.
            unsafe { group.submit_together(Vec::new(), PATIENCE) }.unwrap().wait(PATIENCE).unwrap();
            group.barrier().unwrap();
        });
    }
}
