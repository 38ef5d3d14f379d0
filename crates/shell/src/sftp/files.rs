//! Does what requests ask, with the rights of the process.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions, ReadDir};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, chown, fchown, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::attributes::Attributes;
use super::protocol::{Handle, Reply, Status, What};

/// What `open` may ask for.
const READS: u32 = 1;
const WRITES: u32 = 2;
const APPENDS: u32 = 4;
const CREATES: u32 = 8;
const TRUNCATES: u32 = 16;
const MUST_BE_NEW: u32 = 32;

/// Files and folders that may be open at a time.
const MOST_OPEN: usize = 256;
/// Bytes of one answer.
const LONGEST_READ: u32 = 128 << 10;
/// Names of one answer.
const MOST_NAMES: usize = 100;
/// Where a path that leads in circles is given up.
const LONGEST_PATH: usize = 4096;

enum Opened {
    File { file: File, appends: bool },
    Folder { path: PathBuf, entries: ReadDir },
}

/// What a client has opened.
#[derive(Default)]
pub(super) struct Files {
    open: BTreeMap<Handle, Opened>,
    next: Handle,
}

impl Files {
    pub(super) fn answer(&mut self, number: u32, what: What) -> Vec<u8> {
        self.done(what).unwrap_or_else(Reply::from).packet(number)
    }

    fn done(&mut self, what: What) -> io::Result<Reply> {
        match what {
            What::Open { path, flags, attributes } => return self.open_file(&path, flags, attributes),
            What::OpenFolder(path) => {
                let entries = fs::read_dir(&path)?;
                return self.opened(Opened::Folder { path, entries });
            }
            What::Close(handle) => drop(self.open.remove(&handle).ok_or_else(not_open)?),
            What::Read { handle, offset, length } => return read(self.file(handle)?.0, offset, length),
            What::Write { handle, offset, data } => write(self.file(handle)?, offset, &data)?,
            What::Stat(path) => return Ok(Reply::Attributes(Attributes::of(&fs::metadata(path)?))),
            What::LinkStat(path) => return Ok(Reply::Attributes(Attributes::of(&fs::symlink_metadata(path)?))),
            What::HandleStat(handle) => {
                return Ok(Reply::Attributes(Attributes::of(&self.file(handle)?.0.metadata()?)));
            }
            What::SetStat(path, attributes) => set(&path, attributes)?,
            What::HandleSetStat(handle, attributes) => set_open(self.file(handle)?.0, attributes)?,
            What::ReadFolder(handle) => return self.names(handle),
            What::Remove(path) => fs::remove_file(path)?,
            What::MakeFolder(path, attributes) => {
                fs::DirBuilder::new().mode(attributes.permissions.unwrap_or(0o777) & 0o7777).create(path)?;
            }
            What::RemoveFolder(path) => fs::remove_dir(path)?,
            What::RealPath(path) => {
                return Ok(Reply::Names(vec![(real_path(&path)?, Attributes::default())]));
            }
            What::Rename { from, to, replaces } => rename(&from, &to, replaces)?,
            What::ReadLink(path) => {
                return Ok(Reply::Names(vec![(fs::read_link(path)?, Attributes::default())]));
            }
            What::Symlink { target, link } => symlink(target, link)?,
            What::HardLink { from, to } => fs::hard_link(from, to)?,
            What::Sync(handle) => self.file(handle)?.0.sync_all()?,
            What::Unknown => return Ok(Reply::Status(Status::Unsupported, "this is not supported".to_owned())),
        }
        Ok(Reply::Status(Status::Done, String::new()))
    }

    fn open_file(&mut self, path: &Path, flags: u32, attributes: Attributes) -> io::Result<Reply> {
        let has = |flag| flags & flag != 0;
        let mut options = OpenOptions::new();
        options.read(has(READS)).write(has(WRITES) && !has(APPENDS)).append(has(APPENDS));
        options.create(has(CREATES)).truncate(has(TRUNCATES) && !has(APPENDS));
        options.create_new(has(CREATES) && has(MUST_BE_NEW)).mode(attributes.permissions.unwrap_or(0o666) & 0o7777);
        // A pipe that nobody writes to must not hold up everything else.
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path)?;
        self.opened(Opened::File { file, appends: has(APPENDS) })
    }

    fn opened(&mut self, opened: Opened) -> io::Result<Reply> {
        if self.open.len() >= MOST_OPEN {
            return Err(io::Error::other(format!("{MOST_OPEN} files are open, which is the limit")));
        }
        // One that is used up is one that was never closed by a client that opened four billion others.
        let handle = self.next;
        self.next = self.next.wrapping_add(1);
        self.open.insert(handle, opened);
        Ok(Reply::Handle(handle))
    }

    fn file(&self, handle: Handle) -> io::Result<(&File, bool)> {
        match self.open.get(&handle) {
            Some(Opened::File { file, appends }) => Ok((file, *appends)),
            _ => Err(not_open()),
        }
    }

    fn names(&mut self, handle: Handle) -> io::Result<Reply> {
        let Some(Opened::Folder { path, entries }) = self.open.get_mut(&handle) else { return Err(not_open()) };
        let mut names = Vec::new();
        for entry in entries.take(MOST_NAMES) {
            let name = entry?.file_name();
            // One that has gone meanwhile is not shown.
            if let Ok(metadata) = fs::symlink_metadata(path.join(&name)) {
                names.push((PathBuf::from(name), Attributes::of(&metadata)));
            }
        }
        if names.is_empty() {
            return Ok(Reply::Status(Status::End, "there are no more".to_owned()));
        }
        Ok(Reply::Names(names))
    }
}

fn not_open() -> io::Error {
    io::Error::other("nothing is open under this handle")
}

