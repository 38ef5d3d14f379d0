//! docs/architecture.md names files, functions, types and threads; this compares them with the sources.

use std::collections::BTreeSet;
use std::path::Path;

use instep_testkit::{Source, root, sources};

const PAGE: &str = "docs/architecture.md";

/// What comes before a name where Rust or Python declares it; nothing is before a variant of an enum.
const DECLARATIONS: &[&str] =
    &["", "class ", "const ", "def ", "enum ", "fn ", "mod ", "pub ", "static ", "struct ", "trait ", "type "];

/// What comes before the name of a thread where it is started.
const STARTS: &[&str] = &[".name(\"", "thread_name(\"", "BackgroundThread::start(\"", "spawn(\"", " name=\""];

struct Page {
    sources: Vec<Source>,
    text: String,
}

impl Page {
    fn read() -> Page {
        let text = std::fs::read_to_string(root().join(PAGE)).expect("the page can be read");
        Page { sources: sources(&["md", "py", "pyi", "rs", "svelte", "toml", "ts"]), text }
    }

    /// The cells of the rows of a section's table, each with the number of its line.
    fn rows(&self, section: &str) -> Vec<(usize, Vec<&str>)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        let below =
            lines.skip_while(|(_, line)| *line != section).skip(1).take_while(|(_, line)| !line.starts_with("## "));
        let rows = below.filter(|(_, line)| line.starts_with("| ")).skip(1);
        let rows: Vec<_> = rows.map(|(number, line)| (number, line.split('|').skip(1).collect())).collect();
        assert!(rows.len() > 10, "{PAGE}: there is no table of {section}");
        rows
    }

    /// The file that a path means: from the project's root, or from a folder that `near`, a file, lies in.
    fn file(&self, path: &str, near: &[&str]) -> Option<&Source> {
        let find = |path: &str| self.sources.iter().find(|source| source.path == path);
        let folders = near.iter().flat_map(|near| Path::new(near).ancestors().skip(1));
        find(path).or_else(|| folders.filter_map(|folder| find(folder.join(path).to_str()?)).next())
    }
}

/// What stands between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_file(code: &str) -> bool {
    let extension = Path::new(code).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["md", "py", "pyi", "rs", "svelte", "toml", "ts"].contains(&extension))
        && code.chars().all(|letter| letter.is_alphanumeric() || "_-./".contains(letter))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// Whether a file declares a name, and mentions what the name belongs to: `Owner::name` or `Owner.name`.
fn declares(source: &Source, name: &str) -> bool {
    let (owner, name) = name.rsplit_once("::").or_else(|| name.rsplit_once('.')).unwrap_or(("", name));
    let owner = owner.rsplit("::").next().unwrap_or_default();
    let declared = |line: &str| {
        DECLARATIONS.iter().any(|before| {
            let at = if before.is_empty() {
                line.starts_with(name).then_some(0)
            } else {
                line.find(&format!("{before}{name}"))
            };
            let rest = at.map(|at| &line[at + before.len() + name.len()..]);
            let end = if before.is_empty() { ",({ " } else { ",({ <:;=" };
            rest.is_some_and(|rest| rest.starts_with(|letter| end.contains(letter)))
        })
    };
    source.lines().any(|(_, line)| declared(line.trim_start()))
        && (owner.is_empty() || source.lines().any(|(_, line)| words(line).any(|word| word == owner)))
}

#[test]
fn every_path_exists() {
    let page = Page::read();
    let mut missing = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        for path in code(line) {
            let from_root = path.split_once('/').is_some_and(|(first, _)| root().join(first).is_dir());
            // Elsewhere than in the table, a file below the folders of the paragraph is named by the end of its path.
            let ends = |source: &Source| source.path.ends_with(&format!("/{path}"));
            let exists = match path.contains('*') {
                true => continue,
                false if from_root => root().join(path).exists(),
                false if is_file(path) => page.sources.iter().any(ends),
                false => continue,
            };
            if !exists {
                missing.push(format!("{PAGE}:{}: there is no {path}", index + 1));
            }
        }
    }
    assert!(missing.is_empty(), "\n{}\n", missing.join("\n"));
}

#[test]
fn the_table_names_what_is_in_its_files() {
    let page = Page::read();
    let mut missing = Vec::new();
    for (line, cells) in page.rows("## Where is …?") {
        let [_, files, names, ..] = cells.as_slice() else { panic!("{PAGE}:{line}: a row has three cells") };
        let named: Vec<&str> = code(files).chain(code(names)).filter(|code| is_file(code)).collect();
        let full: Vec<&str> = named.iter().copied().filter(|path| root().join(path).is_file()).collect();
        let mut found = Vec::new();
        for path in named {
            match page.file(path, &full) {
                Some(source) => found.push(source),
                None => missing.push(format!("{PAGE}:{line}: there is no {path} beside the other files of the row")),
            }
        }
        let is_name = |code: &&str| {
            !is_file(code) && code.chars().all(|letter| letter.is_alphanumeric() || "_.:".contains(letter))
        };
        for name in code(names).filter(is_name) {
            if !found.iter().any(|source| declares(source, name)) {
                missing.push(format!("{PAGE}:{line}: none of the row's files declares {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "\n{}\n", missing.join("\n"));
}

#[test]
fn the_table_has_all_threads() {
    let page = Page::read();
    let rows = page.rows("## Threads");
    let documented: BTreeSet<&str> = rows.iter().flat_map(|(_, cells)| code(cells[0])).collect();
    let ships = |source: &&Source| ["crates/", "python/"].iter().any(|folder| source.path.starts_with(folder));
    let mut started = BTreeSet::new();
    for (_, line) in page.sources.iter().filter(ships).flat_map(Source::shipped_code) {
        let names = STARTS.iter().flat_map(|start| line.split(start).skip(1)).filter_map(|rest| rest.split('"').next());
        started.extend(names.filter(|name| name.contains('-') && !name.contains(' ')));
    }
    let missing: Vec<_> = started.difference(&documented).collect();
    let gone: Vec<_> = documented.difference(&started).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "{PAGE}: threads not in the table: {missing:?}; no more started: {gone:?}"
    );
}

#[test]
fn declarations_are_found() {
    let source = Source {
        path: String::new(),
        text: "impl Seat {\n    pub fn take(self) {}\n}\nenum E {\n    Left,\n}".to_owned(),
    };
    for (name, declared) in
        [("Seat::take", true), ("take", true), ("Left", true), ("E", true), ("tak", false), ("X::take", false)]
    {
        assert_eq!(declares(&source, name), declared, "{name}");
    }
}
