//! House rules that no compiler checks, one test each.
//!
//! Every complaint reads `file:line: rule: what is wrong`, and says what to do instead. The rules look at all source
//! files of the working tree, committed or not; build outputs and hidden folders are left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use instep_testkit::{root, sources};
use serde_json::Value;

/// Which of our crates each crate may use, besides in its tests. Arrows point to lower levels only; a new one is a
/// decision, to be drawn in docs/architecture.md in the same commit.
const MAY_USE: &[(&str, &[&str])] = &[
    // level 0
    ("instep-api", &[]),
    ("instep-noise", &[]),
    ("instep-recorder", &[]),
    ("instep-shell", &[]),
    ("instep-store", &[]),
    // level 1
    ("instep-checkpoint", &["instep-api"]),
    ("instep-client", &["instep-api"]),
    ("instep-collectives", &["instep-noise", "instep-recorder"]),
    ("instep-diagnosis", &["instep-recorder"]),
    ("instep-database", &["instep-api"]),
    ("instep-policy", &["instep-api"]),
    // level 2
    ("instep-agent", &["instep-api", "instep-client"]),
    ("instep-import", &["instep-api", "instep-database"]),
    (
        "instep-launch",
        &["instep-api", "instep-diagnosis", "instep-noise", "instep-policy", "instep-recorder", "instep-store"],
    ),
    ("instep-master", &["instep-api", "instep-database", "instep-policy"]),
    (
        "instep-python",
        &["instep-api", "instep-checkpoint", "instep-client", "instep-collectives", "instep-recorder", "instep-store"],
    ),
    // level 3
    (
        "instep",
        &[
            "instep-agent",
            "instep-api",
            "instep-checkpoint",
            "instep-client",
            "instep-diagnosis",
            "instep-import",
            "instep-launch",
            "instep-master",
            "instep-recorder",
            "instep-shell",
            "instep-store",
        ],
    ),
    // development only
    ("instep-testkit", &[]),
];

/// A file longer than this does a second thing, which wants a file of its own.
const LONGEST_FILE: usize = 800;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] =
    &["common", "helper", "helpers", "manager", "managers", "misc", "miscellaneous", "util", "utils"];

/// torchrun's variables, which scripts see; only `launch::workers::environment` spells them.
const WORKER_VARIABLES: &[&str] = &[
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC",
    "WORLD_SIZE",
];

/// The complaints of one rule.
struct Complaints {
    rule: &'static str,
    found: Vec<String>,
}

impl Complaints {
    fn of(rule: &'static str) -> Self {
        Complaints { rule, found: Vec::new() }
    }

    fn add(&mut self, path: &str, line: usize, what: &str) {
        self.found.push(format!("{path}:{line}: {}: {what}", self.rule));
    }

    fn must_be_none(self) {
        assert!(self.found.is_empty(), "\n{}\n", self.found.join("\n"));
    }
}

/// Our packages, as cargo sees them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo is there, it runs this test");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"].as_array().expect("it lists packages").clone()
}

/// The dependencies of a package outside its tests.
fn shipped_dependencies(package: &Value) -> impl Iterator<Item = &str> {
    package["dependencies"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|dependency| dependency["kind"] != "dev")
        .filter_map(|dependency| dependency["name"].as_str())
}

/// Where a package's manifest names a dependency, for a complaint that can be clicked.
fn manifest_line(package: &Value, dependency: &str) -> (String, usize) {
    let manifest = package["manifest_path"].as_str().expect("a package has a manifest");
    let line = fs::read_to_string(manifest)
        .unwrap_or_default()
        .lines()
        .position(|line| line.starts_with(dependency))
        .map_or(1, |index| index + 1);
    let path = Path::new(manifest).strip_prefix(root()).unwrap_or(Path::new(manifest)).display().to_string();
    (path, line)
}

