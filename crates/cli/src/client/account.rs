//! `instep login`, `logout`, `whoami`.

use clap::Args;

use super::dialog::say;
use super::options::Common;
use super::{password, session, table};

#[derive(Debug, Args)]
pub(crate) struct LoginArguments {
    /// User name
    #[arg(default_value = "determined")]
    pub(super) user: String,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct SessionArguments {
    #[command(flatten)]
    pub(super) common: Common,
}

/// Asks for the password, on the terminal or on stdin, and keeps the session.
pub(super) fn login(common: &Common, user: &str) -> anyhow::Result<()> {
    let client = session::without_session(common)?;
    let password = password::ask(&format!("Password of {user} at {}: ", client.address()))?;
    let found = session::open(&client, user, &password)?;
    say(&format!("logged in as {} at {}", found.username, client.address()));
    Ok(())
}

/// Ends the session that is kept.
pub(super) fn logout(common: &Common) -> anyhow::Result<()> {
    let client = session::without_session(common)?;
    match session::close(&client)? {
        Some(user) => say(&format!("{user} is logged out at {}", client.address())),
        None => say(&format!("not logged in at {}", client.address())),
    }
    Ok(())
}

/// Says who speaks to whom.
pub(super) fn whoami(common: &Common) -> anyhow::Result<()> {
    let client = session::connect(common)?;
    let user = client.user()?;
    if common.json {
        return table::json(&user);
    }
    let role = if user.admin { "administrator" } else { "user" };
    table::fields(&[("User", user.username), ("Role", role.to_owned()), ("Master", client.address().to_string())]);
    Ok(())
}
