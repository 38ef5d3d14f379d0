//! The codec: golden bytes captured from torch's client, limits, and properties over arbitrary requests and bytes.

use std::time::{Duration, Instant};

use instep_store::protocol::{Decoder, HELLO, MAGIC, decode};
use instep_store::{Limits, Request, Violation};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};

/// A request that owns its bytes.
#[derive(Clone, Debug)]
enum Owned {
    Plain(u8, Vec<u8>, Vec<u8>, Vec<u8>, i64),
    Keys(u8, Vec<Vec<u8>>),
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
}

impl Owned {
    fn request(&self) -> Request<'_> {
        match self {
            Owned::Plain(kind, key, value, other, number) => match kind {
                0 => Request::Validate { magic: *number as u32 },
                1 => Request::Set { key, value },
                2 => Request::CompareSet { key, expected: value, desired: other },
                3 => Request::Get { key },
                4 => Request::Add { key, delta: *number },
                5 => Request::NumKeys,
                6 => Request::DeleteKey { key },
                7 => Request::Append { key, value },
                8 => Request::CancelWait,
                9 => Request::Ping { nonce: *number as u32 },
                10 => Request::QueuePush { key, value },
                11 => Request::QueuePop { key },
                12 => Request::QueueLength { key },
                13 => Request::ListKeys,
                _ => Request::Barrier { key, world_size: *number },
            },
            Owned::Keys(kind, keys) => {
                let keys = keys.iter().map(Vec::as_slice).collect();
                match kind {
                    0 => Request::Check { keys },
                    1 => Request::Wait { keys },
                    _ => Request::MultiGet { keys },
                }
            }
            Owned::Pairs(pairs) => {
                Request::MultiSet { pairs: pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect() }
            }
        }
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => vec(any::<u8>(), 0..12), 1 => vec(any::<u8>(), 0..300)]
}

fn requests() -> impl Strategy<Value = Owned> {
    prop_oneof![
        4 => (0u8..15, bytes(), bytes(), bytes(), any::<i64>())
            .prop_map(|(kind, key, value, other, number)| Owned::Plain(kind, key, value, other, number)),
        1 => (0u8..3, vec(bytes(), 0..6)).prop_map(|(kind, keys)| Owned::Keys(kind, keys)),
        1 => vec((bytes(), bytes()), 0..6).prop_map(Owned::Pairs),
    ]
}

fn encode(requests: &[Owned]) -> Vec<u8> {
    let mut out = Vec::new();
    requests.iter().for_each(|request| request.request().encode(&mut out));
    out
}

/// Decodes as a connection does: the buffer grows piece by piece, whole requests leave it.
fn decode_pieces(bytes: &[u8], sizes: &[usize]) -> (Vec<String>, Option<Violation>) {
    let limits = Limits::default();
    let (mut decoder, mut buffer, mut found) = (Decoder::default(), Vec::new(), Vec::new());
    let mut rest = bytes;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let size = sizes.next().map_or(rest.len(), |&size| size.clamp(1, rest.len()));
        buffer.extend_from_slice(&rest[..size]);
        rest = &rest[size..];
        loop {
            match decoder.decode(&buffer, &limits) {
                Ok(None) => break,
                Ok(Some((request, length))) => {
                    found.push(format!("{request:?}"));
                    buffer.drain(..length);
                }
                Err(violation) => return (found, Some(violation)),
            }
        }
    }
    (found, None)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(request in requests()) {
        let bytes = encode(std::slice::from_ref(&request));
        let (decoded, length) = decode(&bytes, &Limits::default()).unwrap().unwrap();
        prop_assert_eq!(decoded, request.request());
        prop_assert_eq!(length, bytes.len());
        prop_assert_eq!(decode(&bytes[..length - 1], &Limits::default()), Ok(None));
    }

    #[test]
    fn how_bytes_are_split_makes_no_difference(
        requests in vec(requests(), 0..20), sizes in vec(1usize..200, 1..20)
    ) {
        let bytes = encode(&requests);
        let expected: Vec<String> = requests.iter().map(|request| format!("{:?}", request.request())).collect();
        prop_assert_eq!(decode_pieces(&bytes, &sizes), (expected.clone(), None));
        prop_assert_eq!(decode_pieces(&bytes, &[1]), (expected, None));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        bytes in vec(prop_oneof![3 => Just(0u8), 2 => 0u8..20, 1 => any::<u8>()], 0..400), sizes in vec(1usize..40, 1..9)
    ) {
        let whole = decode_pieces(&bytes, &[usize::MAX]);
        let pieces = decode_pieces(&bytes, &sizes);
        prop_assert_eq!(&whole, &pieces);
        prop_assert!(whole.0.len() <= bytes.len());
    }
}

