//! Several reports in one row of the tail.
//!
//! Reports of a batch that only add steps behind all others are written and packed away together: one row instead of a
//! hundred, and their values in columns, which take a third of the bytes that JSON takes and are not parsed again:
//!
//! ```text
//! block    = version (1 byte, = 1) · reports (varint) · steps · times · metrics (varint) · metric …
//! steps    = varint of zigzag of the change of the change from the report before; times likewise, in microseconds
//! metric   = length (varint) · name · length (varint) · column
//! column   = 0 · bits of every report's float, little-endian
//!          | 1 · kinds (a byte a report: 0 float, 1 integer, 2 anything else, 3 not reported) · bits of floats and
//!            integers · for each of kind 2: length (varint) · JSON
//! ```
//!
//! A report that touches a step inside such a row breaks it up first, which is rare. Rows of earlier versions are lines of
//! step, time and JSON.

use std::collections::BTreeSet;

use instep_api::identifiers::TrialId;
use instep_api::metrics::Report;
use instep_api::values::{Datum, Values};

use super::chunk::DecodeError;
use super::columns::{put_changes_of_changes, put_varint, take, take_changes_of_changes, take_count};
use super::tail::Form;
use crate::error::{Error, Result};
use crate::rows::text_of;
use crate::sql::{self, Connection, params};

/// Reports that share a row at most, so that breaking one up stays cheap.
pub(super) const REPORTS_PER_ROW: usize = 256;

/// The format that is written.
const VERSION: u8 = 1;
/// A column in which every report has a float.
const FLOATS: u8 = 0;
/// Any other column.
const MIXED: u8 = 1;

/// Whether a report may share a row with those that wait, of which it is the next.
pub(super) fn has_room(waiting: &[&Report], report: &Report) -> bool {
    waiting.len() < REPORTS_PER_ROW
        && waiting.first().is_none_or(|first| first.group == report.group && first.run == report.run)
}

/// Writes reports of a group and run down, as one row.
pub(super) fn write(connection: &Connection, reports: &[&Report]) -> Result<()> {
    let ([first, ..], [.., last]) = (reports, reports) else { return Ok(()) };
    if reports.len() == 1 {
        return write_single(connection, first, &first.values);
    }
    connection
        .prepare_cached(
            "INSERT INTO metric_tail \
             (trial_id, group_name, step, run_id, reported_at, metric_values, last_step, content) \
             VALUES (?, ?, ?, ?, ?, '', ?, ?)",
        )?
        .execute(params![
            first.trial.0,
            first.group,
            first.step,
            first.run.0,
            first.time.0,
            last.step,
            pack(reports)
        ])?;
    Ok(())
}

/// Writes a row with a single report, with these values in the place of its own.
pub(super) fn write_single(connection: &Connection, report: &Report, values: &Values) -> Result<()> {
    let Report { trial, group, run, step, time, .. } = report;
    write_row(connection, (*trial, group, run.0), *step, time.0, &text_of(values)?)
}

fn write_row(
    connection: &Connection,
    (trial, group, run): (TrialId, &str, i64),
    step: i64,
    time: i64,
    text: &str,
) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO metric_tail (trial_id, group_name, step, run_id, reported_at, metric_values) \
             VALUES (?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![trial.0, group, step, run, time, text])?;
    Ok(())
}

/// Packs reports, in their order.
fn pack(reports: &[&Report]) -> Vec<u8> {
    let alike = reports.iter().all(|report| report.values.have_names_of(&reports[0].values));
    let names: BTreeSet<&str> = match reports {
        [first, ..] if alike => first.values.iter().map(|(name, _)| name).collect(),
        _ => reports.iter().flat_map(|report| report.values.iter().map(|(name, _)| name)).collect(),
    };
    let mut block = Vec::with_capacity(names.len() * (reports.len() * 8 + 24) + reports.len() * 4 + 16);
    block.push(VERSION);
    put_varint(&mut block, reports.len() as u64);
    put_changes_of_changes(&mut block, reports.iter().map(|report| report.step));
    put_changes_of_changes(&mut block, reports.iter().map(|report| report.time.0));
    put_varint(&mut block, names.len() as u64);
    for (index, name) in names.into_iter().enumerate() {
        put_varint(&mut block, name.len() as u64);
        block.extend_from_slice(name.as_bytes());
        // Names lie in the same order here as in values that have all of them.
        let values = reports.iter().map(|report| &report.values);
        let column: Vec<Option<&Datum>> =
            values.map(|values| if alike { values.at(index) } else { values.get(name) }).collect();
        put_column(&mut block, &column);
    }
    block
}

