//! The project's source files, for the house rules.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file of the project.
pub struct Source {
    /// From the project's root.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl Source {
    /// The lines with their numbers, counted from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The lines of Rust that ship: without comments, and without the test module, which by custom closes the file.
    pub fn shipped_code(&self) -> impl Iterator<Item = (usize, &str)> {
        let never_ships = ["/tests/", "/examples/", "/benches/"].iter().any(|folder| self.path.contains(folder))
            || self.path.ends_with("tests.rs");
        self.lines()
            .take_while(move |(_, line)| !never_ships && line.trim() != "#[cfg(test)]")
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// Whether its name ends so, without the dot.
    pub fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }
}

/// The project's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("this crate lies in the project")
}

/// All source files of the project with one of these extensions.
pub fn sources(extensions: &[&str]) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    collect(&root, &root, extensions, &mut found);
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn collect(root: &Path, folder: &Path, extensions: &[&str], found: &mut Vec<Source>) {
    const OUTPUTS: &[&str] = &["build", "dist", "node_modules", "target", "__pycache__", "instep.data"];
    for entry in fs::read_dir(folder).expect("a folder of the project can be read") {
        let entry = entry.expect("a folder of the project can be listed");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if name.starts_with('.') || OUTPUTS.contains(&name.as_str()) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, extensions, found);
        } else if extensions.iter().any(|wanted| path.extension().is_some_and(|extension| extension == *wanted))
            && let Ok(text) = fs::read_to_string(&path)
        {
            // A file that vanishes between listing and reading was somebody's temporary one.
            let path = path.strip_prefix(root).expect("it lies below the root").to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}
