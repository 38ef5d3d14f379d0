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
    key_space.append(b"/k", b"+more", &mut replies);
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
        key_space.handle(ClientId(client), request, &mut replies).unwrap();
    }
    assert_eq!(replies, []);
    key_space.set(b"/a", b"1", &mut replies);
    assert_eq!(replies, [(ClientId(1), Reply::Ready)]);
    for client in [0, 2, 4] {
        key_space.cancel(ClientId(client));
    }
    replies.clear();
    key_space.handle(ClientId(5), barrier(), &mut replies).unwrap();
    assert_eq!(replies, [(ClientId(3), Reply::Ready), (ClientId(5), Reply::Ready)]);
    assert!(key_space.waits.is_empty());
    assert!(key_space.waiting.is_empty());
    assert!(key_space.barriers.is_empty());
}

#[test]
fn a_push_serves_the_waiter_that_came_first() {
    let mut key_space = KeySpace::default();
    let mut replies = Vec::new();
    for client in [7, 3, 5] {
        let request = Request::Wait { keys: vec![b"/q"] };
        key_space.handle(ClientId(client), request, &mut replies).unwrap();
    }
    for client in [7, 3, 5] {
        key_space.queue_push(b"/q", b"item", &mut replies);
        assert_eq!(replies.pop(), Some((ClientId(client), Reply::Ready)));
        assert_eq!(replies, []);
    }
    assert_eq!(key_space.queue_pop(b"/q"), Reply::QueueItem(3, Value::new(b"item".to_vec())));
}