fn put_column(block: &mut Vec<u8>, column: &[Option<&Datum>]) {
    if column.iter().all(|datum| matches!(datum, Some(Datum::Float(_)))) {
        put_varint(block, 1 + 8 * column.len() as u64);
        block.push(FLOATS);
        put_words(block, column);
        return;
    }
    let mut mixed = vec![MIXED];
    mixed.extend(column.iter().map(|datum| match datum {
        Some(Datum::Float(_)) => 0,
        Some(Datum::Integer(_)) => 1,
        Some(Datum::Json(_)) => 2,
        None => 3,
    }));
    put_words(&mut mixed, column);
    for datum in column.iter().flatten() {
        if let Datum::Json(text) = datum {
            put_varint(&mut mixed, text.len() as u64);
            mixed.extend_from_slice(text.as_bytes());
        }
    }
    put_varint(block, mixed.len() as u64);
    block.extend_from_slice(&mixed);
}

fn put_words(block: &mut Vec<u8>, column: &[Option<&Datum>]) {
    for datum in column.iter().flatten() {
        match datum {
            Datum::Float(float) => block.extend_from_slice(&float.to_bits().to_le_bytes()),
            Datum::Integer(whole) => block.extend_from_slice(&whole.to_le_bytes()),
            Datum::Json(_) => {}
        }
    }
}

/// A block that is being read.
pub(super) struct Block<'a> {
    pub steps: Vec<i64>,
    pub times: Vec<i64>,
    metrics: usize,
    rest: &'a [u8],
}