fn read(file: &File, offset: u64, length: u32) -> io::Result<Reply> {
    let mut data = vec![0; length.min(LONGEST_READ) as usize];
    let mut count = 0;
    while count < data.len() {
        match file.read_at(&mut data[count..], offset.saturating_add(count as u64)) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What came before an error is given, and the error with the next question.
            Err(error) if count == 0 => return Err(error),
            Err(_) => break,
        }
    }
    if count == 0 && length > 0 {
        return Ok(Reply::Status(Status::End, "this is the end of the file".to_owned()));
    }
    data.truncate(count);
    Ok(Reply::Data(data))
}

fn write((file, appends): (&File, bool), offset: u64, data: &[u8]) -> io::Result<()> {
    if appends {
        return io::Write::write_all(&mut &*file, data);
    }
    file.write_all_at(data, offset)
}

fn set(path: &Path, attributes: Attributes) -> io::Result<()> {
    if let Some(size) = attributes.size {
        OpenOptions::new().write(true).open(path)?.set_len(size)?;
    }
    if let Some(mode) = attributes.permissions {
        fs::set_permissions(path, Permissions::from_mode(mode & 0o7777))?;
    }
    if let Some((read, changed)) = attributes.times {
        // A folder, and a file that may not be written, can be opened for reading.
        File::open(path)?.set_times(times(read, changed))?;
    }
    match attributes.owner {
        Some((user, group)) => chown(path, Some(user), Some(group)),
        None => Ok(()),
    }
}

fn set_open(file: &File, attributes: Attributes) -> io::Result<()> {
    if let Some(size) = attributes.size {
        file.set_len(size)?;
    }
    if let Some(mode) = attributes.permissions {
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
    }
    if let Some((read, changed)) = attributes.times {
        file.set_times(times(read, changed))?;
    }
    match attributes.owner {
        Some((user, group)) => fchown(file, Some(user), Some(group)),
        None => Ok(()),
    }
}

fn times(read: u32, changed: u32) -> FileTimes {
    let time = |seconds: u32| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into());
    FileTimes::new().set_accessed(time(read)).set_modified(time(changed))
}

/// Version 3 of the protocol replaces nothing.
fn rename(from: &Path, to: &Path, replaces: bool) -> io::Result<()> {
    if !replaces && fs::symlink_metadata(to).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of the new name already"));
    }
    fs::rename(from, to)
}

/// The whole path, of what need not be there.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(io::Error::other("the path is too long"));
    }
    if let Ok(found) = fs::canonicalize(path) {
        return Ok(found);
    }
    let mut whole = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            Component::CurDir => {}
            part => whole.push(part),
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is answered, without the number.
    fn status(files: &mut Files, what: What) -> Reply {
        files.done(what).unwrap_or_else(Reply::from)
    }

    fn opened(files: &mut Files, path: &Path, flags: u32) -> Handle {
        let what = What::Open { path: path.to_owned(), flags, attributes: Attributes::default() };
        match status(files, what) {
            Reply::Handle(handle) => handle,
            Reply::Status(_, text) => panic!("{text}"),
            _ => panic!("not a handle"),
        }
    }

    #[test]
    fn a_file_is_written_and_read_in_any_order() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        let mut files = Files::default();
        let handle = opened(&mut files, &path, READS | WRITES | CREATES | TRUNCATES);
        for (offset, data) in [(3, b"def"), (0, b"abc")] {
            let done = status(&mut files, What::Write { handle, offset, data: data.to_vec() });
            assert!(matches!(done, Reply::Status(Status::Done, _)));
        }
        let Reply::Data(data) = status(&mut files, What::Read { handle, offset: 2, length: 100 }) else { panic!() };
        assert_eq!(data, b"cdef");
        let end = status(&mut files, What::Read { handle, offset: 6, length: 1 });
        assert!(matches!(end, Reply::Status(Status::End, _)));
        assert!(matches!(status(&mut files, What::Close(handle)), Reply::Status(Status::Done, _)));
        assert!(matches!(status(&mut files, What::Close(handle)), Reply::Status(Status::Failed, _)));
        let again = What::Open { path, flags: WRITES | CREATES | MUST_BE_NEW, attributes: Attributes::default() };
        assert!(matches!(status(&mut files, again), Reply::Status(Status::Failed, _)));
    }

    #[test]
    fn a_folder_is_listed_to_its_end() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..MOST_NAMES + 1 {
            fs::write(place.path().join(number.to_string()), "").unwrap();
        }
        let mut files = Files::default();
        let Reply::Handle(handle) = status(&mut files, What::OpenFolder(place.path().to_owned())) else { panic!() };
        let mut found = 0;
        while let Reply::Names(names) = status(&mut files, What::ReadFolder(handle)) {
            found += names.len();
        }
        assert_eq!(found, MOST_NAMES + 1);
    }

    #[test]
    fn nothing_is_replaced_unless_that_is_asked() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("a"), place.path().join("b"));
        fs::write(&from, "a").unwrap();
        fs::write(&to, "b").unwrap();
        assert!(rename(&from, &to, false).is_err());
        rename(&from, &to, true).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "a");
        assert_eq!(real_path(&place.path().join("x/../y")).unwrap(), place.path().join("y"));
    }

    #[test]
    fn so_many_files_are_open_and_no_more() {
        let place = tempfile::tempdir().unwrap();
        let mut files = Files::default();
        for _ in 0..MOST_OPEN {
            opened(&mut files, &place.path().join("a"), WRITES | CREATES);
        }
        let what = What::OpenFolder(place.path().to_owned());
        assert!(matches!(status(&mut files, what), Reply::Status(Status::Failed, _)));
    }
}
