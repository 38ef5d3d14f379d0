//! The code of an experiment, file by file.

use std::collections::BTreeMap;
use std::io::{self, Read};

use flate2::read::GzDecoder;
use instep_api::error::Code;
use instep_api::experiments::{FileNode, ModelFileRequest, ModelFileResponse, ModelTreeResponse};
use instep_api::wire::{Base64, Timestamp};

use super::blocking::blocking;
use super::call::Call;
use super::failure::Failure;
use super::reply::Json;
use crate::clock::now;
use crate::model_definition::is_too_deep;

/// Bytes of a file that is shown; whoever wants more saves the whole definition.
const LARGEST: u64 = 16 << 20;
/// Files and folders of a tree, and the bytes of their paths together.
const MOST_NODES: usize = 200_000;
const MOST_PATHS: usize = 64 << 20;

type Archive<'a> = tar::Archive<Box<dyn Read + 'a>>;

/// Runs `read` over the archive of an experiment's code, where it may take its time.
async fn read_archive<T: Send + 'static>(
    call: &Call,
    read: impl FnOnce(Archive<'_>) -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let content = call.application.database.model_definition(call.id("id")?, now()).await?;
    let reading = blocking(move || {
        // An experiment without files has no archive.
        let unpacked: Box<dyn Read + '_> =
            if content.is_empty() { Box::new(io::empty()) } else { Box::new(GzDecoder::new(content.as_slice())) };
        read(tar::Archive::new(unpacked))
    });
    reading.await?.map_err(|error| Failure::new(Code::Internal, format!("cannot read the experiment's code: {error}")))
}

fn plain(path: &std::path::Path) -> String {
    path.to_string_lossy().trim_start_matches("./").trim_end_matches('/').to_owned()
}

/// What is in the archive, by path; folders that have no entry of their own, too. What lies deeper than files may is left
/// out; `None` if there is too much for one answer.
fn entries(mut archive: Archive<'_>) -> io::Result<Option<BTreeMap<String, FileNode>>> {
    let mut found: BTreeMap<String, FileNode> = BTreeMap::new();
    let mut bytes = 0;
    for entry in archive.entries()? {
        let entry = entry?;
        let path = plain(&entry.path()?);
        if path.is_empty() || path == "." || is_too_deep(&path) {
            continue;
        }
        for (end, _) in
            path.match_indices('/').filter(|(end, _)| !found.contains_key(&path[..*end])).collect::<Vec<_>>()
        {
            bytes += end;
            found.insert(path[..end].to_owned(), node(&path[..end], true, 0, 0));
        }
        bytes += path.len();
        if found.len() >= MOST_NODES || bytes > MOST_PATHS {
            return Ok(None);
        }
        let header = entry.header();
        let is_dir = header.entry_type().is_dir();
        found.insert(path.clone(), node(&path, is_dir, header.size()?, header.mtime()?));
    }
    Ok(Some(found))
}

fn node(path: &str, is_dir: bool, size: u64, modified: u64) -> FileNode {
    let name = path.rsplit('/').next().unwrap_or(path).to_owned();
    let content_type = match name.rsplit_once('.').map(|(_, extension)| extension) {
        _ if is_dir => "",
        Some("json") => "application/json",
        Some("gz" | "tgz" | "zip" | "png" | "jpg" | "pt" | "bin" | "so") => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    };
    FileNode {
        path: path.to_owned(),
        name,
        modified_time: Timestamp(i64::try_from(modified).unwrap_or(0).saturating_mul(1_000_000)),
        content_length: i64::try_from(size).unwrap_or(i64::MAX),
        is_dir,
        content_type: content_type.to_owned(),
        files: Vec::new(),
    }
}

/// Hangs everything where it belongs, the deepest first.
fn tree(mut found: BTreeMap<String, FileNode>) -> Vec<FileNode> {
    let mut paths: Vec<String> = found.keys().cloned().collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.matches('/').count()));
    for path in paths {
        let Some((parent, _)) = path.rsplit_once('/') else { continue };
        if let Some(child) = found.remove(&path)
            && let Some(folder) = found.get_mut(parent)
        {
            folder.files.push(child);
        }
    }
    let mut files: Vec<FileNode> = found.into_values().collect();
    sort(&mut files);
    files
}

fn sort(files: &mut [FileNode]) {
    files.sort_by(|one, other| one.name.cmp(&other.name));
    files.iter_mut().for_each(|file| sort(&mut file.files));
}

pub(crate) async fn file_tree(call: Call) -> Result<Json<ModelTreeResponse>, Failure> {
    let files = read_archive(&call, |archive| Ok(entries(archive)?.map(tree))).await?;
    let too_many = || {
        Failure::invalid(format!(
            "the experiment's code has more than {MOST_NODES} files and folders, or {MOST_PATHS} bytes of paths\n\
             hint: save all of it from /experiments/ID/model_def"
        ))
    };
    Ok(Json(ModelTreeResponse { files: files.ok_or_else(too_many)? }))
}

pub(crate) async fn file(call: Call) -> Result<Json<ModelFileResponse>, Failure> {
    let request: ModelFileRequest = call.json()?;
    let wanted = request.path.unwrap_or_default();
    let path = plain(std::path::Path::new(&wanted));
    let found = read_archive(&call, move |mut archive| {
        for entry in archive.entries()? {
            let mut entry = entry?;
            if plain(&entry.path()?) == path && entry.header().entry_type().is_file() {
                let size = entry.header().size()?;
                let mut content = Vec::new();
                if size <= LARGEST {
                    entry.read_to_end(&mut content)?;
                }
                return Ok(Some((size, content)));
            }
        }
        Ok(None)
    });
    match found.await? {
        None => Err(Failure::not_found(format!("there is no file `{wanted}` in the experiment's code"))),
        Some((size, _)) if size > LARGEST => Err(Failure::invalid(format!(
            "`{wanted}` has {size} bytes, and files of up to {LARGEST} are shown\n\
             hint: save all of the code from /experiments/ID/model_def"
        ))),
        Some((_, content)) => Ok(Json(ModelFileResponse { file: Base64(content) })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the master packed them before paths were bounded.
    fn archive(paths: &[String]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for path in paths {
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            archive.append_data(&mut header, path, io::empty()).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn read(archive: &[u8]) -> io::Result<Option<Vec<FileNode>>> {
        let content: Box<dyn Read + '_> = Box::new(archive);
        Ok(entries(tar::Archive::new(content))?.map(tree))
    }

    #[test]
    fn what_lies_in_thousands_of_folders_is_left_out() {
        let found = read(&archive(&[format!("{}x.py", "a/".repeat(2000)), "b/c.py".to_owned()])).unwrap().unwrap();
        assert_eq!(found.iter().map(|node| node.path.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(found[0].files[0].path, "b/c.py");
    }

    #[test]
    fn a_tree_that_fills_the_memory_is_not_built() {
        let folders = |number: usize| format!("{number:060}/").repeat(60);
        let paths: Vec<String> = (0..1000).map(|number| format!("{}x", folders(number))).collect();
        assert!(read(&archive(&paths)).unwrap().is_none());
    }
}
