//! No import circle of more than two files inside a crate: whoever reads one file of a knot has to read all of them.
//!
//! What counts as an arrow, from a file to another of the same crate: every path in shipped code that starts with `crate::`,
//! `super::` or `self::`, or with the name of a child module, in a `use` or inline. The path is followed to the file that
//! has the item, through re-exports: `crate::Error` is an arrow to `error.rs`, not to `lib.rs`.
//!
//! - A child that uses an item of its parent is an arrow, and so is a parent that uses an item of its child.
//! - `pub use child::Item` is none by itself: a table of contents depends on nothing that it lists. (A `pub use` of an
//!   item that the same file also uses counts as a use, like any other.)
//! - Calls of methods need no path, so a type whose methods are spread over several files is no circle as long as the file
//!   with the type imports none of them.
//! - Test code does not count: what follows `#[cfg(test)]`, and files of tests and models.
//!
//! Two files that import each other are allowed; a strongly connected component of three or more fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates, or folders of one, whose files are in no such circle. One is added when it is clean, and never taken off.
const CLEAN: &[(&str, &str)] = &[
    ("api", ""),
    ("cli", ""),
    ("client", ""),
    ("collectives", ""),
    ("import", ""),
    ("launch", ""),
    ("master", "http/"),
    ("noise", ""),
    ("python", ""),
    ("recorder", ""),
    ("shell", ""),
    ("store", ""),
];

/// The most files that may import each other in a circle.
const MOST_FILES: usize = 2;

/// A module by its path from the crate's root, which is the empty path.
type Module = Vec<String>;

struct File {
    /// From the crate's `src`.
    name: String,
    /// Code without comments, strings and tests.
    code: String,
}

fn source_folder(krate: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(krate).join("src")
}

/// All modules of a crate that have files of their own, but for tests.
fn modules(krate: &str) -> BTreeMap<Module, File> {
    let folder = source_folder(krate);
    let (mut found, mut waiting) = (BTreeMap::new(), vec![folder.clone()]);
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).expect("a folder of the crate can be read") {
            let path = entry.expect("a folder of the crate can be listed").path();
            if path.is_dir() {
                waiting.push(path);
                continue;
            }
            let name = path.strip_prefix(&folder).expect("it lies below").to_string_lossy().into_owned();
            let Some(stem) = name.strip_suffix(".rs") else { continue };
            let mut module: Module = stem.split('/').map(str::to_owned).collect();
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            let text = fs::read_to_string(&path).expect("a file of the crate can be read");
            found.insert(module, File { name, code: shipped(&text) });
        }
    }
    let tests: BTreeSet<Module> = found.iter().flat_map(|(module, file)| tests_in(&folder, module, file)).collect();
    found.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    found
}

/// The modules that a file declares for tests alone.
fn tests_in(folder: &Path, module: &[String], file: &File) -> Vec<Module> {
    let text = fs::read_to_string(folder.join(&file.name)).expect("a file of the crate can be read");
    let (mut found, mut for_tests) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[cfg(") {
            for_tests = rest.contains("test");
        } else if for_tests && !line.starts_with("#[") {
            let name = line.split_once("mod ").and_then(|(_, rest)| rest.strip_suffix(';'));
            found.extend(name.map(|name| [module, &[name.to_owned()]].concat()));
            for_tests = false;
        }
    }
    found
}

/// Code up to the module of tests, with comments and the contents of strings taken out.
fn shipped(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let test_module = line.starts_with("#[cfg(") && line.contains("test");
        if test_module && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{')) {
            break;
        }
        let line = line.trim_start();
        if line.starts_with("//") || line.starts_with("#[") || line.starts_with("#![") {
            continue;
        }
        let mut in_string = false;
        let mut previous = ' ';
        for (index, character) in line.char_indices() {
            match character {
                '"' if previous != '\\' && previous != '\'' => in_string = !in_string,
                '/' if !in_string && line[index..].starts_with("//") => break,
                _ if in_string => {}
                _ => code.push(character),
            }
            previous = character;
        }
        code.push('\n');
    }
    code
}

