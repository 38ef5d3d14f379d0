//! The store's answers: scenarios of several clients, generations, and agreement with a naive model.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use instep_store::protocol::Value;
use instep_store::{ClientId, Generation, Reply, Request, State, Violation};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert_eq, proptest};

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const C: ClientId = ClientId(3);

fn state() -> State {
    let mut state = State::new();
    [A, B, C].into_iter().for_each(|client| state.connect(client));
    state
}

fn value(bytes: &[u8]) -> Reply {
    Reply::Value(Value::new(bytes.to_vec()))
}

/// One step of a scenario: who sends what, and who is answered what.
type Step<'a> = (ClientId, Request<'a>, &'a [(ClientId, Reply)]);

fn play(state: &mut State, steps: &[Step<'_>]) {
    for (index, (client, request, expected)) in steps.iter().enumerate() {
        let replies = state.handle(*client, request.clone()).unwrap();
        assert_eq!(replies, *expected, "step {index}: {request:?}");
    }
}

#[test]
fn values_are_stored_compared_counted_and_deleted() {
    let compare = |expected, desired| Request::CompareSet { key: b"/c", expected, desired };
    play(
        &mut state(),
        &[
            (A, Request::Get { key: b"/k" }, &[(A, value(b""))]),
            (A, Request::Set { key: b"/k", value: b"v" }, &[]),
            (B, Request::Get { key: b"/k" }, &[(B, value(b"v"))]),
            (B, Request::Append { key: b"/k", value: b"w" }, &[]),
            (A, Request::Get { key: b"/k" }, &[(A, value(b"vw"))]),
            (A, compare(b"x", b"y"), &[(A, value(b"x"))]),
            (A, Request::Check { keys: vec![b"/c"] }, &[(A, Reply::NotReady)]),
            (A, compare(b"", b"y"), &[(A, value(b"y"))]),
            (A, compare(b"n", b"z"), &[(A, value(b"y"))]),
            (A, compare(b"y", b"z"), &[(A, value(b"z"))]),
            (A, Request::Add { key: b"/n", delta: 5 }, &[(A, Reply::Integer(5))]),
            (A, Request::Add { key: b"/n", delta: -7 }, &[(A, Reply::Integer(-2))]),
            (A, Request::Get { key: b"/n" }, &[(A, value(b"-2"))]),
            (A, Request::NumKeys, &[(A, Reply::Integer(3))]),
            (A, Request::DeleteKey { key: b"/n" }, &[(A, Reply::Integer(1))]),
            (A, Request::DeleteKey { key: b"/n" }, &[(A, Reply::Integer(0))]),
            (A, Request::MultiSet { pairs: vec![(b"/x", b"1"), (b"/y", b"2")] }, &[]),
            (
                A,
                Request::MultiGet { keys: vec![b"/y", b"/x", b"/none"] },
                &[(A, Reply::Values(vec![Value::new(b"2".to_vec()), Value::new(b"1".to_vec()), Value::default()]))],
            ),
            (A, Request::Ping { nonce: 9 }, &[(A, Reply::Nonce(9))]),
        ],
    );
}

#[test]
fn waits_end_when_the_last_key_arrives() {
    let wait = |keys: &[&'static [u8]]| Request::Wait { keys: keys.to_vec() };
    let set = |key| Request::Set { key, value: b"" };
    play(
        &mut state(),
        &[
            (A, wait(&[]), &[(A, Reply::Ready)]),
            (A, wait(&[b"/x", b"/y"]), &[]),
            (B, wait(&[b"/x", b"/x"]), &[]),
            (C, set(b"/x"), &[(B, Reply::Ready)]),
            (C, set(b"/x"), &[]),
            // As in torch: a key that was there once has been seen, even if it is deleted before the others come.
            (C, Request::DeleteKey { key: b"/x" }, &[(C, Reply::Integer(1))]),
            (C, Request::Add { key: b"/y", delta: 1 }, &[(A, Reply::Ready), (C, Reply::Integer(1))]),
            (A, wait(&[b"/z"]), &[]),
            (A, Request::CancelWait, &[(A, Reply::Cancelled)]),
            (A, Request::CancelWait, &[(A, Reply::Cancelled)]),
            (C, set(b"/z"), &[]),
            // Requests other than a wait are served meanwhile; a second wait replaces the first.
            (A, wait(&[b"/p"]), &[]),
            (A, Request::NumKeys, &[(A, Reply::Integer(2))]),
            (A, wait(&[b"/q"]), &[]),
            (C, set(b"/p"), &[]),
            (C, set(b"/q"), &[(A, Reply::Ready)]),
        ],
    );
}

#[test]
fn queues_wake_one_waiter_an_item() {
    let push = |item| Request::QueuePush { key: b"/q", value: item };
    let wait = || Request::Wait { keys: vec![b"/q"] };
    let pop = || Request::QueuePop { key: b"/q" };
    let item = |length, bytes: &[u8]| Reply::QueueItem(length, Value::new(bytes.to_vec()));
    play(
        &mut state(),
        &[
            (A, pop(), &[(A, Reply::QueueEmpty)]),
            (A, wait(), &[]),
            (B, wait(), &[]),
            (C, push(b"1"), &[(A, Reply::Ready)]),
            (C, push(b"2"), &[(B, Reply::Ready)]),
            (C, Request::QueueLength { key: b"/q" }, &[(C, Reply::Integer(2))]),
            (C, Request::Check { keys: vec![b"/q"] }, &[(C, Reply::Ready)]),
            (C, Request::NumKeys, &[(C, Reply::Integer(0))]),
            (A, pop(), &[(A, item(2, b"1"))]),
            (B, pop(), &[(B, item(1, b"2"))]),
            (B, pop(), &[(B, Reply::QueueEmpty)]),
            (C, Request::Check { keys: vec![b"/q"] }, &[(C, Reply::NotReady)]),
        ],
    );
}

#[test]
fn a_barrier_opens_when_enough_have_arrived() {
    let barrier = |key, world_size| Request::Barrier { key, world_size };
    play(
        &mut state(),
        &[
            (A, barrier(b"/b", 3), &[]),
            (B, barrier(b"/b", 3), &[]),
            (B, Request::CancelWait, &[(B, Reply::Cancelled)]),
            (C, barrier(b"/b", 3), &[(A, Reply::Ready), (C, Reply::Ready)]),
            (A, Request::Get { key: b"/b" }, &[(A, value(b"3"))]),
            (A, barrier(b"/b", 3), &[(A, Reply::Ready)]),
            (A, barrier(b"/0", 0), &[(A, Reply::Ready)]),
            // Any write that brings the counter up opens it.
            (A, barrier(b"/w", 9), &[]),
            (B, Request::Wait { keys: vec![b"/w"] }, &[(B, Reply::Ready)]),
            (B, Request::Set { key: b"/w", value: b"8" }, &[]),
            (B, Request::Set { key: b"/w", value: b"many" }, &[]),
            (B, Request::Set { key: b"/w", value: b"9" }, &[(A, Reply::Ready)]),
        ],
    );
}

#[test]
fn a_client_that_breaks_the_rules_is_named() {
    let mut state = state();
    state.set(b"/text", b"abc");
    let add = Request::Add { key: b"/text", delta: 1 };
    let not_a_number = Violation::NotANumber { key: "/text".to_owned() };
    assert_eq!(state.handle(A, add), Err(not_a_number));
    let validate = Request::Validate { magic: 0 };
    assert_eq!(state.handle(A, validate), Err(Violation::RepeatedValidation));
    assert_eq!(state.handle(ClientId(99), Request::NumKeys), Err(Violation::NotConnected));
}

#[test]
fn a_new_generation_sees_clean_keys_and_the_old_one_keeps_its_own() {
    let mut state = State::new();
    state.connect(A);
    state.handle(A, Request::Set { key: b"/k", value: b"old" }).unwrap();
    state.handle(A, Request::Wait { keys: vec![b"/later"] }).unwrap();
    assert_eq!(state.begin_generation(), Generation(1));
    state.connect(B);
    play(
        &mut state,
        &[
            (B, Request::Check { keys: vec![b"/k"] }, &[(B, Reply::NotReady)]),
            (B, Request::Set { key: b"/later", value: b"" }, &[]),
            (A, Request::Get { key: b"/k" }, &[(A, value(b"old"))]),
            (A, Request::Set { key: b"/later", value: b"" }, &[(A, Reply::Ready)]),
        ],
    );
    assert_eq!(state.get(b"/k"), None);
    assert_eq!(state.set(b"/k", b"new"), []);
    assert_eq!(state.get(b"/k"), Some(&b"new"[..]));
    assert_eq!(state.add(b"/count", 2), Ok((2, vec![])));
    state.disconnect(A);
    assert_eq!(state.handle(A, Request::NumKeys), Err(Violation::NotConnected));
    assert_eq!(state.client_count(), 1);
    // The current space stays without clients; an old one does not come back.
    state.disconnect(B);
    state.connect(C);
    play(&mut state, &[(C, Request::Get { key: b"/k" }, &[(C, value(b"new"))])]);
}

#[test]
fn a_client_that_connects_twice_stays_in_its_generation() {
    let mut state = State::new();
    state.connect(A);
    state.set(b"/k", b"old");
    state.begin_generation();
    state.connect(A);
    play(&mut state, &[(A, Request::Get { key: b"/k" }, &[(A, value(b"old"))])]);
    state.disconnect(A);
    assert_eq!(state.client_count(), 0);
}

#[test]
fn the_servers_own_writes_answer_waiters() {
    let mut state = state();
    state.handle(A, Request::Wait { keys: vec![b"/go"] }).unwrap();
    state.handle(B, Request::Barrier { key: b"/n", world_size: 2 }).unwrap();
    assert_eq!(state.set(b"/go", b"1"), [(A, Reply::Ready)]);
    assert_eq!(state.add(b"/n", 1), Ok((2, vec![(B, Reply::Ready)])));
    state.disconnect(A);
    assert_eq!(state.set(b"/go", b"2"), []);
}

/// The same store written for clarity: every wait is looked at after every write.
#[derive(Default)]
struct Model {
    values: BTreeMap<u8, Vec<u8>>,
    queues: BTreeMap<u8, VecDeque<Vec<u8>>>,
    /// In the order in which the waits began.
    waits: Vec<(ClientId, ModelWait)>,
}

#[derive(Clone)]
enum ModelWait {
    Keys(BTreeSet<u8>),
    Barrier(u8, i64),
}

#[derive(Clone, Debug)]
enum Operation {
    Set(u8, u8),
    Append(u8, u8),
    Add(u8, i8),
    CompareSet(u8, u8, u8),
    Delete(u8),
    Get(u8),
    Check(Vec<u8>),
    Wait(Vec<u8>),
    Cancel,
    NumKeys,
    Push(u8, u8),
    Pop(u8),
    Length(u8),
    Barrier(u8, i8),
    MultiGet(Vec<u8>),
    Reconnect,
}

impl Model {
    fn has(&self, key: u8) -> bool {
        self.values.contains_key(&key) || self.queues.get(&key).is_some_and(|queue| !queue.is_empty())
    }

    fn number(&self, key: u8) -> Option<i64> {
        let Some(text) = self.values.get(&key) else {
            return Some(0);
        };
        String::from_utf8(text.clone()).ok()?.parse().ok()
    }

    fn write(&mut self, key: u8, value: Vec<u8>, replies: &mut Vec<(ClientId, Reply)>) {
        self.values.insert(key, value);
        let number = self.number(key);
        let mut left = Vec::new();
        for (client, wait) in std::mem::take(&mut self.waits) {
            match wait {
                ModelWait::Keys(mut keys) => {
                    keys.remove(&key);
                    if keys.is_empty() {
                        replies.push((client, Reply::Ready));
                    } else {
                        left.push((client, ModelWait::Keys(keys)));
                    }
                }
                ModelWait::Barrier(at, size) if at == key && number.is_some_and(|number| number >= size) => {
                    replies.push((client, Reply::Ready));
                }
                barrier @ ModelWait::Barrier(..) => left.push((client, barrier)),
            }
        }
        self.waits = left;
    }

    fn push(&mut self, key: u8, item: Vec<u8>, replies: &mut Vec<(ClientId, Reply)>) {
        self.queues.entry(key).or_default().push_back(item);
        let mut served = None;
        for (index, (_, wait)) in self.waits.iter_mut().enumerate() {
            if let ModelWait::Keys(keys) = wait
                && keys.remove(&key)
                && keys.is_empty()
            {
                served = Some(index);
                break;
            }
        }
        if let Some(index) = served {
            replies.push((self.waits.remove(index).0, Reply::Ready));
        }
    }

    fn forget(&mut self, client: ClientId) {
        self.waits.retain(|(waiter, _)| *waiter != client);
    }

    /// The replies, or none if the client has to go.
    fn step(&mut self, client: ClientId, step: &Operation) -> Option<Vec<(ClientId, Reply)>> {
        let mut replies = Vec::new();
        let current = |model: &Model, key: u8| Value::new(model.values.get(&key).cloned().unwrap_or_default());
        let mut answer = None;
        match step {
            Operation::Set(key, byte) => self.write(*key, vec![*byte], &mut replies),
            Operation::Append(key, byte) => {
                let mut value = self.values.get(key).cloned().unwrap_or_default();
                value.push(*byte);
                self.write(*key, value, &mut replies);
            }
            Operation::Add(key, delta) => {
                let sum = self.number(*key)? + i64::from(*delta);
                self.write(*key, sum.to_string().into_bytes(), &mut replies);
                answer = Some(Reply::Integer(sum));
            }
            Operation::CompareSet(key, expected, desired) => {
                let expected = byte_or_empty(*expected);
                match self.values.get(key) {
                    None if !expected.is_empty() => answer = Some(value(&expected)),
                    found => {
                        if found.is_none() || found == Some(&expected) {
                            self.write(*key, vec![*desired], &mut replies);
                        }
                        answer = Some(Reply::Value(current(self, *key)));
                    }
                }
            }
            Operation::Delete(key) => {
                answer = Some(Reply::Integer(i64::from(self.values.remove(key).is_some())));
            }
            Operation::Get(key) => answer = Some(Reply::Value(current(self, *key))),
            Operation::MultiGet(keys) => {
                answer = Some(Reply::Values(keys.iter().map(|key| current(self, *key)).collect()));
            }
            Operation::Check(keys) => {
                let all = keys.iter().all(|key| self.has(*key));
                answer = Some(if all { Reply::Ready } else { Reply::NotReady });
            }
            Operation::Wait(keys) => {
                self.forget(client);
                let missing: BTreeSet<u8> = keys.iter().copied().filter(|key| !self.has(*key)).collect();
                match missing.is_empty() {
                    true => answer = Some(Reply::Ready),
                    false => self.waits.push((client, ModelWait::Keys(missing))),
                }
            }
            Operation::Cancel => {
                self.forget(client);
                answer = Some(Reply::Cancelled);
            }
            Operation::NumKeys => answer = Some(Reply::Integer(self.values.len() as i64)),
            Operation::Push(key, byte) => self.push(*key, vec![*byte], &mut replies),
            Operation::Pop(key) => {
                let queue = self.queues.entry(*key).or_default();
                let length = queue.len() as i64;
                let item = queue.pop_front().map(|item| Reply::QueueItem(length, Value::new(item)));
                answer = Some(item.unwrap_or(Reply::QueueEmpty));
            }
            Operation::Length(key) => {
                answer = Some(Reply::Integer(self.queues.get(key).map_or(0, VecDeque::len) as i64));
            }
            Operation::Barrier(key, size) => {
                self.forget(client);
                let sum = self.number(*key)? + 1;
                self.write(*key, sum.to_string().into_bytes(), &mut replies);
                match sum >= i64::from(*size) {
                    true => answer = Some(Reply::Ready),
                    false => self.waits.push((client, ModelWait::Barrier(*key, i64::from(*size)))),
                }
            }
            Operation::Reconnect => self.forget(client),
        }
        replies.extend(answer.map(|reply| (client, reply)));
        Some(replies)
    }
}

/// Zero stands for the empty value, which `compare_set` treats specially.
fn byte_or_empty(byte: u8) -> Vec<u8> {
    if byte == 0 { vec![] } else { vec![byte] }
}

fn real_step(state: &mut State, client: ClientId, step: &Operation) -> Result<Vec<(ClientId, Reply)>, Violation> {
    fn names(keys: &[u8]) -> Vec<&[u8]> {
        keys.chunks(1).collect()
    }
    let one = std::slice::from_ref;
    let world_size;
    let expected;
    let request = match step {
        Operation::Set(key, byte) => Request::Set { key: one(key), value: one(byte) },
        Operation::Append(key, byte) => Request::Append { key: one(key), value: one(byte) },
        Operation::Add(key, delta) => Request::Add { key: one(key), delta: i64::from(*delta) },
        Operation::CompareSet(key, byte, desired) => {
            expected = byte_or_empty(*byte);
            Request::CompareSet { key: one(key), expected: &expected, desired: one(desired) }
        }
        Operation::Delete(key) => Request::DeleteKey { key: one(key) },
        Operation::Get(key) => Request::Get { key: one(key) },
        Operation::MultiGet(keys) => Request::MultiGet { keys: names(keys) },
        Operation::Check(keys) => Request::Check { keys: names(keys) },
        Operation::Wait(keys) => Request::Wait { keys: names(keys) },
        Operation::Cancel => Request::CancelWait,
        Operation::NumKeys => Request::NumKeys,
        Operation::Push(key, byte) => Request::QueuePush { key: one(key), value: one(byte) },
        Operation::Pop(key) => Request::QueuePop { key: one(key) },
        Operation::Length(key) => Request::QueueLength { key: one(key) },
        Operation::Barrier(key, size) => {
            world_size = i64::from(*size);
            Request::Barrier { key: one(key), world_size }
        }
        Operation::Reconnect => {
            state.disconnect(client);
            state.connect(client);
            return Ok(vec![]);
        }
    };
    state.handle(client, request)
}

fn steps() -> impl Strategy<Value = (u8, Operation)> {
    let key = || 0u8..5;
    let keys = || vec(0u8..5, 0..4);
    let digit = || b'0'..=b'9';
    let step = prop_oneof![
        (key(), prop_oneof![digit(), Just(b'x')]).prop_map(|(key, byte)| Operation::Set(key, byte)),
        (key(), digit()).prop_map(|(key, byte)| Operation::Append(key, byte)),
        (key(), any::<i8>()).prop_map(|(key, delta)| Operation::Add(key, delta)),
        (key(), prop_oneof![Just(0u8), digit()], digit())
            .prop_map(|(key, expected, desired)| Operation::CompareSet(key, expected, desired)),
        key().prop_map(Operation::Delete),
        key().prop_map(Operation::Get),
        keys().prop_map(Operation::MultiGet),
        keys().prop_map(Operation::Check),
        keys().prop_map(Operation::Wait),
        keys().prop_map(Operation::Wait),
        Just(Operation::Cancel),
        Just(Operation::NumKeys),
        (key(), digit()).prop_map(|(key, byte)| Operation::Push(key, byte)),
        key().prop_map(Operation::Pop),
        key().prop_map(Operation::Length),
        (key(), -1i8..4).prop_map(|(key, size)| Operation::Barrier(key, size)),
        Just(Operation::Reconnect),
    ];
    (0u8..6, step)
}

proptest! {
    #[test]
    fn any_sequence_is_answered_as_the_naive_model_answers(steps in vec(steps(), 0..80)) {
        let mut state = State::new();
        let mut model = Model::default();
        (0..6).for_each(|client| state.connect(ClientId(client)));
        for (client, step) in steps {
            let client = ClientId(u64::from(client));
            let expected = model.step(client, &step);
            let found = real_step(&mut state, client, &step).ok();
            // Replies to different clients may leave in any order; each client gets at most two at a time here.
            let by_client = |replies: Option<Vec<(ClientId, Reply)>>| {
                replies.map(|replies| {
                    let mut sorted: HashMap<ClientId, Vec<Reply>> = HashMap::new();
                    replies.into_iter().for_each(|(to, reply)| sorted.entry(to).or_default().push(reply));
                    sorted
                })
            };
            let refused = expected.is_none();
            prop_assert_eq!(by_client(found), by_client(expected));
            if refused {
                model.forget(client);
                state.disconnect(client);
                state.connect(client);
            }
        }
    }
}
