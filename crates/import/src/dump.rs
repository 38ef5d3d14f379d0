//! A plain dump of `pg_dump` as a source: text with a `COPY` block for every table.
//!
//! ```text
//! COPY public.users (id, username, "password_hash") FROM stdin;
//! 1<tab>admin<tab>\N
//! \.
//! ```
//!
//! The file is read once to find the blocks and count their rows; then each is read where it lies, in any order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::source::{Marker, Source, Table, Visit};
use crate::text::Layout;

/// How much is read at once.
const BUFFER: usize = 1 << 20;
/// What the last lines of a whole dump say.
const COMPLETE: &[u8] = b"-- PostgreSQL database dump complete";

/// How rows begin in dumps of another kind.
const INSERTED: &[u8] = b"INSERT\x20INTO public.";

/// Where the rows of a table lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its columns, in the order of the rows.
    pub columns: Vec<String>,
    /// The place of the first byte of the first row.
    pub start: u64,
    /// How many rows it has.
    pub rows: u64,
}

/// What a dump holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The tables of the schema `public`, by name.
    pub blocks: BTreeMap<String, Block>,
    /// Whether tables are written as INSERTs.
    pub has_inserts: bool,
    /// Where it ends too early, if it does.
    pub cut_off: Option<String>,
}

/// Finds the blocks of a dump.
pub fn scan(mut reader: impl BufRead) -> std::io::Result<Contents> {
    let mut contents = Contents::default();
    let (mut line, mut place, mut complete) = (Vec::new(), 0u64, false);
    let mut current: Option<(String, Block)> = None;
    loop {
        line.clear();
        let length = reader.read_until(b'\n', &mut line)?;
        if length == 0 {
            break;
        }
        place += length as u64;
        let whole = line.last() == Some(&b'\n');
        let text = without_end(&line);
        match current.take() {
            Some((name, block)) if text == b"\\." => {
                contents.blocks.insert(name, block);
            }
            Some((name, mut block)) => {
                block.rows += u64::from(whole);
                current = Some((name, block));
            }
            None => {
                complete |= text.starts_with(COMPLETE);
                contents.has_inserts |= text.starts_with(INSERTED);
                current = header(text).map(|(name, columns)| (name, Block { columns, start: place, rows: 0 }));
            }
        }
    }
    contents.cut_off = match current {
        Some((name, _)) => Some(format!("the table `{name}`")),
        None if !complete => Some("the dump".to_owned()),
        None => None,
    };
    Ok(contents)
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The table and the columns of a line that begins a block.
fn header(line: &[u8]) -> Option<(String, Vec<String>)> {
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("COPY public.")?.strip_suffix(") FROM stdin;")?;
    let (name, columns) = rest.split_once(" (")?;
    Some((unquoted(name), columns.split(", ").map(unquoted).collect()))
}

fn unquoted(name: &str) -> String {
    let name = name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name);
    name.replace("\"\"", "\"")
}

/// An opened dump.
#[derive(Debug)]
pub struct Dump {
    path: PathBuf,
    blocks: BTreeMap<String, Block>,
    identity: String,
}

impl Dump {
    /// Opens a dump and finds out what it holds.
    pub fn open(path: &Path) -> Result<Dump> {
        let unreadable = |source| Error::File { path: path.to_owned(), source };
        let other = |what, hint: String| Error::OtherFormat { path: path.to_owned(), what, hint };
        let shown = path.display();
        let as_text =
            |options: &str| format!("make it plain text first: pg_restore {options}-f determined.sql {shown}");
        if path.is_dir() {
            return Err(other("a folder, perhaps a dump in the format `directory`", as_text("")));
        }
        let mut reader = BufReader::with_capacity(BUFFER, File::open(path).map_err(unreadable)?);
        let start = reader.fill_buf().map_err(unreadable)?;
        if start.starts_with(b"PGDMP") {
            return Err(other("a dump in PostgreSQL's own format", as_text("")));
        }
        if start.starts_with(b"toc.dat") {
            return Err(other("a dump in the format `tar`", as_text("")));
        }
        if start.starts_with(&[0x1f, 0x8b]) {
            return Err(other("compressed", format!("unpack it first: gunzip -k {shown}")));
        }
        let contents = scan(reader).map_err(unreadable)?;
        if contents.blocks.is_empty() && contents.has_inserts {
            return Err(other(
                "a dump with INSERT statements",
                "write it again with `pg_dump` without --inserts and --column-inserts".to_owned(),
            ));
        }
        let place = shown.to_string();
        if contents.blocks.is_empty() && contents.cut_off.as_deref().is_none_or(|place| place == "the dump") {
            return Err(Error::NotDetermined { place, table: crate::source::MIGRATIONS });
        }
        if let Some(place) = contents.cut_off {
            return Err(Error::CutOff { path: path.to_owned(), place });
        }
        Ok(Dump { path: path.to_owned(), blocks: contents.blocks, identity: place })
    }
}

impl Source for Dump {
    fn place(&self) -> &str {
        &self.identity
    }

    fn counts(&mut self) -> Result<BTreeMap<String, u64>> {
        Ok(self.blocks.iter().map(|(name, block)| (name.clone(), block.rows)).collect())
    }