#[test]
fn crates_depend_on_lower_levels_only() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut complaints = Complaints::of("dependency direction");
    for package in packages() {
        let name = package["name"].as_str().expect("a package has a name");
        let Some(may_use) = allowed.get(name) else {
            let (path, _) = manifest_line(&package, "");
            complaints.add(&path, 1, &format!("{name} has no level yet: give it one in MAY_USE of tidy.rs"));
            continue;
        };
        for dependency in shipped_dependencies(&package) {
            let ours = allowed.contains_key(dependency);
            if ours && !may_use.contains(&dependency) {
                let (path, line) = manifest_line(&package, dependency);
                let rest = if may_use.is_empty() { "none of our crates".to_owned() } else { may_use.join(", ") };
                complaints.add(&path, line, &format!("{name} must not use {dependency}, only {rest}"));
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn only_the_python_crate_mentions_pyo3() {
    let mut complaints = Complaints::of("PyO3 only in crates/python");
    for package in packages().iter().filter(|package| package["name"] != "instep-python") {
        for dependency in shipped_dependencies(package).filter(|dependency| dependency.starts_with("pyo3")) {
            let (path, line) = manifest_line(package, dependency);
            complaints.add(&path, line, "move what needs Python into crates/python");
        }
    }
    for source in sources(&["rs"]).iter().filter(|source| !source.path.starts_with("crates/python/")) {
        for (line, text) in source.shipped_code() {
            if text.contains("pyo3::") {
                complaints.add(&source.path, line, "move what needs Python into crates/python");
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn every_rust_file_says_what_it_is_for() {
    let mut complaints = Complaints::of("module docs");
    for source in sources(&["rs"]) {
        if !source.text.starts_with("//!") {
            complaints.add(&source.path, 1, "start the file with `//!` and what it is for, in one sentence");
        }
    }
    complaints.must_be_none();
}

#[test]
fn every_python_module_says_what_it_is_for() {
    let mut complaints = Complaints::of("module docs");
    for source in sources(&["py", "pyi"]) {
        let first = source.lines().find(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let documented = |line: &str| ["\"\"\"", "r\"\"\""].iter().any(|quote| line.starts_with(quote));
        if !first.is_some_and(|(_, line)| documented(line)) {
            let line = first.map_or(1, |(line, _)| line);
            complaints.add(&source.path, line, "start the module with a docstring that says what it is for");
        }
    }
    complaints.must_be_none();
}

#[test]
fn no_file_does_two_things() {
    let mut complaints = Complaints::of("file length");
    for source in sources(&["rs", "py", "pyi", "ts", "svelte"]) {
        let lines = source.text.lines().count();
        if lines > LONGEST_FILE {
            let what = format!("{lines} lines, at most {LONGEST_FILE}: move its second purpose to a file of its own");
            complaints.add(&source.path, LONGEST_FILE + 1, &what);
        }
    }
    complaints.must_be_none();
}

#[test]
fn names_say_what_is_inside() {
    let mut complaints = Complaints::of("empty name");
    for source in sources(&["rs", "py", "pyi", "ts", "svelte", "md"]) {
        let without_extension = Path::new(&source.path).with_extension("");
        for part in without_extension.iter().filter_map(|part| part.to_str()) {
            if EMPTY_NAMES.contains(&part.trim_start_matches('_')) {
                complaints.add(&source.path, 1, &format!("`{part}` says nothing: name what it holds"));
            }
        }
        for (line, text) in source.lines().filter(|_| source.has_extension("rs")) {
            let words: Vec<&str> = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
            for pair in words.windows(2) {
                if pair[0] == "mod" && EMPTY_NAMES.contains(&pair[1]) && !text.trim_start().starts_with("//") {
                    complaints.add(&source.path, line, &format!("`mod {}` says nothing: name what it holds", pair[1]));
                }
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn only_the_environment_module_spells_worker_variables() {
    let mut complaints = Complaints::of("worker variables only in launch::workers::environment");
    for source in
        sources(&["rs"]).iter().filter(|source| !source.path.starts_with("crates/launch/src/workers/environment"))
    {
        for (line, text) in source.shipped_code() {
            for variable in WORKER_VARIABLES.iter().filter(|name| text.contains(&format!("\"{name}"))) {
                let what =
                    format!("\"{variable}…\" is spelled here: use a constant of instep_launch::workers::environment");
                complaints.add(&source.path, line, &what);
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn only_the_database_contains_sql() {
    let mut complaints = Complaints::of("SQL only in crates/database");
    // What is asked of Determined's own database is the one exception.
    let may = |path: &str| path.starts_with("crates/database/") || path == "crates/import/src/server.rs";
    for source in sources(&["rs"]).iter().filter(|source| !may(&source.path)) {
        for (line, text) in source.shipped_code() {
            for word in ["\"SELECT ", "\"INSERT INTO ", "\"UPDATE ", "\"DELETE FROM "] {
                if text.contains(word) {
                    complaints.add(&source.path, line, "ask crates/database for it");
                }
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn only_the_sql_module_knows_drivers() {
    let mut complaints = Complaints::of("drivers of databases only in database::sql");
    // What is asked of Determined's own database is the one exception.
    let may = |path: &str| path.starts_with("crates/database/src/sql/") || path == "crates/import/src/server.rs";
    for source in sources(&["rs"]).iter().filter(|source| !may(&source.path)) {
        for (line, text) in source.shipped_code() {
            if ["rusqlite::", " postgres::"].iter().any(|driver| text.contains(driver)) {
                complaints.add(&source.path, line, "use crate::sql");
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn only_http_knows_status_codes() {
    let mut complaints = Complaints::of("status codes only in master::http");
    for source in sources(&["rs"]).iter().filter(|source| !source.path.starts_with("crates/master/src/http/")) {
        for (line, _) in source.shipped_code().filter(|(_, text)| text.contains("StatusCode")) {
            complaints.add(&source.path, line, "return an error; master::http::failure knows its status");
        }
    }
    complaints.must_be_none();
}

#[test]
fn only_the_command_line_prints() {
    let mut complaints = Complaints::of("printing only in crates/cli");
    let may_print = |path: &str| path.starts_with("crates/cli/") || path.ends_with("/build.rs");
    for source in sources(&["rs"]).iter().filter(|source| !may_print(&source.path)) {
        for (line, text) in source.shipped_code() {
            for name in ["println!", "eprintln!", "print!", "eprint!", "dbg!"] {
                // Not the tail of a longer name: `eprintln!` holds `println!`.
                let starts_here =
                    |at: usize| !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
                if text.match_indices(name).any(|(at, _)| starts_here(at)) {
                    complaints.add(&source.path, line, &format!("`{name}`: return the text, or log it"));
                }
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn hints_name_our_own_command() {
    let mut complaints = Complaints::of("people are told `instep`, not `det`, what to type");
    for source in sources(&["rs", "py"]).iter().filter(|source| !source.path.starts_with("tests/")) {
        for (line, text) in source.shipped_code() {
            // What one types comes in backticks or behind a colon; another command than `det` ends there.
            if ["`det ", ": det "].iter().any(|typed| text.contains(typed)) {
                complaints.add(&source.path, line, "name the verb of `instep`");
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn links_in_documentation_resolve() {
    let mut complaints = Complaints::of("broken link");
    let root = root();
    for source in sources(&["md"]) {
        let folder = root.join(&source.path).parent().expect("a file lies in a folder").to_owned();
        let mut in_code_block = false;
        for (line, text) in source.lines() {
            if text.trim_start().starts_with("```") {
                in_code_block = !in_code_block;
            }
            if in_code_block {
                continue;
            }
            for target in links(text) {
                let path = target.split('#').next().unwrap_or_default();
                let elsewhere = target.contains("://") || target.starts_with("mailto:");
                if !elsewhere && !path.is_empty() && !folder.join(path).exists() {
                    complaints.add(&source.path, line, &format!("there is no {path}"));
                }
            }
        }
    }
    complaints.must_be_none();
}

/// The targets of the Markdown links in one line, outside of `code`.
fn links(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect();
    prose
        .match_indices("](")
        .filter_map(|(at, _)| prose[at + 2..].split([')', ' ']).next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_variable_stands_in_the_documentation() {
    let mut complaints = Complaints::of("a variable that no page of docs/ names");
    let pages: String = sources(&["md"]).iter().map(|page| page.text.as_str()).collect();
    for source in sources(&["rs", "py"]) {
        let ships = source.path.starts_with("crates/") || source.path.starts_with("python/");
        for (number, line) in source.shipped_code().filter(|_| ships) {
            for word in line.split('"').skip(1).step_by(2).filter(|word| word.starts_with("INSTEP_")) {
                if !pages.contains(word) && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
                    complaints.add(&source.path, number, word);
                }
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn every_to_do_has_an_issue() {
    let mut complaints = Complaints::of("to-do without an issue");
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME")];
    for source in sources(&["rs", "py", "pyi", "toml", "ts", "svelte"]) {
        for (line, text) in source.lines() {
            for mark in marks.iter().filter(|mark| text.contains(**mark)) {
                let after = text.split(mark).nth(1).unwrap_or_default().trim_start_matches(['(', ' ', ':']);
                let numbered =
                    after.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
                if !numbered {
                    complaints.add(&source.path, line, &format!("write `{mark}(#123)`, or do it now"));
                }
            }
        }
    }
    complaints.must_be_none();
}

#[test]
fn links_are_found_outside_code() {
    assert_eq!(links("see [a](one.md) and [b](two.md#part \"title\")"), ["one.md", "two.md#part"]);
    assert_eq!(links("`[a](one.md)` is how a link looks"), Vec::<String>::new());
    // Code between the words of a link's text does not hide the link.
    assert_eq!(links("[the `run` command](run.md)"), ["run.md"]);
}
