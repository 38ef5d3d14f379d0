//! A chunk: points of one series, each column packed for itself, then compressed.
//!
//! ```text
//! chunk    = version (1 byte, = 1) · zstd(body)
//! body     = layout (1 byte) · count · kinds · steps · runs · times · words · texts
//! count    = varint
//! kinds    = a byte a point: 0 float, 1 integer, 2 anything else
//! steps    = varint of zigzag of the change of the change from the point before
//! runs     = varint of zigzag of the change
//! times    = like steps, microseconds
//! words    = bits of the float or integer. Layout 0: exclusive-or with those before, all highest bytes first, then all
//!            next ones …; layout 1: as they are, little-endian
//! texts    = for each point of kind 2: length (varint) · JSON
//! ```
//!
//! Neighbours are alike, so most bytes become zero or equal, and zstd removes what is left. Values that come back
//! exactly, such as numbers with two decimals, pack better as they are: both layouts are tried and the smaller is kept.
//! (`examples/pack.rs` measures it.) Decoding distrusts every
//! byte: it fails, and never panics or allocates more than the content can hold.

use serde_json::{Number, Value};

/// The format that is written; all formats ever written stay readable.
const VERSION: u8 = 1;
/// zstd's level: higher ones gain a few per cent and cost several times as much.
const LEVEL: i32 = 3;
/// A body larger than this was not written by us.
const LARGEST_BODY: usize = 256 * 1024 * 1024;

/// One value of a metric, and when it was reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Batches completed.
    pub step: i64,
    /// Which start of the trial said so.
    pub run: i64,
    /// Microseconds since 1970.
    pub time: i64,
    /// The value.
    pub value: Datum,
}

/// A value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// A number, also one that is not finite.
    Float(f64),
    /// A whole number, which is shown without a fraction.
    Integer(i64),
    /// The JSON of anything else.
    Json(String),
}

impl Datum {
    /// The value of a JSON value. Numbers that are not finite come as strings.
    pub fn of(value: &Value) -> Datum {
        match value {
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Datum::Integer(whole),
                (None, Some(float)) if !number.is_u64() => Datum::Float(float),
                _ => Datum::Json(value.to_string()),
            },
            Value::String(text) => match text.as_str() {
                "NaN" => Datum::Float(f64::NAN),
                "Infinity" => Datum::Float(f64::INFINITY),
                "-Infinity" => Datum::Float(f64::NEG_INFINITY),
                _ => Datum::Json(value.to_string()),
            },
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Datum::Json(value.to_string()),
        }
    }

    /// The JSON value of it.
    pub fn value(&self) -> Value {
        match self {
            Datum::Float(float) => float_value(*float),
            Datum::Integer(whole) => Value::from(*whole),
            // It was JSON when it was written; damage shows as null rather than as an error of everything around it.
            Datum::Json(text) => serde_json::from_str(text).unwrap_or(Value::Null),
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Datum::Float(float) => Some(*float),
            Datum::Integer(whole) => Some(*whole as f64),
            Datum::Json(_) => None,
        }
    }
}

/// A float in JSON: a number, or a string if it is not finite.
pub fn float_value(float: f64) -> Value {
    Number::from_f64(float).map_or_else(
        || {
            let name = if float.is_nan() {
                "NaN"
            } else if float > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            };
            Value::from(name)
        },
        Value::Number,
    )
}

/// The number in a JSON value, if it is a finite one.
pub fn finite_number(value: &Value) -> Option<f64> {
    Datum::of(value).number().filter(|number| number.is_finite())
}

/// Why a chunk could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Written by a later version.
    #[error("a chunk has format {0}, this version knows {VERSION}")]
    Version(u8),
    /// Cut off or overwritten.
    #[error("a chunk is damaged")]
    Damaged,
}

/// How the words of a chunk lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Planes = 0,
    Plain = 1,
}

/// Packs points, in their order.
pub fn encode(points: &[Point]) -> Vec<u8> {
    let planes = encode_with(points, Layout::Planes);
    let plain = encode_with(points, Layout::Plain);
    if plain.len() < planes.len() { plain } else { planes }
}

fn encode_with(points: &[Point], layout: Layout) -> Vec<u8> {
    let mut body = Vec::with_capacity(points.len() * 16 + 16);
    body.push(layout as u8);
    put_varint(&mut body, points.len() as u64);
    body.extend(points.iter().map(|point| match point.value {
        Datum::Float(_) => 0,
        Datum::Integer(_) => 1,
        Datum::Json(_) => 2,
    }));
    put_changes_of_changes(&mut body, points.iter().map(|point| point.step));
    let mut before = 0;
    for point in points {
        put_varint(&mut body, zigzag(point.run.wrapping_sub(before)));
        before = point.run;
    }
    put_changes_of_changes(&mut body, points.iter().map(|point| point.time));
    put_words(&mut body, points, layout);
    for point in points {
        if let Datum::Json(text) = &point.value {
            put_varint(&mut body, text.len() as u64);
            body.extend_from_slice(text.as_bytes());
        }
    }
    let mut chunk = vec![VERSION];
    let packed = zstd::bulk::compress(&body, LEVEL).expect("compressing into memory cannot fail");
    chunk.extend_from_slice(&packed);
    chunk
}

