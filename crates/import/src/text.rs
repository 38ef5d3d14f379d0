//! Rows as PostgreSQL's `COPY` writes them: one line a row, a tab between columns, `\N` for null, and escapes.
//!
//! A server answers `COPY … TO STDOUT` in this form and a plain dump holds it, so both kinds of source are read by the
//! code in this file. It distrusts every byte: a dump may be cut off, edited or of something else.

use std::borrow::Cow;

use instep_api::wire::Timestamp;

use crate::error::{Error, Result};

/// Which columns of a table are wanted, and where in its rows they stand.
#[derive(Debug, Clone)]
pub struct Layout {
    table: &'static str,
    names: &'static [&'static str],
    places: Vec<usize>,
    width: usize,
}

impl Layout {
    /// For rows that have exactly the wanted columns.
    pub fn exact(table: &'static str, names: &'static [&'static str]) -> Layout {
        Layout { table, names, places: (0..names.len()).collect(), width: names.len() }
    }

    /// For rows with these columns, of which some are wanted.
    pub fn among(table: &'static str, names: &'static [&'static str], columns: &[String]) -> Result<Layout> {
        let place = |name: &&str| {
            columns
                .iter()
                .position(|column| column == name)
                .ok_or_else(|| Error::MissingColumn { table: table.to_owned(), column: (*name).to_owned() })
        };
        let places = names.iter().map(place).collect::<Result<_>>()?;
        Ok(Layout { table, names, places, width: columns.len() })
    }

    /// Takes a line apart. `number` counts the rows of the table from 1, for errors.
    pub fn row<'a>(&'a self, line: &'a [u8], number: u64) -> Result<Row<'a>> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
        if fields.len() != self.width {
            let why = format!("it has {} columns, the table {}", fields.len(), self.width);
            return Err(Error::Row { table: self.table, number, column: None, why });
        }
        Ok(Row { layout: self, fields, number })
    }
}

/// One row of a table; its columns are read by name.
#[derive(Debug)]
pub struct Row<'a> {
    layout: &'a Layout,
    fields: Vec<&'a [u8]>,
    number: u64,
}

impl Row<'_> {
    /// The table that it is of.
    pub fn table(&self) -> &'static str {
        self.layout.table
    }

    /// How many bytes it takes as text.
    pub fn size(&self) -> usize {
        self.fields.iter().map(|field| field.len()).sum()
    }

    /// An error about a column of this row.
    pub fn wrong(&self, column: &'static str, why: impl Into<String>) -> Error {
        Error::Row { table: self.layout.table, number: self.number, column: Some(column), why: why.into() }
    }

    /// The bytes of a column without their escapes; `None` for null.
    fn bytes(&self, name: &'static str) -> Result<Option<Cow<'_, [u8]>>> {
        let Some(index) = self.layout.names.iter().position(|known| *known == name) else {
            return Err(self.wrong(name, "it is not among the columns that are read"));
        };
        let field = self.fields[self.layout.places[index]];
        if field == b"\\N" { Ok(None) } else { Ok(Some(unescape(field))) }
    }

    /// Text that may be null.
    pub fn optional_text(&self, name: &'static str) -> Result<Option<String>> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        match String::from_utf8(bytes.into_owned()) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(self.wrong(name, "it is not UTF-8")),
        }
    }

    /// Text.
    pub fn text(&self, name: &'static str) -> Result<String> {
        self.optional_text(name)?.ok_or_else(|| self.wrong(name, "it is null"))
    }

    /// Text, or none for null.
    pub fn text_or_empty(&self, name: &'static str) -> Result<String> {
        Ok(self.optional_text(name)?.unwrap_or_default())
    }

    fn parsed<T>(&self, name: &'static str, what: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(text) = self.optional_text(name)? else { return Ok(None) };
        let value = parse(&text);
        value.map(Some).ok_or_else(|| self.wrong(name, format!("`{}` is not {what}", short(&text))))
    }

    /// A whole number that may be null.
    pub fn optional_integer(&self, name: &'static str) -> Result<Option<i64>> {
        self.parsed(name, "a whole number", |text| text.parse().ok())
    }

    /// A whole number.
    pub fn integer(&self, name: &'static str) -> Result<i64> {
        self.optional_integer(name)?.ok_or_else(|| self.wrong(name, "it is null"))
    }

    /// A number that may be null.
    pub fn optional_number(&self, name: &'static str) -> Result<Option<f64>> {
        self.parsed(name, "a number", |text| text.parse().ok())
    }

    /// A truth value; null counts as false.
    pub fn truth(&self, name: &'static str) -> Result<bool> {
        let found = self.parsed(name, "t or f", |text| match text {
            "t" => Some(true),
            "f" => Some(false),
            _ => None,
        })?;
        Ok(found.unwrap_or(false))
    }

    /// A time that may be null.
    pub fn optional_time(&self, name: &'static str) -> Result<Option<Timestamp>> {
        self.parsed(name, "a time", |text| time_of(text).map(Timestamp))
    }

    /// A time.
    pub fn time(&self, name: &'static str) -> Result<Timestamp> {
        self.optional_time(name)?.ok_or_else(|| self.wrong(name, "it is null"))
    }

    /// JSON that may be null.
    pub fn optional_json(&self, name: &'static str) -> Result<Option<serde_json::Value>> {
        let Some(text) = self.optional_text(name)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| self.wrong(name, format!("it is not JSON: {error}")))
    }

    /// Bytes, which are written in hexadecimal; null has none.
    pub fn content(&self, name: &'static str) -> Result<Vec<u8>> {
        let Some(bytes) = self.bytes(name)? else { return Ok(Vec::new()) };
        bytes.strip_prefix(b"\\x").and_then(unhex).ok_or_else(|| self.wrong(name, "it is not bytes in hexadecimal"))
    }

    /// A list of texts; null has none.
    pub fn texts(&self, name: &'static str) -> Result<Vec<String>> {
        let texts = self.parsed(name, "a list of texts", list_of)?;
        Ok(texts.unwrap_or_default())
    }
}

