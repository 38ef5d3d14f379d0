//! Any requests of a few clients, with connects, disconnects and generations in between: nobody is answered twice for one
//! request, and nobody who is not connected is answered at all.
#![no_main]

use std::collections::HashMap;

use arbitrary::Arbitrary;
use instep_store::protocol::decode;
use instep_store::{ClientId, Limits, Request, State};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Event<'a> {
    Connect(u8),
    Disconnect(u8),
    Generation,
    /// Bytes as they come from the network.
    Bytes(u8, &'a [u8]),
    Set(u8, u8),
    Add(u8, u8, i8),
    Wait(u8, [u8; 2]),
    Push(u8, u8),
    Barrier(u8, u8, i8),
    Cancel(u8),
}

fuzz_target!(|events: Vec<Event<'_>>| {
    let limits = Limits { key: 64, payload: 256, keys: 32, request: 2048 };
    let mut state = State::new();
    // Requests of each connected client that may still be answered.
    let mut unanswered: HashMap<ClientId, i64> = HashMap::new();
    for event in &events {
        let (client, request) = match event {
            Event::Connect(client) => {
                let client = ClientId(u64::from(client % 8));
                state.connect(client);
                unanswered.entry(client).or_default();
                continue;
            }
            Event::Disconnect(client) => {
                let client = ClientId(u64::from(client % 8));
                state.disconnect(client);
                unanswered.remove(&client);
                continue;
            }
            Event::Generation => {
                state.begin_generation();
                continue;
            }
            Event::Bytes(client, bytes) => match decode(bytes, &limits) {
                Ok(Some((request, _))) => (client, request),
                Ok(None) | Err(_) => continue,
            },
            Event::Set(client, key) => (client, Request::Set { key: std::slice::from_ref(key), value: b"1" }),
            Event::Add(client, key, delta) => {
                (client, Request::Add { key: std::slice::from_ref(key), delta: i64::from(*delta) })
            }
            Event::Wait(client, keys) => (client, Request::Wait { keys: keys.chunks(1).collect() }),
            Event::Push(client, key) => (client, Request::QueuePush { key: std::slice::from_ref(key), value: b"1" }),
            Event::Barrier(client, key, size) => {
                (client, Request::Barrier { key: std::slice::from_ref(key), world_size: i64::from(*size) })
            }
            Event::Cancel(client) => (client, Request::CancelWait),
        };
        let client = ClientId(u64::from(client % 8));
        match state.handle(client, request) {
            Ok(replies) => {
                *unanswered.get_mut(&client).expect("only connected clients are served") += 1;
                for (to, _) in replies {
                    let left = unanswered.get_mut(&to).expect("only connected clients are answered");
                    *left -= 1;
                    assert!(*left >= 0, "{to:?} was answered more often than it asked");
                }
            }
            Err(_) => {
                state.disconnect(client);
                unanswered.remove(&client);
            }
        }
    }
    assert_eq!(state.client_count(), unanswered.len());
});
