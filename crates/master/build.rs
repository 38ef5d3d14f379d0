//! Makes a table of the built pages, so that the binary carries them.
//!
//! `web/dist` is made by `scripts/build.py`, which needs Node. Without it the table is empty, everything compiles, and
//! the master says how to build the pages to whoever opens them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let dist = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../web/dist");
    let table = table(&dist).unwrap_or_else(|error| panic!("cannot read {}: {error}", dist.display()));
    let out = PathBuf::from(variable("OUT_DIR")).join("assets.rs");
    fs::write(&out, table).unwrap_or_else(|error| panic!("cannot write {}: {error}", out.display()));
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// `&[("/assets/index.js", include_bytes!("…/web/dist/assets/index.js")), …]`
fn table(dist: &Path) -> std::io::Result<String> {
    // A path that is not there makes cargo look again every time, so the folder above is watched then.
    let watched = if dist.exists() { dist } else { dist.parent().unwrap_or(dist) };
    println!("cargo::rerun-if-changed={}", watched.display());
    let mut text = String::from("&[\n");
    if dist.exists() {
        let dist = dist.canonicalize()?;
        let mut files = Vec::new();
        collect(&dist, &mut files)?;
        files.sort();
        for file in files {
            println!("cargo::rerun-if-changed={}", file.display());
            let path = file.strip_prefix(&dist).unwrap_or(&file).display().to_string();
            let _ = writeln!(text, "    ({:?}, include_bytes!({:?})),", format!("/{path}"), file.display().to_string());
        }
    }
    text.push(']');
    Ok(text)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
