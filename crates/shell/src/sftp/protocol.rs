//! The packets: what clients ask, and what they are answered. Numbers are big-endian, texts have their length before them.
//!
//! ```text
//! u32 length │ u8 kind │ u32 number │ what belongs to the kind
//! ```

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::attributes::Attributes;

const INIT: u8 = 1;
const VERSION: u8 = 2;
const OPEN: u8 = 3;
const CLOSE: u8 = 4;
const READ: u8 = 5;
const WRITE: u8 = 6;
const LSTAT: u8 = 7;
const FSTAT: u8 = 8;
const SETSTAT: u8 = 9;
const FSETSTAT: u8 = 10;
const OPENDIR: u8 = 11;
const READDIR: u8 = 12;
const REMOVE: u8 = 13;
const MKDIR: u8 = 14;
const RMDIR: u8 = 15;
const REALPATH: u8 = 16;
pub(super) const STAT: u8 = 17;
const RENAME: u8 = 18;
const READLINK: u8 = 19;
const SYMLINK: u8 = 20;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRS: u8 = 105;
const EXTENDED: u8 = 200;

/// What clients may ask beyond version 3.
const POSIX_RENAME: &str = "posix-rename@openssh.com";
const HARDLINK: &str = "hardlink@openssh.com";
const FSYNC: &str = "fsync@openssh.com";

/// A number by which clients name what they have opened.
pub(super) type Handle = u32;

/// What a client asks.
#[derive(Debug)]
pub(super) enum Request {
    Init,
    Numbered { number: u32, what: What },
}

#[derive(Debug)]
pub(super) enum What {
    Open { path: PathBuf, flags: u32, attributes: Attributes },
    Close(Handle),
    Read { handle: Handle, offset: u64, length: u32 },
    Write { handle: Handle, offset: u64, data: Vec<u8> },
    Stat(PathBuf),
    LinkStat(PathBuf),
    HandleStat(Handle),
    SetStat(PathBuf, Attributes),
    HandleSetStat(Handle, Attributes),
    OpenFolder(PathBuf),
    ReadFolder(Handle),
    Remove(PathBuf),
    MakeFolder(PathBuf, Attributes),
    RemoveFolder(PathBuf),
    RealPath(PathBuf),
    Rename { from: PathBuf, to: PathBuf, replaces: bool },
    ReadLink(PathBuf),
    Symlink { target: PathBuf, link: PathBuf },
    HardLink { from: PathBuf, to: PathBuf },
    Sync(Handle),
    Unknown,
}

/// Reads what a packet holds, from its beginning to its end.
pub(super) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_be_bytes)
    }

    pub(super) fn text(&mut self) -> Option<Vec<u8>> {
        let length = self.number()?;
        self.take(usize::try_from(length).ok()?).map(<[u8]>::to_vec)
    }

    /// A relative one, and none at all, is one of the folder where the server runs.
    fn path(&mut self) -> Option<PathBuf> {
        let bytes = self.text().filter(|bytes| !bytes.contains(&0))?;
        Some(if bytes.is_empty() { PathBuf::from(".") } else { PathBuf::from(OsString::from_vec(bytes)) })
    }

    /// One that is none of ours is as good as one that was closed.
    fn handle(&mut self) -> Option<Handle> {
        let text = self.text()?;
        Some(<[u8; 4]>::try_from(text.as_slice()).map_or(u32::MAX, u32::from_be_bytes))
    }

    fn attributes(&mut self) -> Option<Attributes> {
        Attributes::read(self)
    }
}

impl Request {
    /// Reads a packet; `None` if it is cut off. What follows it is passed over.
    pub(super) fn parse(packet: &[u8]) -> Option<Request> {
        let mut reader = Reader(packet);
        let kind = reader.byte()?;
        let number = reader.number()?;
        if kind == INIT {
            return Some(Request::Init);
        }
        Some(Request::Numbered { number, what: what(kind, &mut reader)? })
    }
}

