//! `instep token`: access tokens, which programs use in place of a login.

use clap::{Args, Subcommand};
use instep_api::tokens::{
    PatchTokenRequest, PostTokenRequest, PostTokenResponse, TokenInfo, TokenResponse, TokensResponse,
};
use instep_api::users::{User, UsersResponse};
use instep_client::{Client, Query};

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::api;
use super::{lookup, password, session, shown, table};
use crate::console;
use crate::report::Hinted;

#[derive(Debug, Args)]
pub(crate) struct TokenArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a token and print it, this once
    Create {
        /// Create it for this user; for administrators [default: yourself]
        user: Option<String>,
        /// Days until it expires; -1: never
        #[arg(short, long, value_name = "DAYS", default_value_t = 30, allow_negative_numbers = true)]
        #[arg(value_parser = clap::value_parser!(i64).range(-1..=36_500))]
        expiration_days: i64,
        /// What it is for
        #[arg(short, long, value_name = "TEXT")]
        description: Option<String>,
    },
    /// List your tokens; administrators see those of all users
    #[command(visible_alias = "ls")]
    List {
        /// List those of this user
        user: Option<String>,
        /// Include revoked and expired tokens
        #[arg(long)]
        show_inactive: bool,
    },
    /// Show tokens in detail
    Describe {
        /// Their ids, as `instep token list` shows them
        #[arg(required = true, value_name = "ID")]
        tokens: Vec<i64>,
    },
    /// Change the description of a token
    Edit {
        /// Its id, as `instep token list` shows it
        #[arg(value_name = "ID")]
        token: i64,
        /// What it is for
        #[arg(short, long, value_name = "TEXT")]
        description: String,
    },
    /// Revoke a token: nothing is let in with it any more
    Revoke {
        /// Its id, as `instep token list` shows it
        #[arg(value_name = "ID")]
        token: i64,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Log in with a token, which is asked for or read from stdin
    Login {
        /// Where people put the token, who are told where it belongs
        #[arg(hide = true)]
        token: Option<String>,
    },
}

pub(crate) fn run(arguments: TokenArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    if let Verb::Login { token } = &arguments.verb {
        return login(&common, token.is_some());
    }
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::Create { user, expiration_days, description } => {
            create(&client, &common, user.as_deref(), expiration_days, description)
        }
        Verb::List { user, show_inactive } => {
            let query = Query::new().with_some("username", user).with("showInactive", show_inactive);
            let found: TokensResponse = client.get(&format!("/api/v1/tokens{query}"))?;
            print_list(&client, &common, found.token_info)
        }
        Verb::Describe { tokens } => {
            let found: TokensResponse =
                client.get(&format!("/api/v1/tokens{}", Query::new().with_all("tokenIds", &tokens)))?;
            if let Some(missing) = tokens.iter().find(|id| !found.token_info.iter().any(|token| token.id == **id)) {
                return Err(unknown(&format!("token {missing} not found")));
            }
            print_list(&client, &common, found.token_info)
        }
        Verb::Edit { token, description } => {
            let change = PatchTokenRequest { description: Some(description), set_revoked: None };
            let changed = patch(&client, token, &change)?;
            say(&format!("token {}: {}", changed.id, table::on_one_line(&changed.description)));
            Ok(())
        }
        Verb::Revoke { token, yes } => {
            confirm(yes, &format!("revoking token {token}"))?;
            let revoked = patch(&client, token, &PatchTokenRequest { description: None, set_revoked: Some(true) })?;
            say(&format!("revoked token {}", revoked.id));
            Ok(())
        }
        Verb::Login { .. } => Ok(()),
    }
}

fn unknown(what: &str) -> anyhow::Error {
    Hinted::new(what, "list all with `instep token list --show-inactive`").into()
}

fn patch(client: &Client, token: i64, change: &PatchTokenRequest) -> anyhow::Result<TokenInfo> {
    match client.patch::<TokenResponse>(&api(&["tokens", &token.to_string()]), change) {
        Err(error) if error.is_not_found() => Err(unknown(&error.to_string())),
        changed => Ok(changed?.token_info),
    }
}

/// The token alone goes to stdout, so that a script can keep it.
fn create(
    client: &Client,
    common: &Common,
    user: Option<&str>,
    days: i64,
    description: Option<String>,
) -> anyhow::Result<()> {
    if days == 0 {
        let what = "a token that expires after 0 days would let nobody in";
        return Err(Hinted::new(what, "--expiration-days 1, or -1 for one that never expires").into());
    }
    let user_id = user.map(|name| lookup::user(client, name)).transpose()?.map(|user| user.id);
    let lifespan = if days < 0 { "-1".to_owned() } else { format!("{}h", days * 24) };
    let request = PostTokenRequest { user_id, lifespan: Some(lifespan), description };
    let made: PostTokenResponse = client.post("/api/v1/tokens", &request)?;
    if common.json {
        return table::json(&made);
    }
    let expires =
        if days < 0 { "never expires".to_owned() } else { format!("expires in {}", shown::plural(days, "day")) };
    say(&format!("token {} {expires}; it is not shown again:", made.token_id));
    console::print(format!("{}\n", made.token).as_bytes());
    Ok(())
}

fn login(common: &Common, as_argument: bool) -> anyhow::Result<()> {
    if as_argument {
        let what = "a token is not an argument: other users of this machine see those, and the shell keeps them";
        return Err(Hinted::new(what, "printf %s TOKEN | instep token login").into());
    }
    let client = session::without_session(common)?;
    let token = password::ask(&format!("Token for {}: ", client.address()))?;
    let user = session::open_with_token(&client, token.trim())?;
    say(&format!("logged in as {} at {}", user.username, client.address()));
    Ok(())
}

fn print_list(client: &Client, common: &Common, tokens: Vec<TokenInfo>) -> anyhow::Result<()> {
    if common.json {
        return table::json(&tokens);
    }
    let users = if tokens.is_empty() { Vec::new() } else { client.get::<UsersResponse>("/api/v1/users")?.users };
    let name = |token: &TokenInfo| {
        let user: Option<&User> = users.iter().find(|user| user.id == token.user_id);
        user.map_or_else(|| token.user_id.to_string(), |user| user.username.clone())
    };
    let mut table = table::Table::new(&["ID", "USER", "DESCRIPTION", "CREATED", "EXPIRES", "REVOKED"]);
    for token in &tokens {
        table.row(vec![
            token.id.to_string(),
            name(token),
            token.description.clone(),
            shown::time(token.created_at),
            token.expiry.map_or_else(|| "never".to_owned(), shown::time),
            if token.revoked { "yes".to_owned() } else { String::new() },
        ]);
    }
    table.print(
        "no access tokens",
        "create one with `instep token create`; --show-inactive lists those that have ended",
    );
    Ok(())
}
