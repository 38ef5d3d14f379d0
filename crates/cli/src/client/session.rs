//! Which master is meant, who speaks to it, and where tokens are kept.
//!
//! Tokens lie in `instep/sessions.json` in the user's configuration folder, which only its owner may read. Who speaks is
//! decided in this order: a user and password in the environment; the session that is kept for this master; the user
//! `determined` without a password, which a master on this machine has from the start.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use instep_api::users::User;
use instep_client::{Addresses, Client, Credentials, Settings};
use serde::{Deserialize, Serialize};

use super::options::Common;
use crate::report::Hinted;

/// Where a master is that nobody named.
const DEFAULT_MASTER: &str = "http://127.0.0.1:8080";
/// Who speaks if nobody is named.
const DEFAULT_USER: &str = "determined";
/// A person waits: a master that is not there is reported soon.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A session that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    user: String,
    token: String,
    /// Opened without asking anybody, and so may be opened again.
    #[serde(default)]
    automatic: bool,
}

/// The sessions that are kept, by the address of their master.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sessions {
    #[serde(default)]
    masters: BTreeMap<String, Kept>,
}

/// Reads a variable that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The address of the master that is meant, or several of which any answers.
fn addresses(given: Option<&str>) -> anyhow::Result<Addresses> {
    let text = given.map(str::to_owned).or_else(|| variable("INSTEP_MASTER")).or_else(|| variable("DET_MASTER"));
    Ok(text.as_deref().unwrap_or(DEFAULT_MASTER).parse::<Addresses>()?)
}

/// The address of the master that is meant, and the certificates to trust instead of the public ones.
pub(super) fn master(common: &Common) -> anyhow::Result<(Addresses, Option<PathBuf>)> {
    let certificates = variable("INSTEP_MASTER_CERT_FILE").or_else(|| variable("DET_MASTER_CERT_FILE"));
    let certificates = certificates.filter(|path| path != "noverify").map(PathBuf::from);
    Ok((addresses(common.master.as_deref())?, certificates))
}

/// The token of an administrator's session.
pub(super) fn administrator_token(common: &Common) -> anyhow::Result<String> {
    let hint = "`instep login USER` as an administrator, with the same --master, or --token";
    let client = administrator(common, "agents need a token or", hint)?;
    client.token().ok_or_else(|| anyhow::anyhow!("the master gave no token"))
}

/// A client that may change agents and their slots.
pub(super) fn changing_machines(common: &Common) -> anyhow::Result<Client> {
    administrator(common, "changing agents and slots needs", "`instep login USER` as an administrator")
}

/// A client in an administrator's session: the one that is kept, else of `admin`, who has no password at first. If there
/// is none, the error begins with what needs it.
pub(super) fn administrator(common: &Common, needed: &str, hint: &'static str) -> anyhow::Result<Client> {
    let client = connect(common).map_err(|error| match error.downcast_ref::<Hinted>() {
        Some(not_logged_in) => {
            Hinted::new(format!("{}: {needed} an administrator's session", not_logged_in.what()), hint).into()
        }
        None => error,
    })?;
    if !client.user()?.admin {
        client.login(Credentials::new("admin", "")).map_err(|error| match error {
            error if error.is_unauthenticated() => {
                let what = format!("{needed} an administrator's session at {}", client.address());
                anyhow::Error::from(Hinted::new(what, hint))
            }
            other => other.into(),
        })?;
    }
    Ok(client)
}

/// A client of the master that is meant; it has not said who it is.
pub(super) fn without_session(common: &Common) -> anyhow::Result<Client> {
    let (addresses, certificates) = master(common)?;
    let settings = Settings { certificates, timeout: TIMEOUT, ..Settings::of(addresses) };
    Ok(Client::new(settings)?)
}

/// Somebody whom the environment names.
struct Named {
    user: String,
    password: Option<String>,
    variables: (&'static str, &'static str),
}

impl Named {
    fn find() -> Option<Named> {
        let all = [("INSTEP_USER", "INSTEP_PASSWORD"), ("DET_USER", "DET_PASS")];
        all.into_iter().find_map(|variables| {
            Some(Named { user: variable(variables.0)?, password: variable(variables.1), variables })
        })
    }

    fn log_in(&self, client: &Client) -> anyhow::Result<()> {
        let password = self.password.as_deref().unwrap_or_default();
        client.login(Credentials::new(self.user.clone(), password)).map_err(|error| match error {
            error if error.is_unauthenticated() => {
                let what = format!("wrong user or password at {}: '{}'", client.address(), self.user);
                let (user, password) = self.variables;
                let hint =
                    format!("{user} and {password} in the environment name them; unset both to use your session");
                anyhow::Error::from(Hinted::new(what, hint))
            }
            other => other.into(),
        })?;
        Ok(())
    }
}

