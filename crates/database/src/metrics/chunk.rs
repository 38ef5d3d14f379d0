//! A chunk: points of one series, each column packed for itself, then compressed.
//!
//! ```text
//! chunk    = version (1 byte) · zstd(body) if that is 1, body as it is if 2
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
//! exactly, such as numbers with two decimals, pack better as they are: both layouts are tried on a part, and the one that
//! made it smaller is kept.
//! (`examples/pack.rs` measures it.) Decoding distrusts every
//! byte: it fails, and never panics or allocates more than the content can hold.

use std::borrow::Cow;
use std::cell::RefCell;

use instep_api::values::Datum;

use super::columns::{
    put_changes_of_changes, put_varint, take, take_changes_of_changes, take_varint, unzigzag, zigzag,
};

/// The formats that are written; all formats ever written stay readable.
const PACKED: u8 = 1;
const OPEN: u8 = 2;
/// zstd's level: higher ones gain a few per cent and cost several times as much.
const LEVEL: i32 = 3;
/// Points of a chunk that are packed in both layouts, to see which suits them.
const SAMPLE: usize = 512;
/// A body larger than this was not written by us.
const LARGEST_BODY: usize = 256 * 1024 * 1024;

/// One value of a metric, and when it was reported.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Point {
    /// Batches completed.
    pub step: i64,
    /// Which start of the trial said so.
    pub run: i64,
    /// Microseconds since 1970.
    pub time: i64,
    pub value: Datum,
}

/// Why a chunk could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Written by a later version.
    #[error("a chunk has format {0}, this version knows 1 and 2")]
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
    let sample = &points[..points.len().min(SAMPLE)];
    let [planes, plain] = [Layout::Planes, Layout::Plain].map(|layout| encode_with(sample, layout));
    let (layout, packed) = if plain.len() < planes.len() { (Layout::Plain, plain) } else { (Layout::Planes, planes) };
    if sample.len() == points.len() { packed } else { encode_with(points, layout) }
}

/// The same without zstd, for few points: those are read quicker and take hardly more.
pub fn encode_open(points: &[Point]) -> Vec<u8> {
    let mut chunk = Vec::with_capacity(points.len() * 16 + 16);
    chunk.push(OPEN);
    put_body(&mut chunk, points, Layout::Plain);
    chunk
}

fn encode_with(points: &[Point], layout: Layout) -> Vec<u8> {
    let mut body = Vec::with_capacity(points.len() * 16 + 16);
    put_body(&mut body, points, layout);
    let packed = COMPRESSOR.with_borrow_mut(|compressor| compressor.compress(&body));
    let mut chunk = vec![PACKED];
    chunk.extend_from_slice(&packed.expect("compressing into memory cannot fail"));
    chunk
}

fn put_body(body: &mut Vec<u8>, points: &[Point], layout: Layout) {
    body.push(layout as u8);
    put_varint(body, points.len() as u64);
    body.extend(points.iter().map(|point| match point.value {
        Datum::Float(_) => 0,
        Datum::Integer(_) => 1,
        Datum::Json(_) => 2,
    }));
    put_changes_of_changes(body, points.iter().map(|point| point.step));
    let mut before = 0;
    for point in points {
        put_varint(body, zigzag(point.run.wrapping_sub(before)));
        before = point.run;
    }
    put_changes_of_changes(body, points.iter().map(|point| point.time));
    put_words(body, points, layout);
    for point in points {
        if let Datum::Json(text) = &point.value {
            put_varint(body, text.len() as u64);
            body.extend_from_slice(text.as_bytes());
        }
    }
}

thread_local! {
    // To make one takes longer than to pack or unpack a small chunk with it.
    static COMPRESSOR: RefCell<zstd::bulk::Compressor<'static>> =
        RefCell::new(zstd::bulk::Compressor::new(LEVEL).expect("a level that zstd has"));
    static DECOMPRESSOR: RefCell<zstd::bulk::Decompressor<'static>> =
        RefCell::new(zstd::bulk::Decompressor::new().expect("memory for it"));
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

/// Unpacks the steps of a chunk, and nothing else of it.
pub fn decode_steps(chunk: &[u8]) -> Result<Vec<i64>, DecodeError> {
    let body = body_of(chunk)?;
    let mut rest = body.as_ref();
    take(&mut rest, 1)?;
    let count = usize::try_from(take_varint(&mut rest)?).map_err(|_| DecodeError::Damaged)?;
    take(&mut rest, count)?;
    take_changes_of_changes(&mut rest, count)
}

/// Unpacks a chunk.
pub fn decode(chunk: &[u8]) -> Result<Vec<Point>, DecodeError> {
    let body = body_of(chunk)?;
    let mut rest = body.as_ref();
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

fn body_of(chunk: &[u8]) -> Result<Cow<'_, [u8]>, DecodeError> {
    let (&version, packed) = chunk.split_first().ok_or(DecodeError::Damaged)?;
    match version {
        PACKED => {}
        OPEN => return Ok(Cow::Borrowed(packed)),
        other => return Err(DecodeError::Version(other)),
    }
    let size = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten().ok_or(DecodeError::Damaged)?;
    let size = usize::try_from(size).map_err(|_| DecodeError::Damaged)?;
    // zstd cannot pack better than about 1 : 32,000; a claim beyond that is damage.
    if size > LARGEST_BODY || size / 65_536 > packed.len() {
        return Err(DecodeError::Damaged);
    }
    let body = DECOMPRESSOR.with_borrow_mut(|unpacker| unpacker.decompress(packed, size));
    body.map(Cow::Owned).map_err(|_| DecodeError::Damaged)
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
