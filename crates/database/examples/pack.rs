//! How well metrics pack, and how quickly: the measurement behind the format of chunks.
//!
//! `cargo run --release -p instep-database --example pack` prints, for a few shapes of metrics, the bytes of a point's
//! value and of a whole point, and the time to pack and unpack a chunk, beside other ways to do it.

#![expect(clippy::print_stdout, reason = "a program")]

use std::hint::black_box;
use std::time::Instant;

use instep_api::values::Datum;
use instep_database::chunk::{Point, decode, encode};

const POINTS: usize = 4096;

/// Noise in 0..1 that is the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn series(value: impl Fn(usize, &mut Noise) -> Datum) -> Vec<Point> {
    let mut noise = Noise(1);
    let point = |step: usize| Point {
        step: step as i64,
        run: 1,
        time: 1_700_000_000_000_000 + step as i64 * 100_000 + (noise.next() * 3000.0) as i64,
        value: value(step, &mut noise),
    };
    (0..POINTS).map(point).collect()
}

fn words(points: &[Point]) -> Vec<u64> {
    let bits = |point: &Point| point.value.number().unwrap_or(0.0).to_bits();
    points.iter().map(bits).collect()
}

fn packed(bytes: &[u8]) -> usize {
    zstd::bulk::compress(bytes, 3).map_or(0, |packed| packed.len())
}

/// Bits that Gorilla's encoding of floats would take: a bit for "the same", else a window of bits that differ.
fn gorilla(words: &[u64]) -> usize {
    let (mut bits, mut before) = (64, words[0]);
    let mut window = (65, 65);
    for word in &words[1..] {
        let change = word ^ before;
        before = *word;
        let (leading, trailing) = (change.leading_zeros().min(31), change.trailing_zeros());
        bits += if change == 0 {
            1
        } else if leading >= window.0 && trailing >= window.1 {
            2 + (64 - window.0 - window.1) as usize
        } else {
            window = (leading, trailing);
            2 + 5 + 6 + (64 - leading - trailing) as usize
        };
    }
    bits / 8
}

fn main() {
    let shapes: [(&str, Vec<Point>); 5] = [
        ("float64 loss", series(|step, noise| Datum::Float(1.0 / (step + 1) as f64 + 0.01 * noise.next()))),
        (
            "float32 loss",
            series(|step, noise| Datum::Float(f64::from((1.0 / (step + 1) as f64 + 0.01 * noise.next()) as f32))),
        ),
        ("learning rate", series(|step, _| Datum::Float(1e-3 * 0.999f64.powi(step as i32 / 100)))),
        ("two decimals", series(|_, noise| Datum::Float((noise.next() * 10_000.0).round() / 100.0))),
        ("whole numbers", series(|step, _| Datum::Integer(step as i64 * 32))),
    ];
    println!("bytes a point, {POINTS} points");
    println!("                 values: zstd   gorilla   xor·planes·zstd   whole point   pack µs   unpack µs");
    for (name, points) in &shapes {
        let words = words(points);
        let plain: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut planes = Vec::new();
        let changes: Vec<u64> =
            words.iter().scan(0, |before, word| Some(std::mem::replace(before, *word) ^ word)).collect();
        for plane in (0..8).rev() {
            planes.extend(changes.iter().map(|change| (change >> (8 * plane)) as u8));
        }
        let chunk = encode(points);
        let time = |work: &dyn Fn()| {
            let begin = Instant::now();
            (0..200).for_each(|_| work());
            begin.elapsed().as_secs_f64() * 1e6 / 200.0
        };
        let pack = time(&|| drop(black_box(encode(points))));
        let unpack = time(&|| drop(black_box(decode(&chunk))));
        let each = |bytes: usize| bytes as f64 / POINTS as f64;
        let (plain, gorilla, planes) = (each(packed(&plain)), each(gorilla(&words)), each(packed(&planes)));
        println!(
            "{name:<15} {plain:13.2} {gorilla:9.2} {planes:17.2} {:13.2} {pack:9.0} {unpack:11.0}",
            each(chunk.len())
        );
    }
}