fn put_words(body: &mut Vec<u8>, points: &[Point], layout: Layout) {
    let words = points.iter().filter_map(|point| match point.value {
        Datum::Float(float) => Some(float.to_bits()),
        Datum::Integer(whole) => Some(whole.cast_unsigned()),
        Datum::Json(_) => None,
    });
    match layout {
        Layout::Plain => body.extend(words.flat_map(u64::to_le_bytes)),
        Layout::Planes => {
            let changes: Vec<u64> =
                words.scan(0, |before, word| Some(std::mem::replace(before, word) ^ word)).collect();
            for plane in (0..8).rev() {
                body.extend(changes.iter().map(|change| (change >> (8 * plane)) as u8));
            }
        }
    }
}

fn put_changes_of_changes(body: &mut Vec<u8>, values: impl Iterator<Item = i64>) {
    let (mut before, mut change_before) = (0i64, 0i64);
    for value in values {
        let change = value.wrapping_sub(before);
        put_varint(body, zigzag(change.wrapping_sub(change_before)));
        (before, change_before) = (value, change);
    }
}

/// Unpacks the steps of a chunk, and nothing else of it.
pub fn decode_steps(chunk: &[u8]) -> Result<Vec<i64>, DecodeError> {
    let body = body_of(chunk)?;
    let mut rest = body.as_slice();
    take(&mut rest, 1)?;
    let count = usize::try_from(take_varint(&mut rest)?).map_err(|_| DecodeError::Damaged)?;
    take(&mut rest, count)?;
    take_changes_of_changes(&mut rest, count)
}

/// Unpacks a chunk.
pub fn decode(chunk: &[u8]) -> Result<Vec<Point>, DecodeError> {
    let body = body_of(chunk)?;
    let mut rest = body.as_slice();
    let layout = match take(&mut rest, 1)?[0] {
        0 => Layout::Planes,
        1 => Layout::Plain,
        _ => return Err(DecodeError::Damaged),
    };
    let count = usize::try_from(take_varint(&mut rest)?).map_err(|_| DecodeError::Damaged)?;
    // Every point has at least its kind, so a count beyond the content is damage, and no reason to allocate.
    let kinds = take(&mut rest, count)?;
    let steps = take_changes_of_changes(&mut rest, count)?;
    let mut runs = Vec::with_capacity(count);
    let mut before = 0i64;
    for _ in 0..count {
        before = before.wrapping_add(unzigzag(take_varint(&mut rest)?));
        runs.push(before);
    }
    let times = take_changes_of_changes(&mut rest, count)?;
    let mut words = take_words(&mut rest, kinds.iter().filter(|kind| **kind < 2).count(), layout)?.into_iter();
    let mut points = Vec::with_capacity(count);
    for index in 0..count {
        let value = match kinds[index] {
            0 => Datum::Float(f64::from_bits(words.next().ok_or(DecodeError::Damaged)?)),
            1 => Datum::Integer(words.next().ok_or(DecodeError::Damaged)?.cast_signed()),
            2 => {
                let length = usize::try_from(take_varint(&mut rest)?).map_err(|_| DecodeError::Damaged)?;
                let text = std::str::from_utf8(take(&mut rest, length)?).map_err(|_| DecodeError::Damaged)?;
                Datum::Json(text.to_owned())
            }
            _ => return Err(DecodeError::Damaged),
        };
        points.push(Point { step: steps[index], run: runs[index], time: times[index], value });
    }
    if rest.is_empty() { Ok(points) } else { Err(DecodeError::Damaged) }
}

fn body_of(chunk: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let (&version, packed) = chunk.split_first().ok_or(DecodeError::Damaged)?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let size = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten().ok_or(DecodeError::Damaged)?;
    let size = usize::try_from(size).map_err(|_| DecodeError::Damaged)?;
    // zstd cannot pack better than about 1 : 32,000; a claim beyond that is damage.
    if size > LARGEST_BODY || size / 65_536 > packed.len() {
        return Err(DecodeError::Damaged);
    }
    zstd::bulk::decompress(packed, size).map_err(|_| DecodeError::Damaged)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], DecodeError> {
    let (taken, left) = rest.split_at_checked(count).ok_or(DecodeError::Damaged)?;
    *rest = left;
    Ok(taken)
}

fn take_words(rest: &mut &[u8], count: usize, layout: Layout) -> Result<Vec<u64>, DecodeError> {
    let bytes = take(rest, count.checked_mul(8).ok_or(DecodeError::Damaged)?)?;
    if layout == Layout::Plain {
        let word = |word: &[u8; 8]| u64::from_le_bytes(*word);
        return Ok(bytes.as_chunks().0.iter().map(word).collect());
    }
    let mut before = 0u64;
    let mut words = Vec::with_capacity(count);
    for index in 0..count {
        let change = (0..8).fold(0u64, |change, plane| change << 8 | u64::from(bytes[plane * count + index]));
        before ^= change;
        words.push(before);
    }
    Ok(words)
}

fn take_changes_of_changes(rest: &mut &[u8], count: usize) -> Result<Vec<i64>, DecodeError> {
    let (mut value, mut change) = (0i64, 0i64);
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        change = change.wrapping_add(unzigzag(take_varint(rest)?));
        value = value.wrapping_add(change);
        values.push(value);
    }
    Ok(values)
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

fn put_varint(body: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        body.push(value as u8 | 0x80);
        value >>= 7;
    }
    body.push(value as u8);
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, left) = rest.split_first().ok_or(DecodeError::Damaged)?;
        *rest = left;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(DecodeError::Damaged)
}
