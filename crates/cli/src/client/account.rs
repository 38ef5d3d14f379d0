//! `instep login`, `logout`, `whoami`.

use clap::Args;

use super::{Common, password, say, session, table};

#[derive(Debug, Args)]
pub(crate) struct LoginArguments {
    /// Who you are
    #[arg(default_value = "determined")]
    user: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct SessionArguments {
    #[command(flatten)]
    common: Common,
}

/// Asks for the password, on the terminal or on stdin, and keeps the session.
pub(crate) fn login(arguments: &LoginArguments) -> anyhow::Result<()> {
    let client = session::stranger(&arguments.common)?;
    let user = &arguments.user;
    let password = password::ask(&format!("Password of {user} at {}: ", client.address()))?;
    let found = session::open(&client, user, &password)?;
    say(&format!("logged in as {} at {}", found.username, client.address()));
    Ok(())
}

/// Ends the session that is kept.
pub(crate) fn logout(arguments: &SessionArguments) -> anyhow::Result<()> {
    let client = session::stranger(&arguments.common)?;
    match session::close(&client)? {
        Some(user) => say(&format!("{user} is logged out at {}", client.address())),
        None => say(&format!("nobody was logged in at {}", client.address())),
    }
    Ok(())
}

/// Says who speaks to whom.
pub(crate) fn whoami(arguments: &SessionArguments) -> anyhow::Result<()> {
    let client = session::connect(&arguments.common)?;
    let user = client.user()?;
    if arguments.common.json {
        return table::json(&user);
    }
    let role = if user.admin { "administrator" } else { "user" };
    table::facts(&[("User", user.username), ("Role", role.to_owned()), ("Master", client.address().to_string())]);
    Ok(())
}
