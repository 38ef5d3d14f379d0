//! The format of chunks: any points survive, any bytes are refused without a panic.

use instep_api::values::Datum;
use instep_database::chunk::{Point, decode, decode_steps, encode};
use proptest::prelude::*;

fn datum() -> impl Strategy<Value = Datum> {
    prop_oneof![
        any::<u64>().prop_map(|bits| Datum::Float(f64::from_bits(bits))),
        (-10.0..10.0f64).prop_map(Datum::Float),
        any::<i64>().prop_map(Datum::Integer),
        "\\PC{0,20}".prop_map(Datum::Json),
    ]
}

fn point() -> impl Strategy<Value = Point> {
    let whole = || prop_oneof![any::<i64>(), 0..10_000i64];
    (whole(), whole(), whole(), datum()).prop_map(|(step, run, time, value)| Point { step, run, time, value })
}

/// Compared by bits, because NaN differs from itself.
fn same(one: &Point, other: &Point) -> bool {
    let values = match (&one.value, &other.value) {
        (Datum::Float(one), Datum::Float(other)) => one.to_bits() == other.to_bits(),
        (one, other) => one == other,
    };
    values && (one.step, one.run, one.time) == (other.step, other.run, other.time)
}

proptest! {
    #[test]
    fn any_points_survive(points in prop::collection::vec(point(), 0..300)) {
        let decoded = decode(&encode(&points)).unwrap();
        let steps: Vec<i64> = points.iter().map(|point| point.step).collect();
        prop_assert_eq!(decode_steps(&encode(&points)).unwrap(), steps);
        prop_assert_eq!(decoded.len(), points.len());
        prop_assert!(points.iter().zip(&decoded).all(|(one, other)| same(one, other)));
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
        let _ = decode_steps(&bytes);
    }

    #[test]
    fn damage_never_panics(points in prop::collection::vec(point(), 1..50), at in any::<prop::sample::Index>(), flip in 1..=255u8) {
        let mut chunk = encode(&points);
        let at = at.index(chunk.len());
        chunk[at] ^= flip;
        let _ = decode(&chunk);
        chunk.truncate(at);
        prop_assert!(decode(&chunk).is_err());
    }
}

#[test]
fn ordinary_metrics_pack_well() {
    // A loss that falls with noise, reported every 100 ms or so.
    let mut noise = 1u64;
    let points: Vec<Point> = (0..4096)
        .map(|step| {
            noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let jitter = (noise >> 40) as f64 / (1 << 24) as f64;
            Point {
                step,
                run: 1,
                time: 1_700_000_000_000_000 + step * 100_000 + (noise >> 52) as i64,
                value: Datum::Float(f64::from((1.0 / (step + 1) as f64 + 0.01 * jitter) as f32)),
            }
        })
        .collect();
    let bytes = encode(&points).len();
    // Eight bytes of value, eight of time and eight of step would be 98,304.
    assert!(bytes < 30_000, "{bytes} bytes");
    let constant: Vec<Point> =
        points.iter().map(|point| Point { value: Datum::Integer(7), time: 0, ..point.clone() }).collect();
    assert!(encode(&constant).len() < 200);
}
