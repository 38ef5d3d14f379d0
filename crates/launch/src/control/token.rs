//! The job's token: a secret that all launchers of a job have, and nobody else.
//!
//! It is read from a file that others cannot read, so that it stands on no command line and in no environment; or from a
//! variable, which only this user's programs can read, and workers are not given. Which keys
//! are made of it says the module that uses them; the token itself is never sent, shown or given to workers.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use instep_noise::Key;
use nix::unistd::Uid;

use crate::random;

/// Random bytes in a token. Whoever records a connection can try guesses at leisure: it must not be a word.
const BYTES: usize = 32;
/// What is read of the file: a token, and white space around it.
const MAX_FILE_BYTES: u64 = 1 << 10;

/// The keys that a token gives. They are never printed.
#[derive(Debug, Clone)]
pub struct JobToken {
    /// For connections between launchers.
    pub(super) control: Key,
}

/// Why there is no token to use.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are what the messages say")]
pub enum TokenError {
    #[error("cannot read the job's token from {path}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("others may read the job's token in {path} (mode {mode:o})")]
    ReadableByOthers { path: PathBuf, mode: u32 },
    #[error("the job's token in {path} belongs to another user (user id {owner})")]
    OfAnother { path: PathBuf, owner: u32 },
    #[error("{path} does not hold a job's token")]
    NotAToken { path: PathBuf },
    #[error("{variable} does not hold a job's token")]
    NotInVariable { variable: &'static str },
}

impl TokenError {
    /// What the user can do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            TokenError::Unreadable { .. } | TokenError::NotAToken { .. } => {
                "make one with `install -m 600 /dev/null FILE && instep job-token > FILE`, and copy it to all nodes"
                    .to_owned()
            }
            TokenError::ReadableByOthers { path, .. } => {
                let path = path.display();
                format!(
                    "chmod 600 {path}; where you cannot, as with a secret of Kubernetes for a group (fsGroup), use a copy: \
                     install -m 600 {path} COPY"
                )
            }
            TokenError::NotInVariable { variable } => {
                format!(
                    "set {variable} to what `instep job-token` prints, on all nodes, or to nothing for a job without one"
                )
            }
            TokenError::OfAnother { path, .. } => {
                format!("use a copy of your own: install -m 600 {} COPY", path.display())
            }
        }
    }
}

impl JobToken {
    /// A new token, as it stands in a file.
    pub fn generate() -> io::Result<String> {
        Ok(random::bytes::<BYTES>()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The token in a file, which nobody else may read; in a pipe it is read once.
    pub fn read(path: &Path) -> Result<JobToken, TokenError> {
        let unreadable = |source| TokenError::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        // Devices, such as a terminal, are not anybody's alone.
        if metadata.is_file() || metadata.file_type().is_fifo() {
            check_access(path, metadata.mode(), metadata.uid(), Uid::effective().as_raw())?;
        }
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(unreadable)?;
        JobToken::parse(text.trim()).ok_or_else(|| TokenError::NotAToken { path: path.to_owned() })
    }

    /// The token in a variable; none in an empty one.
    pub(crate) fn of_variable(variable: &'static str, value: &str) -> Result<Option<JobToken>, TokenError> {
        let text = value.trim();
        let token = (!text.is_empty()).then(|| JobToken::parse(text).ok_or(TokenError::NotInVariable { variable }));
        token.transpose()
    }

    /// A token is as many hexadecimal digits as [`JobToken::generate`] gives.
    pub fn parse(text: &str) -> Option<JobToken> {
        let is_token = text.len() == 2 * BYTES && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let secret = is_token.then(|| text.to_ascii_lowercase())?;
        Some(JobToken { control: Key::derive("control connections", secret.as_bytes()) })
    }
}

/// Whether a file, or a pipe with a name, is this user's alone.
fn check_access(path: &Path, mode: u32, owner: u32, user: u32) -> Result<(), TokenError> {
    // Root in a container is often given a file of the user outside.
    if user != 0 && owner != 0 && owner != user {
        return Err(TokenError::OfAnother { path: path.to_owned(), owner });
    }
    if mode & 0o077 != 0 {
        return Err(TokenError::ReadableByOthers { path: path.to_owned(), mode: mode & 0o777 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{JobToken, TokenError, check_access};
    use nix::sys::stat::Mode;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_read_from_a_file_that_nobody_else_can_read() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("token");
        assert!(matches!(JobToken::read(&path), Err(TokenError::Unreadable { .. })));
        let token = JobToken::generate().expect("random numbers");
        assert_ne!(token, JobToken::generate().expect("random numbers"));
        for (text, mode, accepted) in [
            (format!("{token}\n"), 0o600, "yes"),
            (token.to_uppercase(), 0o400, "yes"),
            (token.clone(), 0o640, "readable"),
            (token.clone(), 0o604, "readable"),
            (String::new(), 0o600, "none"),
            ("secret".to_owned(), 0o600, "none"),
            (token.replace(&token[..1], "g"), 0o600, "none"),
            (format!("{token}{token}"), 0o600, "none"),
        ] {
            let _ = fs::remove_file(&path);
            fs::write(&path, &text).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("permissions");
            let found = match JobToken::read(&path) {
                Ok(read) => {
                    assert!(!format!("{read:?}").contains(&token), "never shown");
                    "yes"
                }
                Err(TokenError::ReadableByOthers { .. }) => "readable",
                Err(TokenError::NotAToken { .. }) => "none",
                Err(error) => panic!("{error}"),
            };
            assert_eq!(found, accepted, "{text} {mode:o}");
        }
    }
    #[test]
    fn a_pipe_and_its_owner_are_looked_at_too() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("a pipe");
        fs::set_permissions(&path, Permissions::from_mode(0o620)).expect("permissions");
        // Without a writer nobody can open it.
        let _writer = File::options().read(true).write(true).open(&path).expect("open");
        assert!(matches!(JobToken::read(&path), Err(TokenError::ReadableByOthers { mode: 0o620, .. })));

        let found = |mode, owner, user| check_access(&path, mode, owner, user).err();
        for (owner, user) in [(0, 0), (7, 0), (0, 7), (7, 7)] {
            assert!(found(0o100_400, owner, user).is_none(), "{owner} {user}");
            assert!(
                matches!(found(0o100_440, owner, user), Some(TokenError::ReadableByOthers { .. })),
                "{owner} {user}"
            );
        }
        let error = found(0o100_600, 8, 7).expect("another user's");
        assert!(error.to_string().ends_with("belongs to another user (user id 8)"), "{error}");
        assert!(error.hint().starts_with("use a copy of your own"), "{}", error.hint());
    }
}
