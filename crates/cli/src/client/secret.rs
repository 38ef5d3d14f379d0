//! `instep secret`: values that tasks are given and nothing shows.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use instep_api::secrets::{LARGEST, SHORTEST_MASKED, SecretRequest, SecretsResponse, objection};
use instep_client::{Client, Query};

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::{api, delete};
use super::{lookup, password, session, shown, table};
use crate::report::Hinted;

#[derive(Debug, Args)]
pub(crate) struct SecretArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set a secret: its value is asked for, or read from stdin or a file
    Set {
        /// Its name
        name: String,
        /// Where people put the value, who are told where it belongs
        #[arg(hide = true)]
        value: Option<String>,
        /// Set it for everybody who runs tasks in this workspace, which must be yours
        #[arg(long, value_name = "NAME")]
        workspace: Option<String>,
        /// Read the value from this file, as it is
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
    },
    /// List the names of your secrets, or of a workspace's
    #[command(visible_alias = "ls")]
    List {
        /// List those of this workspace
        #[arg(long, value_name = "NAME")]
        workspace: Option<String>,
    },
    /// Delete a secret; tasks that run keep it
    #[command(visible_alias = "rm")]
    Delete {
        /// Its name
        name: String,
        /// Delete it from this workspace
        #[arg(long, value_name = "NAME")]
        workspace: Option<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(arguments: SecretArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    let workspace = |name: Option<String>| lookup::named_workspace(&client, name.as_deref());
    match arguments.verb {
        Verb::Set { name, value: Some(_), .. } => {
            let what = "the value of a secret is not an argument: other users of this machine see those, and the shell keeps them";
            Err(Hinted::new(what, format!("printf %s VALUE | instep secret set {name}, or --from-file FILE")).into())
        }
        Verb::Set { name, value: None, workspace: named, from_file } => {
            if let Some(why) = objection(&name) {
                return Err(Hinted::new(format!("the name of a secret {why}"), "such as hf-token").into());
            }
            let workspace_id = workspace(named)?;
            let value = value(&name, from_file)?;
            let is_short = value.chars().count() < SHORTEST_MASKED;
            let request = SecretRequest { value: Some(value), workspace_id };
            let _: serde_json::Value = client.put(&api(&["secrets", &name]), &request)?;
            let shown = if is_short { ": shorter than 8 letters, it is not masked in the output of tasks" } else { "" };
            say(&format!("set secret {name}{shown}"));
            Ok(())
        }
        Verb::List { workspace: named } => list(&client, &common, workspace(named)?),
        Verb::Delete { name, workspace: named, yes } => {
            let workspace = workspace(named)?;
            confirm(yes, &format!("deleting secret {name}"))?;
            let query = Query::new().with_some("workspaceId", workspace);
            let deleted = delete(&client, &format!("{}{query}", api(&["secrets", &name])));
            deleted.map_err(|error| match error.downcast_ref::<instep_client::Error>() {
                Some(cause) if cause.is_not_found() => {
                    Hinted::new(cause.to_string(), "list yours with `instep secret list`").into()
                }
                _ => error,
            })?;
            say(&format!("deleted secret {name}"));
            Ok(())
        }
    }
}

/// The value: of a file as it is, which may be a key that ends with a line; of stdin or asked for without the end of its
/// last line.
fn value(name: &str, file: Option<PathBuf>) -> anyhow::Result<String> {
    let is_file = file.is_some();
    let text = match file {
        Some(file) => {
            let opened = std::fs::File::open(&file).with_context(|| format!("cannot read {}", file.display()))?;
            read(opened).with_context(|| format!("cannot read {}", file.display()))?
        }
        None if std::io::stdin().is_terminal() => password::ask(&format!("Value of {name}: "))?,
        None => read(std::io::stdin()).context("cannot read the value from stdin")?,
    };
    let text = match text.strip_suffix('\n') {
        Some(line) if !is_file => line.strip_suffix('\r').unwrap_or(line),
        _ => &text,
    };
    if text.is_empty() {
        let hint = format!("printf %s VALUE | instep secret set {name}, or --from-file");
        return Err(Hinted::new(format!("the value of secret {name} is empty"), hint).into());
    }
    Ok(text.to_owned())
}

fn read(source: impl Read) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    source.take(LARGEST as u64 + 3).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("it is not text: encode it first, for example with base64"))
}

fn list(
    client: &Client,
    common: &Common,
    workspace: Option<instep_api::identifiers::WorkspaceId>,
) -> anyhow::Result<()> {
    let query = Query::new().with_some("workspaceId", workspace);
    let found: SecretsResponse = client.get(&format!("/api/v1/secrets{query}"))?;
    if common.json {
        return table::json(&found.secrets);
    }
    let mut table = table::Table::new(&["SECRET", "SET", "BY"]);
    for secret in found.secrets {
        table.row(vec![secret.name, shown::time(secret.changed_at), secret.changed_by]);
    }
    let hint = match workspace {
        None => "set one with `instep secret set NAME`; those of a workspace are listed with --workspace",
        Some(_) => "its owner sets one with `instep secret set NAME --workspace WORKSPACE`",
    };
    table.print("no secrets", hint);
    Ok(())
}