/// The start of a text, for errors.
fn short(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Takes the escapes of a field away.
pub fn unescape(field: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = field.iter().position(|byte| *byte == b'\\') else { return Cow::Borrowed(field) };
    let mut plain = Vec::with_capacity(field.len());
    plain.extend_from_slice(&field[..first]);
    let mut rest = &field[first..];
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        let Some((&letter, after)) = rest.split_first() else {
            plain.push(b'\\');
            break;
        };
        rest = after;
        plain.push(match letter {
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'0'..=b'7' => {
                let mut value = u32::from(letter - b'0');
                for _ in 0..2 {
                    match rest.split_first() {
                        Some((digit @ b'0'..=b'7', after)) => {
                            value = value * 8 + u32::from(digit - b'0');
                            rest = after;
                        }
                        _ => break,
                    }
                }
                value as u8
            }
            other => other,
        });
    }
    Cow::Owned(plain)
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Microseconds of UTC since 1970 of `2026-11-18 08:57:07.829176+00`. Without an offset it is UTC, as Determined has it.
fn time_of(text: &str) -> Option<i64> {
    let (date, clock) = text.split_once(' ')?;
    let mut date = date.splitn(3, '-').map(digits);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, offset) = match clock.find(['+', '-']) {
        Some(place) => (&clock[..place], offset_of(&clock[place..])?),
        None => (clock, 0),
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut clock = clock.splitn(3, ':').map(digits);
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if fraction.is_empty() || fraction.len() > 6 {
        return None;
    }
    let micros = digits(fraction)? * 10i64.pow(6 - fraction.len() as u32);
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Some(seconds * 1_000_000 + micros)
}

/// Seconds of `+05:30`.
fn offset_of(text: &str) -> Option<i64> {
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let mut parts = text[1..].splitn(3, ':').map(digits);
    let hours = parts.next()??;
    let minutes = parts.next().map_or(Some(0), |part| part)?;
    let seconds = parts.next().map_or(Some(0), |part| part)?;
    Some(sign * (hours * 3600 + minutes * 60 + seconds))
}

fn digits(text: &str) -> Option<i64> {
    let plain = !text.is_empty() && text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// Days from 1970-01-01, counted in years that begin with March, so that a leap day is the last of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_month = (153 * month + 2) / 5;
    year * 365 + year / 4 - year / 100 + year / 400 + days_before_month + day - 1 - 719_468
}

/// The elements of `{plain,"with \"quotes\""}`; those that are null are left out.
fn list_of(text: &str) -> Option<Vec<String>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut found = Vec::new();
    let mut characters = inner.chars().peekable();
    if characters.peek().is_none() {
        return Some(found);
    }
    loop {
        let mut element = String::new();
        let quoted = characters.next_if_eq(&'"').is_some();
        loop {
            match characters.next() {
                Some('\\') => element.push(characters.next()?),
                Some('"') if quoted => break,
                Some(character) => element.push(character),
                None if quoted => return None,
                None => break,
            }
            if !quoted && matches!(characters.peek(), None | Some(',')) {
                break;
            }
        }
        if quoted || element != "NULL" {
            found.push(element);
        }
        match characters.next() {
            Some(',') => {}
            Some(_) => return None,
            None => return Some(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes a field as PostgreSQL does.
    fn escape(plain: &[u8]) -> Vec<u8> {
        let mut field = Vec::new();
        for &byte in plain {
            let letter = match byte {
                0x08 => b'b',
                0x0c => b'f',
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                0x0b => b'v',
                b'\\' => b'\\',
                _ => {
                    field.push(byte);
                    continue;
                }
            };
            field.extend([b'\\', letter]);
        }
        field
    }

    const NAMES: &[&str] = &["one", "two"];

    #[test]
    fn times_of_every_form_that_postgresql_writes_are_read() {
        for (text, micros) in [
            ("1970-01-01 00:00:00+00", Some(0)),
            ("1970-01-01 00:00:00", Some(0)),
            ("2026-11-18 08:57:07.829176+00", Some(1_794_992_227_829_176)),
            ("2026-11-18 10:57:07.829176+02", Some(1_794_992_227_829_176)),
            ("2026-11-18 14:27:07.5+05:30", Some(1_794_992_227_500_000)),
            ("2024-02-29 23:59:59-03:30:10", Some(1_709_263_809_000_000)),
            ("1969-12-31 23:59:59.999999+00", Some(-1)),
            ("infinity", None),
            ("2026-13-01 00:00:00+00", None),
            ("2026-11-18", None),
            ("0044-03-15 12:00:00+00 BC", None),
        ] {
            assert_eq!(time_of(text), micros, "{text}");
        }
    }

    #[test]
    fn lists_are_read_as_postgresql_writes_them() {
        let read = |text: &str| list_of(text).map(|found| found.join("|"));
        assert_eq!(list_of("{}"), Some(Vec::new()));
        assert_eq!(read("{a,b c,NULL}").as_deref(), Some("a|b c"));
        assert_eq!(read(r#"{"x,\"y\"","\\","NULL",""}"#).as_deref(), Some(r#"x,"y"|\|NULL|"#));
        for damaged in ["", "{", "a", r#"{"a}"#, r#"{"a"b}"#, r"{a\"] {
            assert_eq!(list_of(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn columns_are_found_by_name_wherever_they_stand() {
        let columns: Vec<String> = ["x", "two", "one"].map(str::to_owned).into();
        let layout = Layout::among("things", NAMES, &columns).unwrap();
        let row = layout.row(b"-\t\\N\t12", 1).unwrap();
        assert_eq!((row.integer("one").unwrap(), row.optional_text("two").unwrap()), (12, None));
        let missing = Layout::among("things", &["three"], &columns).unwrap_err();
        assert!(missing.to_string().contains("three"), "{missing}");
        let short = layout.row(b"1\t2", 7).unwrap_err().to_string();
        assert_eq!(short, "cannot read row 7 of the table `things`: it has 2 columns, the table 3");
        let wrong = row.truth("one").unwrap_err().to_string();
        assert_eq!(wrong, "cannot read column `one` of row 1 of the table `things`: `12` is not t or f");
    }

    proptest! {
        #[test]
        fn fields_come_back_as_they_were(one in prop::collection::vec(any::<u8>(), 0..40), two in ".{0,20}") {
            let line = [escape(&one), escape(two.as_bytes())].join(&b'\t');
            prop_assert!(!line.contains(&b'\n'));
            let layout = Layout::exact("things", NAMES);
            let row = layout.row(&line, 1).unwrap();
            prop_assert_eq!(row.bytes("one").unwrap().unwrap().into_owned(), one);
            prop_assert_eq!(row.text("two").unwrap(), two);
        }

        #[test]
        fn bytes_come_back_as_they_were(plain in prop::collection::vec(any::<u8>(), 0..40)) {
            let digits: String = plain.iter().map(|byte| format!("{byte:02x}")).collect();
            let line = format!("\\\\x{digits}");
            let layout = Layout::exact("things", &["one"]);
            prop_assert_eq!(layout.row(line.as_bytes(), 1).unwrap().content("one").unwrap(), plain);
        }

        #[test]
        fn any_line_is_read_or_refused(line in prop::collection::vec(any::<u8>(), 0..60)) {
            let layout = Layout::exact("things", NAMES);
            if let Ok(row) = layout.row(&line, 1) {
                let _ = (row.optional_time("one"), row.texts("one"), row.content("two"), row.optional_json("two"));
                let _ = (row.truth("one"), row.optional_integer("two"), row.optional_number("two"));
            }
        }

        #[test]
        fn any_time_is_read_or_refused(text in "[-+:. 0-9a-z]{0,40}") {
            let _ = time_of(&text);
        }
    }
}