#[test]
fn requests_look_on_the_wire_as_torch_sends_them() {
    let hex = |text: &str| -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        (0..text.len() / 2).map(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap()).collect()
    };
    let cases = [
        (Request::Validate { magic: MAGIC }, "00 cef7853c"),
        (Request::Ping { nonce: 0x4597 }, "0d 97450000"),
        (Request::Set { key: b"/k", value: b"v" }, "01 0200000000000000 2f6b 0100000000000000 76"),
        (Request::Wait { keys: vec![b"/k"] }, "06 0100000000000000 0200000000000000 2f6b"),
        (Request::Get { key: b"/k" }, "03 0200000000000000 2f6b"),
        (Request::Add { key: b"/n", delta: 5 }, "04 0200000000000000 2f6e 0500000000000000"),
        (Request::NumKeys, "07"),
        (Request::CancelWait, "0c"),
        (Request::Barrier { key: b"/bar", world_size: 1 }, "12 0400000000000000 2f626172 0100000000000000"),
    ];
    for (request, bytes) in cases {
        let mut encoded = Vec::new();
        request.encode(&mut encoded);
        assert_eq!(encoded, hex(bytes), "{request:?}");
        assert_eq!(decode(&encoded, &Limits::default()), Ok(Some((request, encoded.len()))));
    }
    assert_eq!(HELLO[..], hex("00 cef7853c"));
}

#[test]
fn what_is_over_a_limit_is_refused_before_its_bytes_arrive() {
    let limits = Limits::default();
    let number = |number: u64| number.to_le_bytes();
    let cases = [
        (vec![19], Violation::UnknownOperation { code: 19 }),
        (vec![255], Violation::UnknownOperation { code: 255 }),
        ([&[3][..], &number(8193)].concat(), Violation::KeyTooLong { length: 8193, limit: 8192 }),
        ([&[3][..], &number(u64::MAX)].concat(), Violation::KeyTooLong { length: u64::MAX, limit: 8192 }),
        (
            [&[1][..], &number(1), b"k", &number((8 << 20) + 1)].concat(),
            Violation::PayloadTooLong { length: (8 << 20) + 1, limit: 8 << 20 },
        ),
        ([&[6][..], &number(131_073)].concat(), Violation::TooManyKeys { count: 131_073, limit: 131_072 }),
    ];
    for (bytes, expected) in cases {
        assert_eq!(decode(&bytes, &limits), Err(expected));
    }
    let mut many = [&[11][..], &number(9)].concat();
    for _ in 0..8 {
        many.extend([&number(0)[..], &number(8 << 20)].concat());
        many.resize(many.len() + (8 << 20), 0);
    }
    assert_eq!(decode(&many, &limits), Err(Violation::RequestTooLong { limit: 64 << 20 }));
}

#[test]
fn a_large_request_in_small_pieces_costs_linear_time() {
    let key: &[u8] = b"k";
    let request = Request::Wait { keys: vec![key; 131_072] };
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    let mut decoder = Decoder::default();
    let began = Instant::now();
    // One byte at a time: scanning from the start each time would be 10^11 steps.
    for length in 0..bytes.len() {
        assert_eq!(decoder.decode(&bytes[..length], &Limits::default()), Ok(None));
    }
    let decoded = decoder.decode(&bytes, &Limits::default());
    assert_eq!(decoded, Ok(Some((request, bytes.len()))));
    assert!(began.elapsed() < Duration::from_secs(10));
}