/// Every path of a `use` declaration, spelled out, and whether it is a re-export. Globs end in `*`.
fn imports(code: &str) -> Vec<(Vec<String>, bool)> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        // What follows the last brace or line that ends something else.
        let Some(at) = statement.rfind("use ").filter(|at| is_start(&statement[..*at])) else { continue };
        let public =
            statement[..at].trim_end().rsplit('\n').next().is_some_and(|before| before.trim().starts_with("pub"));
        expand(&[], statement[at + 4..].trim(), &mut |path| found.push((path, public)));
    }
    found
}

/// Whether a `use` after this text begins a declaration: at the start of a line, but for `pub` and its like.
fn is_start(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or("").trim();
    line.is_empty() || line.starts_with("pub") || line.ends_with('{')
}

fn expand(prefix: &[String], text: &str, add: &mut impl FnMut(Vec<String>)) {
    let text = text.trim();
    if let Some((head, rest)) = text.split_once('{').filter(|(head, _)| !head.contains(',')) {
        let mut path = prefix.to_vec();
        path.extend(head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned));
        let inner = rest.strip_suffix('}').unwrap_or(rest);
        let (mut depth, mut start) = (0, 0);
        for (index, character) in inner.char_indices() {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&path, &inner[start..index], add);
                    start = index + 1;
                }
                _ => {}
            }
        }
        expand(&path, &inner[start..], add);
    } else if !text.is_empty() {
        let named = text.split_once(" as ").map_or(text, |(item, _)| item);
        let mut path = prefix.to_vec();
        path.extend(named.split("::").map(|part| part.trim().to_owned()).filter(|part| part != "self"));
        add(path);
    }
}

/// Paths that are written out in code, from `crate`, `super` or `self` on.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            if code[..at].ends_with(|before: char| is_name(before) || before == ':') {
                continue;
            }
            let rest = &code[at..];
            let end = rest.find(|character: char| !is_name(character) && character != ':').unwrap_or(rest.len());
            found.push(rest[..end].split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
        }
    }
    found
}

struct Crate {
    modules: BTreeMap<Module, File>,
    /// By module and name: where a re-export leads, from the crate's root.
    exports: BTreeMap<(Module, String), Vec<String>>,
}

impl Crate {
    fn read(krate: &str) -> Crate {
        let modules = modules(krate);
        let mut found = Crate { modules, exports: BTreeMap::new() };
        let mut exports = BTreeMap::new();
        for (module, file) in &found.modules {
            for (path, _) in imports(&file.code).into_iter().filter(|(_, public)| *public) {
                if let (Some(target), Some(name)) = (found.absolute(module, &path), path.last()) {
                    exports.insert((module.clone(), name.clone()), target);
                }
            }
        }
        found.exports = exports;
        found
    }

