//! Encrypts secrets before they are stored: ChaCha20-Poly1305 with a key in a file beside the database.
//!
//! What is stored is a random nonce and behind it the encrypted value with its tag. Whose a secret is and what it is
//! called is authenticated with it, so that nobody who writes the database can give one secret another's name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use instep_api::identifiers::{UserId, WorkspaceId};
use instep_api::secrets::GivenSecrets;
use instep_database::{Database, SecretScope};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::random;

const KEY_LENGTH: usize = 32;

/// Where the key is.
#[derive(Debug, Clone)]
pub(crate) struct Vault {
    path: PathBuf,
}

/// Where the key of a database is: its name and `.secret-key`.
pub(crate) fn key_path(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(".secret-key");
    path.into()
}

/// Why a secret can be neither encrypted nor decrypted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VaultError {
    #[error("the key of the secrets cannot be used: {path}: {source}")]
    Key { path: String, source: io::Error },
    #[error(
        "the key of the secrets is missing: {0}, and secrets are there that only it can read\nhint: restore the key that belongs to the database, or delete those secrets"
    )]
    Missing(String),
    #[error(
        "it was encrypted with another key than that in {0}\nhint: restore the key that belongs to the database, or set it again"
    )]
    Foreign(String),
}

impl Vault {
    /// That of a database.
    pub(crate) fn of(database: &Database) -> Vault {
        Vault { path: key_path(database.path()) }
    }

    /// Encrypts a value. The key is made with the first; never beside secrets that were encrypted with another.
    pub(crate) fn seal(
        &self,
        scope: SecretScope,
        name: &str,
        value: &str,
        is_first: bool,
    ) -> Result<Vec<u8>, VaultError> {
        let key = match self.key() {
            Err(VaultError::Key { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                if !is_first {
                    return Err(VaultError::Missing(self.path.display().to_string()));
                }
                make(&self.path).map_err(|source| self.unusable(source))?;
                self.key()?
            }
            key => key?,
        };
        let nonce: [u8; NONCE_LEN] = random::bytes();
        let mut sealed = value.as_bytes().to_vec();
        let bound = Aad::from(bound_to(scope, name));
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), bound, &mut sealed)
            .map_err(|_| self.unusable(io::Error::other("it cannot encrypt this value")))?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// Decrypts what [`seal`](Self::seal) made.
    pub(crate) fn open(&self, scope: SecretScope, name: &str, content: &[u8]) -> Result<String, VaultError> {
        let foreign = || VaultError::Foreign(self.path.display().to_string());
        let key = self.key()?;
        let (nonce, sealed) = content.split_first_chunk::<NONCE_LEN>().ok_or_else(foreign)?;
        let mut value = sealed.to_vec();
        let bound = Aad::from(bound_to(scope, name));
        let opened = key.open_in_place(Nonce::assume_unique_for_key(*nonce), bound, &mut value);
        String::from_utf8(opened.map_err(|_| foreign())?.to_vec()).map_err(|_| foreign())
    }

    fn key(&self) -> Result<LessSafeKey, VaultError> {
        let mut bytes = Vec::new();
        let file = File::open(&self.path).map_err(|source| self.unusable(source))?;
        file.take(KEY_LENGTH as u64 + 1).read_to_end(&mut bytes).map_err(|source| self.unusable(source))?;
        let wrong = || self.unusable(io::Error::other(format!("it does not have {KEY_LENGTH} bytes")));
        if bytes.len() != KEY_LENGTH {
            return Err(wrong());
        }
        UnboundKey::new(&CHACHA20_POLY1305, &bytes).map(LessSafeKey::new).map_err(|_| wrong())
    }

    fn unusable(&self, source: io::Error) -> VaultError {
        VaultError::Key { path: self.path.display().to_string(), source }
    }
}

/// Makes a key.
fn make(path: &Path) -> io::Result<()> {
    keep(path, &random::bytes::<KEY_LENGTH>())
}

/// Writes a key: whole and on disk, or not at all. Of several that are written at once, one is kept.
pub(crate) fn keep(path: &Path, key: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}", random::uuid()));
    let partial = PathBuf::from(partial);
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(&partial)?;
    let linked = file.write_all(key).and_then(|()| file.sync_all()).and_then(|()| std::fs::hard_link(&partial, path));
    std::fs::remove_file(&partial)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(folder_of(path))?.sync_all()
}

/// The folder of a file, also of one in the working directory that is named without it.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn bound_to(scope: SecretScope, name: &str) -> Vec<u8> {
    let owner = match scope {
        SecretScope::User(id) => format!("user {id}"),
        SecretScope::Workspace(id) => format!("workspace {id}"),
    };
    format!("{owner}\0{name}").into_bytes()
}

