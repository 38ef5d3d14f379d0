//! Tables of what one key space answers; sequences of several clients are in `tests/state.rs`.

use super::*;

#[test]
fn a_counter_is_read_as_stoll_reads_it() {
    let cases: &[(&[u8], Option<i64>)] = &[
        (b"0", Some(0)),
        (b"12", Some(12)),
        (b"-12", Some(-12)),
        (b"+12", Some(12)),
        (b" \t\n\x0B12abc", Some(12)),
        (b"9223372036854775807", Some(i64::MAX)),
        (b"-9223372036854775808", Some(i64::MIN)),
        (b"9223372036854775808", None),
        (b"-9223372036854775809", None),
        (b"", None),
        (b"   ", None),
        (b"-", None),
        (b"- 1", None),
        (b"abc", None),
        (b"\xFF", None),
    ];
    for (text, expected) in cases {
        assert_eq!(leading_number(text), *expected, "{}", text.escape_ascii());
    }
}

#[test]
fn rewriting_a_value_neither_leaks_into_replies_nor_keeps_large_memory() {
    let mut key_space = KeySpace::default();
    let mut replies = Vec::new();
    key_space.set(b"/k", b"first", &mut replies);
    let sent = key_space.value(b"/k");
    key_space.set(b"/k", b"second", &mut replies);
    key_space.append(b"/k", b"+more", &room(&key_space), &mut replies).unwrap();
    assert_eq!(sent.as_slice(), b"first");
    assert_eq!(key_space.get(b"/k"), Some(&b"second+more"[..]));

    key_space.set(b"/k", &[0; 1 << 20], &mut replies);
    key_space.set(b"/k", b"small", &mut replies);
    assert!(key_space.values[&b"/k"[..]].capacity() < 1024);
}

#[test]
fn nothing_stays_in_the_indexes_once_all_waits_are_over() {
    let mut key_space = KeySpace::default();
    let mut replies = Vec::new();
    let wait = |keys: &[&'static [u8]]| Request::Wait { keys: keys.to_vec() };
    let barrier = || Request::Barrier { key: b"/barrier", world_size: 3 };
    for (client, request) in [
        (0, wait(&[b"/a", b"/b", b"/a"])),
        (1, wait(&[b"/a"])),
        (2, wait(&[b"/b"])),
        (2, wait(&[b"/c"])),
        (3, barrier()),
        (4, barrier()),
    ] {
        handle(&mut key_space, ClientId(client), request, &mut replies).unwrap();
    }
    assert_eq!(replies, []);
    key_space.set(b"/a", b"1", &mut replies);
    assert_eq!(replies, [(ClientId(1), Reply::Ready)]);
    for client in [0, 2, 4] {
        key_space.cancel(ClientId(client));
    }
    replies.clear();
    handle(&mut key_space, ClientId(5), barrier(), &mut replies).unwrap();
    assert_eq!(replies, [(ClientId(3), Reply::Ready), (ClientId(5), Reply::Ready)]);
    assert!(key_space.waits.is_empty());
    assert!(key_space.waiting.is_empty());
    assert!(key_space.barriers.is_empty());
    for key in [&b"/a"[..], b"/barrier"] {
        assert!(key_space.delete(key));
    }
    assert_eq!(key_space.stored(), 0);
}

/// As [`KeySpace::handle`], in a store that has nothing else.
fn handle(
    key_space: &mut KeySpace,
    client: ClientId,
    request: Request<'_>,
    replies: &mut Replies,
) -> Result<(), Violation> {
    let room = room(key_space);
    key_space.handle(client, request, &room, replies)
}

fn room(key_space: &KeySpace) -> Room {
    let limits = Limits { payload: 1 << 20, ..Limits::default() };
    Room { limits, stored: key_space.stored() }
}

#[test]
fn appending_makes_no_value_longer_than_setting_it_may() {
    let mut key_space = KeySpace::default();
    let mut replies = Vec::new();
    let half = vec![1; 1 << 19];
    let append = || Request::Append { key: b"/k", value: &half };
    for _ in 0..2 {
        handle(&mut key_space, ClientId(0), append(), &mut replies).unwrap();
    }
    let refused = handle(&mut key_space, ClientId(0), Request::Append { key: b"/k", value: b"x" }, &mut replies);
    assert_eq!(refused, Err(Violation::PayloadTooLong { length: (1 << 20) + 1, limit: 1 << 20 }));
    assert_eq!(key_space.get(b"/k").map(<[u8]>::len), Some(1 << 20));
}

#[test]
fn all_that_clients_store_is_counted_and_bounded() {
    let requests: [Request<'_>; 9] = [
        Request::Set { key: b"/new", value: b"" },
        Request::Set { key: b"/small", value: b"0123456789" },
        Request::CompareSet { key: b"/small", expected: b"1", desired: b"0123456789" },
        Request::Add { key: b"/count", delta: 1 },
        Request::Append { key: b"/small", value: b"0123456789" },
        Request::MultiSet { pairs: vec![(b"/one", b"1"), (b"/two", b"2")] },
        Request::QueuePush { key: b"/queue", value: b"" },
        Request::Wait { keys: vec![b"/never"] },
        Request::Barrier { key: b"/barrier", world_size: 2 },
    ];
    for request in requests {
        let (mut key_space, mut replies) = (KeySpace::default(), Vec::new());
        key_space.set(b"/small", b"1", &mut replies);
        key_space.set(b"/other", &[0; 2 * ENTRY_BYTES + 100], &mut replies);
        let full = Limits { stored: key_space.stored(), ..Limits::default() };
        let mut handle = |key_space: &mut KeySpace, request: Request<'_>| {
            let room = Room { limits: full, stored: key_space.stored() };
            key_space.handle(ClientId(1), request, &room, &mut replies)
        };
        let refused = handle(&mut key_space, request.clone());
        assert_eq!(refused, Err(Violation::StoreFull { limit: full.stored }), "{request:?}");
        assert_eq!(key_space.stored(), full.stored, "{request:?}");
        // What is no longer there makes room.
        handle(&mut key_space, Request::DeleteKey { key: b"/other" }).unwrap();
        handle(&mut key_space, request.clone()).unwrap();
        handle(&mut key_space, Request::CancelWait).unwrap();
        handle(&mut key_space, Request::QueuePop { key: b"/queue" }).unwrap();
        let keys: Vec<Key> = key_space.values.keys().cloned().collect();
        assert!(keys.iter().all(|key| key_space.delete(key)));
        assert_eq!(key_space.stored(), 0, "{request:?}");
    }
}

#[test]
fn a_push_serves_the_waiter_that_came_first() {
    let mut key_space = KeySpace::default();
    let mut replies = Vec::new();
    for client in [7, 3, 5] {
        let request = Request::Wait { keys: vec![b"/q"] };
        handle(&mut key_space, ClientId(client), request, &mut replies).unwrap();
    }
    for client in [7, 3, 5] {
        key_space.queue_push(b"/q", b"item", &mut replies);
        assert_eq!(replies.pop(), Some((ClientId(client), Reply::Ready)));
        assert_eq!(replies, []);
    }
    assert_eq!(key_space.queue_pop(b"/q"), Reply::QueueItem(3, Value::new(b"item".to_vec())));
}