    /// A path as it is from the crate's root; `None` if it leads out of the crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let (mut base, mut rest) = (module.to_vec(), path);
        match path.first()?.as_str() {
            "crate" => (base, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            child if self.modules.contains_key(&[module, &[child.to_owned()]].concat()) => {}
            _ => return None,
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// The module whose file has the item at this path.
    fn home(&self, path: &[String]) -> Module {
        let (mut module, mut rest) = (Module::new(), path);
        while let Some(name) = rest.first() {
            let child = [&module[..], std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                (module, rest) = (child, &rest[1..]);
            } else if let Some(target) = self.exports.get(&(module.clone(), name.clone())) {
                return self.home(&[&target[..], &rest[1..]].concat());
            } else {
                break;
            }
        }
        module
    }

    /// The files that each file uses.
    fn arrows(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let of = |(module, file): (&Module, &File)| {
            let used = imports(&file.code).into_iter().filter(|(_, public)| !*public).map(|(path, _)| path);
            let paths = used.chain(inline_paths(&without_uses(&file.code)));
            let homes = paths.filter_map(|path| self.absolute(module, &path)).map(|path| self.home(&path));
            homes.filter(|home| home != module && self.modules.contains_key(home)).collect()
        };
        self.modules.iter().map(|entry| (entry.0, of(entry))).collect()
    }

    /// Files that can be reached from each other, where there are several.
    fn circles(&self) -> Vec<BTreeSet<&str>> {
        let arrows = self.arrows();
        let reached = |from: &Module| {
            let (mut seen, mut waiting) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(next) = waiting.pop() {
                for other in arrows.get(&next).into_iter().flatten() {
                    if seen.insert(other.clone()) {
                        waiting.push(other.clone());
                    }
                }
            }
            seen
        };
        let reach: BTreeMap<&Module, BTreeSet<Module>> =
            self.modules.keys().map(|module| (module, reached(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, others) in &reach {
            let mutual = others.iter().filter(|other| reach[other].contains(*module));
            let names: BTreeSet<&str> = mutual.map(|other| self.modules[other].name.as_str()).collect();
            if names.len() > 1 {
                circles.insert(names);
            }
        }
        circles.into_iter().collect()
    }
}

fn without_uses(code: &str) -> String {
    let is_use = |statement: &&str| statement.rfind("use ").is_some_and(|at| is_start(&statement[..at]));
    code.split(';').map(|statement| if is_use(&statement) { "" } else { statement }).collect::<Vec<_>>().join(";")
}

#[test]
fn no_more_than_two_files_import_each_other() {
    for (krate, folder) in CLEAN {
        let found = Crate::read(krate);
        let arrows = found.arrows();
        assert!(arrows.values().any(|uses| !uses.is_empty()), "no import of {krate} was understood");
        let is_large =
            |circle: &BTreeSet<&str>| circle.len() > MOST_FILES && circle.iter().any(|name| name.starts_with(folder));
        let large: Vec<_> = found.circles().into_iter().filter(is_large).collect();
        let listed = |circle: &BTreeSet<&str>| {
            let uses = |name: &&str| {
                let (module, _) = found.modules.iter().find(|(_, file)| file.name == **name).expect("found above");
                let uses = arrows[module].iter().map(|used| found.modules[used].name.as_str());
                let inside: Vec<&str> = uses.filter(|used| circle.contains(used)).collect();
                format!("    {name} uses {}", inside.join(", "))
            };
            circle.iter().map(uses).collect::<Vec<_>>().join("\n")
        };
        let complaint: Vec<String> = large.iter().map(listed).collect();
        assert!(
            large.is_empty(),
            "\ncrates/{krate}/src/{folder}: files that import each other in a circle; move what they share to a file of its own\n{}\n",
            complaint.join("\n\n")
        );
    }
}

#[test]
fn paths_are_followed_to_the_file_that_has_the_item() {
    let code =
        "use crate::{Error, call::{Call, Kind as Other}};\npub(crate) use child::Item;\nuse super::*;\nuse std::fmt;";
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<Vec<_>>();
    let expected = [("crate::Error", false), ("crate::call::Call", false), ("crate::call::Kind", false)];
    let mut expected: Vec<_> = expected.map(|(text, public)| (path(text), public)).to_vec();
    expected.extend([(path("child::Item"), true), (path("super::*"), false), (path("std::fmt"), false)]);
    assert_eq!(imports(code), expected);
    assert_eq!(
        inline_paths("let x = crate::sync::join(self.y); self::z()"),
        [path("crate::sync::join"), path("self::z")]
    );
    let file = |name: &str, code: &str| File { name: name.to_owned(), code: code.to_owned() };
    let modules = BTreeMap::from([
        (vec![], file("lib.rs", "mod a;\nmod b;\npub use b::Item;")),
        (path("a"), file("a.rs", "use crate::Item;")),
        (path("b"), file("b.rs", "mod c;\npub use c::Item;\nuse crate::a::Thing;")),
        (path("b::c"), file("b/c.rs", "use super::Other;")),
    ]);
    let mut small = Crate { modules, exports: BTreeMap::new() };
    small.exports = BTreeMap::from([
        ((vec![], "Item".to_owned()), path("b::Item")),
        ((path("b"), "Item".to_owned()), path("b::c::Item")),
    ]);
    assert_eq!(small.circles(), [BTreeSet::from(["a.rs", "b.rs", "b/c.rs"])]);
}