impl<'a> Block<'a> {
    pub(super) fn open(block: &'a [u8]) -> std::result::Result<Block<'a>, DecodeError> {
        let (&version, mut rest) = block.split_first().ok_or(DecodeError::Damaged)?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let reports = take_count(&mut rest)?;
        let steps = take_changes_of_changes(&mut rest, reports)?;
        let times = take_changes_of_changes(&mut rest, reports)?;
        let metrics = take_count(&mut rest)?;
        Ok(Block { steps, times, metrics, rest })
    }

    /// Hands over the name and the column of every metric that is wanted: what each report had of it.
    pub(super) fn each(
        &self,
        wanted: impl Fn(&str) -> bool,
        mut take_metric: impl FnMut(&str, Vec<Option<Datum>>),
    ) -> std::result::Result<(), DecodeError> {
        let mut rest = self.rest;
        for _ in 0..self.metrics {
            let length = take_count(&mut rest)?;
            let name = std::str::from_utf8(take(&mut rest, length)?).map_err(|_| DecodeError::Damaged)?;
            let length = take_count(&mut rest)?;
            let column = take(&mut rest, length)?;
            if wanted(name) {
                take_metric(name, take_column(column, self.steps.len())?);
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(DecodeError::Damaged) }
    }
}

fn take_column(column: &[u8], count: usize) -> std::result::Result<Vec<Option<Datum>>, DecodeError> {
    let (&form, mut rest) = column.split_first().ok_or(DecodeError::Damaged)?;
    let word = |word: &[u8; 8]| u64::from_le_bytes(*word);
    match form {
        FLOATS => match rest.as_chunks() {
            (words, []) if words.len() == count => {
                Ok(words.iter().map(|bits| Some(Datum::Float(f64::from_bits(word(bits))))).collect())
            }
            _ => Err(DecodeError::Damaged),
        },
        MIXED => {
            let kinds = take(&mut rest, count)?;
            let numbers = kinds.iter().filter(|kind| **kind < 2).count();
            let words = take(&mut rest, numbers.checked_mul(8).ok_or(DecodeError::Damaged)?)?;
            let mut words = words.as_chunks().0.iter().map(word);
            let mut data = Vec::with_capacity(count);
            for kind in kinds {
                data.push(match kind {
                    0 => Some(Datum::Float(f64::from_bits(words.next().ok_or(DecodeError::Damaged)?))),
                    1 => Some(Datum::Integer(words.next().ok_or(DecodeError::Damaged)?.cast_signed())),
                    2 => {
                        let length = take_count(&mut rest)?;
                        let text = std::str::from_utf8(take(&mut rest, length)?).map_err(|_| DecodeError::Damaged)?;
                        Some(Datum::Json(text.to_owned()))
                    }
                    3 => None,
                    _ => return Err(DecodeError::Damaged),
                });
            }
            if rest.is_empty() { Ok(data) } else { Err(DecodeError::Damaged) }
        }
        _ => Err(DecodeError::Damaged),
    }
}

/// Hands over the reports of a row of lines: step, time and the text of the values.
pub(super) fn each_line(
    text: &str,
    mut take: impl FnMut(i64, i64, &str) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    for line in text.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut number = || parts.next().and_then(|word| word.parse().ok()).ok_or_else(no_report);
        let (step, time) = (number()?, number()?);
        take(step, time, parts.next().ok_or_else(no_report)?)?;
    }
    Ok(())
}

fn no_report() -> serde_json::Error {
    serde::de::Error::custom("a line of the tail is not a step, a time and values")
}

/// Gives every report of a group that lies in a row with steps from `first` to `last` a row of its own.
pub(super) fn break_up(connection: &Connection, trial: TrialId, group: &str, first: i64, last: i64) -> Result<()> {
    let rows: Vec<(i64, i64, String, Option<Vec<u8>>)> = connection
        .prepare_cached(
            "SELECT id, run_id, metric_values, content FROM metric_tail \
             WHERE trial_id = ? AND group_name = ? AND last_step >= ? AND step <= ?",
        )?
        .query_map(params![trial.0, group, first, last], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<sql::Result<_>>()?;
    for (id, run, text, content) in rows {
        connection.prepare_cached("DELETE FROM metric_tail WHERE id = ?")?.execute([id])?;
        let form = content.as_deref().map_or(Form::Lines(&text), Form::Columns);
        for (step, time, text) in singles(&form)? {
            write_row(connection, (trial, group, run), step, time, &text)?;
        }
    }
    Ok(())
}

/// The reports of a row with several, each with the JSON of its values.
fn singles(form: &Form<'_>) -> Result<Vec<(i64, i64, String)>> {
    let mut singles = Vec::new();
    match form {
        Form::Single(_) => {}
        Form::Lines(text) => each_line(text, |step, time, values| {
            singles.push((step, time, values.to_owned()));
            Ok(())
        })
        .map_err(|error| Error::Damaged(format!("a report: {error}")))?,
        Form::Columns(content) => {
            let damaged = |error: DecodeError| Error::Damaged(error.to_string());
            let block = Block::open(content).map_err(damaged)?;
            let mut reports: Vec<Vec<(String, Datum)>> = vec![Vec::new(); block.steps.len()];
            let put = |name: &str, column: Vec<Option<Datum>>| {
                for (report, datum) in reports.iter_mut().zip(column) {
                    report.extend(datum.map(|datum| (name.to_owned(), datum)));
                }
            };
            block.each(|_| true, put).map_err(damaged)?;
            for ((step, time), report) in block.steps.iter().zip(&block.times).zip(reports) {
                let values: Values = report.iter().map(|(name, datum)| (name.as_str(), datum.clone())).collect();
                singles.push((*step, *time, text_of(&values)?));
            }
        }
    }
    Ok(singles)
}

#[cfg(test)]
mod tests {
    use instep_api::identifiers::RunId;
    use instep_api::wire::Timestamp;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn report((step, time): (i64, i64), values: Values) -> Report {
        let (trial, run, group) = (TrialId(1), RunId(1), "training".to_owned());
        Report { trial, run, group, step, time: Timestamp(time), values, batches: None }
    }

    /// Packs and takes apart again.
    fn again(reports: &[Report]) -> Vec<(i64, i64, Value)> {
        let packed = pack(&reports.iter().collect::<Vec<_>>());
        let singles = singles(&Form::Columns(&packed)).unwrap();
        singles.into_iter().map(|(step, time, text)| (step, time, serde_json::from_str(&text).unwrap())).collect()
    }

    fn datum() -> impl Strategy<Value = Datum> {
        prop_oneof![
            4 => any::<f64>().prop_map(Datum::Float),
            1 => any::<i64>().prop_map(Datum::Integer),
            1 => ".{0,8}".prop_map(|text| Datum::of(&Value::from(text))),
        ]
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-0-9a-z{} \n]{0,60}") {
            let _ = each_line(&text, |_, _, _| Ok(()));
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            bytes.insert(0, VERSION);
            if let Ok(block) = Block::open(&bytes) {
                let _ = block.each(|_| true, |_, _| {});
            }
        }

        #[test]
        fn damage_of_a_block_is_never_a_panic(
            values in prop::collection::vec(datum(), 2..20), place in any::<prop::sample::Index>(), byte in any::<u8>()
        ) {
            let one = |(index, datum): (usize, Datum)| report((index as i64, 7), [("a", datum)].into_iter().collect());
            let reports: Vec<Report> = values.into_iter().enumerate().map(one).collect();
            let mut packed = pack(&reports.iter().collect::<Vec<_>>());
            let place = place.index(packed.len());
            packed[place] = byte;
            let _ = singles(&Form::Columns(&packed));
            packed.truncate(place);
            prop_assert!(singles(&Form::Columns(&packed)).is_err());
        }

        #[test]
        fn reports_come_back_as_they_were(
            reports in prop::collection::vec(
                (any::<(i64, i64)>(), prop::collection::btree_map("[a-c]{0,2}", datum(), 0..5)), 2..20)
        ) {
            let reports: Vec<Report> = reports.iter().map(|(place, values)| {
                report(*place, values.iter().map(|(name, datum)| (name.as_str(), datum.clone())).collect())
            }).collect();
            let expected: Vec<(i64, i64, Value)> = reports.iter()
                .map(|report| (report.step, report.time.0, Value::Object(report.values.object()))).collect();
            prop_assert_eq!(again(&reports), expected);
        }
    }

    #[test]
    fn a_metric_is_found_without_the_others() {
        let values = |value: Value| Values::from(value.as_object().unwrap());
        let reports =
            [report((1, 10), values(json!({"a": 0.5, "b": 1}))), report((2, 20), values(json!({"a": "NaN"})))];
        let packed = pack(&reports.iter().collect::<Vec<_>>());
        let block = Block::open(&packed).unwrap();
        assert_eq!((&block.steps[..], &block.times[..]), (&[1, 2][..], &[10, 20][..]));
        let mut found = Vec::new();
        block.each(|name| name == "b", |name, column| found.push((name.to_owned(), column))).unwrap();
        assert_eq!(found, [("b".to_owned(), vec![Some(Datum::Integer(1)), None])]);
    }

    #[test]
    fn lines_of_earlier_versions_are_found_as_they_were_written() {
        let found = singles(&Form::Lines("1 10 {\"a\":1}\n2 20 {\"b\":[2, \"x\"]}\n")).unwrap();
        let expected = [(1, 10, r#"{"a":1}"#.to_owned()), (2, 20, r#"{"b":[2, "x"]}"#.to_owned())];
        assert_eq!(found, expected);
    }
}