/// The secrets that a configuration names, and for whom.
#[derive(Debug, Clone, Default)]
pub(crate) struct WantedSecrets {
    pub owner: Option<(UserId, WorkspaceId)>,
    pub variables: BTreeMap<String, String>,
    pub files: BTreeMap<String, String>,
}

impl WantedSecrets {
    pub(crate) fn of(
        environment: &instep_api::config::Environment,
        user: UserId,
        workspace: WorkspaceId,
    ) -> WantedSecrets {
        let (variables, files) = (environment.secrets.clone(), environment.secret_files.clone());
        WantedSecrets { owner: Some((user, workspace)), variables, files }
    }

    /// Their values: the user's own, else the workspace's; or which one is not there. Why one that is there cannot be read
    /// is told with them: whoever restores the key mends it.
    pub(crate) async fn given(
        &self,
        database: &Database,
        vault: &Vault,
    ) -> instep_database::Result<Result<GivenSecrets, String>> {
        let mut given = GivenSecrets::default();
        let Some((user, workspace)) = self.owner else { return Ok(Ok(given)) };
        for (wanted, values) in [(&self.variables, &mut given.variables), (&self.files, &mut given.files)] {
            for (place, name) in wanted {
                let scopes = vec![SecretScope::User(user), SecretScope::Workspace(workspace)];
                match database.secret_content(scopes, name.clone()).await? {
                    None => return Ok(Err(missing(name))),
                    Some((scope, content)) => match vault.open(scope, name, &content) {
                        Ok(value) => drop(values.insert(place.clone(), value)),
                        Err(error) => given.problem = Some(format!("secret '{name}' cannot be read: {error}")),
                    },
                }
            }
        }
        Ok(Ok(given))
    }
}

/// What is said of a secret that is not there.
pub(crate) fn missing(name: &str) -> String {
    format!(
        "secret '{name}' does not exist: neither the user nor the workspace has it\n\
         hint: set it with `instep secret set {name}`, or for a workspace with --workspace"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const SCOPE: SecretScope = SecretScope::User(UserId(2));

    #[test]
    fn a_secret_opens_only_where_it_belongs_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let vault = Vault { path: folder.path().join("a.db.secret-key") };
        assert!(vault.open(SCOPE, "a", &[0; 40]).unwrap_err().to_string().contains("secret-key"));
        let sealed = vault.seal(SCOPE, "a", "hunter2", true).unwrap();
        assert_eq!(vault.open(SCOPE, "a", &sealed).unwrap(), "hunter2");
        assert!(!sealed.windows(7).any(|part| part == b"hunter2"));
        assert_ne!(vault.seal(SCOPE, "a", "hunter2", true).unwrap(), sealed);
        for (scope, name) in
            [(SCOPE, "b"), (SecretScope::User(UserId(3)), "a"), (SecretScope::Workspace(WorkspaceId(2)), "a")]
        {
            assert!(vault.open(scope, name, &sealed).is_err());
        }
        let mode = std::fs::metadata(&vault.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&vault.path, [7; 32]).unwrap();
        assert!(vault.open(SCOPE, "a", &sealed).unwrap_err().to_string().contains("another key"));
        std::fs::write(&vault.path, "short").unwrap();
        assert!(vault.seal(SCOPE, "a", "x", true).unwrap_err().to_string().contains("32 bytes"));
        std::fs::remove_file(&vault.path).unwrap();
        assert!(vault.seal(SCOPE, "a", "x", false).unwrap_err().to_string().contains("restore the key"));
        assert!(!vault.path.exists(), "no second key");
    }

    #[test]
    fn a_key_lies_in_the_working_directory_too() {
        for (path, folder) in [("master.db", "."), ("./master.db", "."), ("a/master.db", "a"), ("/master.db", "/")] {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder));
        }
    }

    #[test]
    fn secrets_that_are_set_at_once_have_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let vault = Vault { path: folder.path().join("a.db.secret-key") };
        let names: Vec<String> = (0..16).map(|number| number.to_string()).collect();
        let sealed: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                names.iter().map(|name| scope.spawn(|| vault.seal(SCOPE, name, name, true).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (name, content) in names.iter().zip(&sealed) {
            assert_eq!(vault.open(SCOPE, name, content).unwrap(), *name);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_bytes_are_opened_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), at in any::<prop::sample::Index>()) {
            let folder = tempfile::tempdir().unwrap();
            let vault = Vault { path: folder.path().join("key") };
            let mut sealed = vault.seal(SCOPE, "a", "value", true).unwrap();
            prop_assert!(vault.open(SCOPE, "a", &bytes).is_err());
            let at = at.index(sealed.len());
            sealed[at] ^= 1;
            prop_assert!(vault.open(SCOPE, "a", &sealed).is_err());
        }
    }
}