/// A client that speaks for somebody.
pub(super) fn connect(common: &Common) -> anyhow::Result<Client> {
    let client = without_session(common)?;
    let named = Named::find();
    if let Some(named) = named.as_ref().filter(|named| named.password.is_some()) {
        named.log_in(&client)?;
        return Ok(client);
    }
    let path = file()?;
    let mut sessions = read(&path)?;
    let master = client.address().to_string();
    // Without a password it may be the one whose session is kept.
    let is_kept = |user: &str| sessions.masters.get(&master).is_some_and(|kept| kept.user == user);
    if let Some(named) = named.filter(|named| !is_kept(&named.user)) {
        named.log_in(&client)?;
        return Ok(client);
    }
    if let Some(kept) = sessions.masters.get(&master) {
        client.use_token(&kept.token);
        match client.user() {
            Ok(_) => return Ok(client),
            Err(error) if error.is_unauthenticated() && kept.automatic => {}
            Err(error) if error.is_unauthenticated() => {
                let what = format!("the session of user '{}' at {master} has ended", kept.user);
                return Err(Hinted::new(what, format!("log in again with `instep login {}`", kept.user)).into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    client.login(Credentials::new(DEFAULT_USER, "")).map_err(|error| match error {
        instep_client::Error::Refused { status: 401 | 403, .. } => {
            let what = format!("not logged in at {master}");
            anyhow::Error::from(Hinted::new(what, "log in with `instep login USER`"))
        }
        other => other.into(),
    })?;
    keep(&mut sessions, &client, DEFAULT_USER, true);
    // Not being able to keep it costs a login the next time, no more.
    let _ = write(&path, &sessions);
    Ok(client)
}

fn keep(sessions: &mut Sessions, client: &Client, user: &str, automatic: bool) {
    if let Some(token) = client.token() {
        let kept = Kept { user: user.to_owned(), token, automatic };
        sessions.masters.insert(client.address().to_string(), kept);
    }
}

/// Logs in and keeps the session.
pub(super) fn open(client: &Client, user: &str, password: &str) -> anyhow::Result<User> {
    let found = client.login(Credentials::new(user, password)).map_err(|error| match error {
        error if error.is_unauthenticated() => {
            let what = format!("wrong user or password at {}", client.address());
            anyhow::Error::from(Hinted::new(what, "passwords are set with `instep user change-password`"))
        }
        other => other.into(),
    })?;
    let path = file()?;
    let mut sessions = read(&path)?;
    keep(&mut sessions, client, user, false);
    write(&path, &sessions).with_context(|| format!("cannot store the session in {}", path.display()))?;
    Ok(found)
}

/// Keeps a token that somebody has been given as the session at a master; whose it is.
pub(super) fn open_with_token(client: &Client, token: &str) -> anyhow::Result<User> {
    client.use_token(token);
    let user = client.user().map_err(|error| match error {
        error if error.is_unauthenticated() => {
            let what =
                format!("this token lets nobody in at {}: it is wrong, has expired or was revoked", client.address());
            anyhow::Error::from(Hinted::new(what, "make another with `instep token create`"))
        }
        other => other.into(),
    })?;
    let path = file()?;
    let mut sessions = read(&path)?;
    keep(&mut sessions, client, &user.username, false);
    write(&path, &sessions).with_context(|| format!("cannot store the session in {}", path.display()))?;
    Ok(user)
}

/// Ends the session that is kept for a master; says whose it was.
pub(super) fn close(client: &Client) -> anyhow::Result<Option<String>> {
    let path = file()?;
    let mut sessions = read(&path)?;
    let Some(kept) = sessions.masters.remove(&client.address().to_string()) else { return Ok(None) };
    write(&path, &sessions).with_context(|| format!("cannot write {}", path.display()))?;
    client.use_token(kept.token);
    match client.logout() {
        // A session that had ended before is as well ended now.
        Err(error) if !error.is_unauthenticated() => Err(error.into()),
        Ok(()) | Err(_) => Ok(Some(kept.user)),
    }
}

fn file() -> anyhow::Result<PathBuf> {
    Ok(folder()?.join("sessions.json"))
}

/// Where this user's sessions are kept, and the keys of shells.
pub(super) fn folder() -> anyhow::Result<PathBuf> {
    let folder = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".config")));
    let none = || Hinted::new("this user has no home directory", "set XDG_CONFIG_HOME to a folder for sessions");
    Ok(folder.ok_or_else(none)?.join("instep"))
}

fn read(path: &Path) -> anyhow::Result<Sessions> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Sessions::default()),
        found => found.with_context(|| format!("cannot read {}", path.display()))?,
    };
    serde_json::from_str(&text).map_err(|error| {
        let what = format!("{} is not valid: {error}", path.display());
        Hinted::new(what, "remove the file, then log in again with `instep login`").into()
    })
}

/// Writes the file anew beside the old one and puts it in its place: readers see the old or the new, never a part.
fn write(path: &Path, sessions: &Sessions) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let new = path.with_extension(format!("json.{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let text = serde_json::to_string_pretty(sessions).map_err(io::Error::other)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn sessions_are_kept_for_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/sessions.json");
        assert_eq!(read(&path).unwrap(), Sessions::default());
        let kept = Kept { user: "ann".into(), token: "secret".into(), automatic: false };
        let sessions = Sessions { masters: [("http://127.0.0.1:8080".to_owned(), kept)].into() };
        write(&path, &sessions).unwrap();
        assert_eq!(read(&path).unwrap(), sessions);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(&path, "{").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("hint: remove the file"));
    }
}