    fn read(&mut self, table: &Table, after: Option<Marker>, visit: Visit<'_>) -> Result<()> {
        // Dumps are made without the rows of some tables, such as those of logs.
        let Some(block) = self.blocks.get(table.name) else { return Ok(()) };
        let layout = Layout::among(table.name, table.columns, &block.columns)?;
        let unreadable = |source| Error::File { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(unreadable)?;
        // A marker is how far behind the start of the block the next row begins.
        let mut passed = after.map_or(0, |marker| marker.0.unsigned_abs());
        file.seek(SeekFrom::Start(block.start + passed)).map_err(unreadable)?;
        let mut reader = BufReader::with_capacity(BUFFER, file);
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line).map_err(unreadable)?;
            let text = without_end(&line);
            if length == 0 || text == b"\\." {
                return Ok(());
            }
            passed += length as u64;
            number += 1;
            visit(&layout.row(text, number)?, Marker(passed.cast_signed()))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::Row;

    const SMALL: &str = "--\n-- PostgreSQL database dump\n--\n\nCREATE TABLE public.users (id integer);\n\n\
        COPY public.users (id, \"user\", name) FROM stdin;\n1\tx\tCOPY public.other (a) FROM stdin;\n2\t\\N\ty\\nz\n\\.\n\n\
        COPY scim.users (id) FROM stdin;\n1\n\\.\n\nCOPY public.empty (a) FROM stdin;\n\\.\n\n\
        --\n-- PostgreSQL database dump complete\n--\n\n";

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sql");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    const USERS: Table = Table { name: "users", columns: &["name", "id"], order: None };

    fn names(dump: &mut Dump, after: Option<Marker>) -> Vec<(i64, String, Marker)> {
        let mut found = Vec::new();
        let mut visit = |row: &Row<'_>, marker| {
            found.push((row.integer("id")?, row.text("name")?, marker));
            Ok(())
        };
        dump.read(&USERS, after, &mut visit).unwrap();
        found
    }

    #[test]
    fn tables_are_found_and_read_from_any_row_on() {
        let (_folder, path) = written(SMALL);
        let mut dump = Dump::open(&path).unwrap();
        let counts: Vec<_> = dump.counts().unwrap().into_iter().collect();
        assert_eq!(counts, [("empty".to_owned(), 0), ("users".to_owned(), 2)]);
        let all = names(&mut dump, None);
        let plain: Vec<_> = all.iter().map(|(id, name, _)| (*id, name.as_str())).collect();
        assert_eq!(plain, [(1, "COPY public.other (a) FROM stdin;"), (2, "y\nz")]);
        assert_eq!(names(&mut dump, Some(all[0].2)), all[1..]);
        assert_eq!(names(&mut dump, Some(all[1].2)), []);
    }

    #[test]
    fn a_dump_that_is_cut_off_anywhere_is_refused() {
        let end = SMALL.find("-- PostgreSQL database dump complete").unwrap();
        let start = SMALL.find("COPY public.empty").unwrap();
        for length in start..end {
            let (_folder, path) = written(&SMALL[..length]);
            let refused = Dump::open(&path).unwrap_err();
            assert!(matches!(refused, Error::CutOff { .. }), "{length}: {refused}");
        }
        let (_folder, path) = written(&SMALL[..SMALL.find("y\\nz").unwrap()]);
        let refused = Dump::open(&path).unwrap_err().to_string();
        assert!(
            refused.ends_with("a.sql ends in the middle of the table `users`") || refused.contains("the dump"),
            "{refused}"
        );
    }

    #[test]
    fn other_formats_are_named() {
        for (content, what, hint) in [
            (&b"PGDMP\x01\x0e"[..], "PostgreSQL's own format", "pg_restore -f determined.sql"),
            (b"toc.dat\0\0", "`tar`", "pg_restore -f"),
            (b"\x1f\x8b\x08", "compressed", "gunzip"),
            (b"INSERT INTO public.users VALUES (1);\n", "INSERT", "without --inserts"),
            (b"hello", "not a database of Determined", "master.yaml"),
            (b"", "not a database of Determined", "master.yaml"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.sql");
            std::fs::write(&path, content).unwrap();
            let refused = Dump::open(&path).unwrap_err();
            assert!(refused.to_string().contains(what), "{refused}");
            assert!(refused.hint().contains(hint), "{}", refused.hint());
        }
        assert!(matches!(Dump::open(Path::new("/nowhere.sql")), Err(Error::File { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_scanned(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = scan(&bytes[..]);
        }

        #[test]
        fn every_block_is_found_with_its_rows(
            tables in prop::collection::btree_map("[a-z_]{1,8}", prop::collection::vec("[ -\\[\\]-~]{0,12}", 0..5), 1..5)
        ) {
            let mut text = String::new();
            for (name, rows) in &tables {
                text += &format!("COPY public.{name} (a) FROM stdin;\n");
                rows.iter().for_each(|row| text += &format!("{row}\n"));
                text += "\\.\n\n";
            }
            text += "-- PostgreSQL database dump complete\n";
            let contents = scan(text.as_bytes()).unwrap();
            prop_assert_eq!(&contents.cut_off, &None);
            for (name, rows) in &tables {
                let block = &contents.blocks[name];
                prop_assert_eq!(block.rows, rows.len() as u64);
                let rest = &text[block.start as usize..];
                let found: Vec<&str> = rest.lines().take_while(|line| *line != "\\.").collect();
                prop_assert_eq!(&found, rows);
            }
        }
    }
}