fn what(kind: u8, reader: &mut Reader<'_>) -> Option<What> {
    Some(match kind {
        OPEN => What::Open { path: reader.path()?, flags: reader.number()?, attributes: reader.attributes()? },
        CLOSE => What::Close(reader.handle()?),
        READ => What::Read { handle: reader.handle()?, offset: reader.long()?, length: reader.number()? },
        WRITE => What::Write { handle: reader.handle()?, offset: reader.long()?, data: reader.text()? },
        STAT => What::Stat(reader.path()?),
        LSTAT => What::LinkStat(reader.path()?),
        FSTAT => What::HandleStat(reader.handle()?),
        SETSTAT => What::SetStat(reader.path()?, reader.attributes()?),
        FSETSTAT => What::HandleSetStat(reader.handle()?, reader.attributes()?),
        OPENDIR => What::OpenFolder(reader.path()?),
        READDIR => What::ReadFolder(reader.handle()?),
        REMOVE => What::Remove(reader.path()?),
        MKDIR => What::MakeFolder(reader.path()?, reader.attributes()?),
        RMDIR => What::RemoveFolder(reader.path()?),
        REALPATH => What::RealPath(reader.path()?),
        RENAME => What::Rename { from: reader.path()?, to: reader.path()?, replaces: false },
        READLINK => What::ReadLink(reader.path()?),
        // OpenSSH has the two the other way round than the draft, and so have all clients by now.
        SYMLINK => What::Symlink { target: reader.path()?, link: reader.path()? },
        EXTENDED => match std::str::from_utf8(&reader.text()?) {
            Ok(POSIX_RENAME) => What::Rename { from: reader.path()?, to: reader.path()?, replaces: true },
            Ok(HARDLINK) => What::HardLink { from: reader.path()?, to: reader.path()? },
            Ok(FSYNC) => What::Sync(reader.handle()?),
            _ => What::Unknown,
        },
        _ => What::Unknown,
    })
}

/// An answer, as it is written.
pub(super) struct Answer(Vec<u8>);

impl Answer {
    fn of(kind: u8, number: u32) -> Answer {
        let mut bytes = vec![0, 0, 0, 0, kind];
        bytes.extend(number.to_be_bytes());
        Answer(bytes)
    }

    fn text(mut self, text: &[u8]) -> Answer {
        self.0.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.0.extend(text);
        self
    }

    fn number(mut self, number: u32) -> Answer {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn attributes(mut self, attributes: &Attributes) -> Answer {
        attributes.write(&mut self.0);
        self
    }

    fn bytes(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// How something ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Status {
    Done = 0,
    End = 1,
    NoSuchFile = 2,
    Denied = 3,
    Failed = 4,
    Unsupported = 8,
}

/// What is answered.
pub(super) enum Reply {
    Status(Status, String),
    Handle(Handle),
    Data(Vec<u8>),
    Names(Vec<(PathBuf, Attributes)>),
    Attributes(Attributes),
}

impl From<io::Error> for Reply {
    fn from(error: io::Error) -> Reply {
        let status = match error.kind() {
            io::ErrorKind::NotFound => Status::NoSuchFile,
            io::ErrorKind::PermissionDenied => Status::Denied,
            _ => Status::Failed,
        };
        Reply::Status(status, error.to_string())
    }
}

impl Reply {
    pub(super) fn packet(self, number: u32) -> Vec<u8> {
        match self {
            Reply::Status(status, text) => {
                Answer::of(STATUS, number).number(status as u32).text(text.as_bytes()).text(b"en").bytes()
            }
            Reply::Handle(handle) => Answer::of(HANDLE, number).text(&handle.to_be_bytes()).bytes(),
            Reply::Data(data) => Answer::of(DATA, number).text(&data).bytes(),
            Reply::Names(names) => {
                let mut answer = Answer::of(NAME, number).number(u32::try_from(names.len()).unwrap_or(u32::MAX));
                for (path, attributes) in names {
                    let name = bytes_of(&path);
                    let line = attributes.line(&path);
                    answer = answer.text(name).text(line.as_bytes()).attributes(&attributes);
                }
                answer.bytes()
            }
            Reply::Attributes(attributes) => Answer::of(ATTRS, number).attributes(&attributes).bytes(),
        }
    }
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// The version that is spoken, and what is understood beyond it.
pub(super) fn answer_to_init() -> Vec<u8> {
    let mut answer = Answer(vec![0, 0, 0, 0, VERSION, 0, 0, 0, 3]);
    for name in [POSIX_RENAME, HARDLINK, FSYNC] {
        answer = answer.text(name.as_bytes()).text(b"1");
    }
    answer.bytes()
}
