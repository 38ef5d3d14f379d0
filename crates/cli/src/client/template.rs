//! `instep template`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use instep_api::templates::{Template, TemplateRequest, TemplateResponse, TemplatesResponse};
use instep_client::Client;

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::{api, delete};
use super::{configuration, lookup, session, table};

#[derive(Debug, Args)]
pub(crate) struct TemplateArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List templates
    #[command(visible_alias = "ls")]
    List,
    /// Print the configuration of a template
    Describe {
        /// Its name
        name: String,
    },
    /// Create a template
    Create {
        /// Its name
        name: String,
        /// File with a part of a configuration, YAML or JSON
        #[arg(value_name = "CONFIG")]
        file: PathBuf,
        /// Create it in this workspace
        #[arg(long = "workspace-name", visible_alias = "workspace", value_name = "NAME")]
        workspace: Option<String>,
    },
    /// Create a template, or replace its configuration
    Set {
        /// Its name
        name: String,
        /// File with a part of a configuration, YAML or JSON
        #[arg(value_name = "CONFIG")]
        file: PathBuf,
    },
    /// Delete a template; experiments created with it do not change
    #[command(visible_alias = "rm")]
    Remove {
        /// Its name
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(arguments: TemplateArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::List => list(&client, &common),
        Verb::Describe { name } => table::json(&get(&client, &name)?.config),
        Verb::Create { name, file, workspace } => {
            let config = configuration::read_parsed(&file, &[])?;
            let workspace = workspace.map(|name| lookup::workspace(&client, &name)).transpose()?;
            let workspace_id = workspace.map(|found| found.id);
            let request = TemplateRequest { name: Some(name.clone()), config: Some(config), workspace_id };
            let _: TemplateResponse = client.post(&api(&["templates", &name]), &request)?;
            say(&format!("created template {name}"));
            Ok(())
        }
        Verb::Set { name, file } => {
            let config = configuration::read_parsed(&file, &[])?;
            let request = TemplateRequest { name: Some(name.clone()), config: Some(config), workspace_id: None };
            let _: TemplateResponse = client.put(&api(&["templates", &name]), &request)?;
            say(&format!("set template {name}"));
            Ok(())
        }
        Verb::Remove { name, yes } => {
            get(&client, &name)?;
            confirm(yes, &format!("deleting template {name}"))?;
            delete(&client, &api(&["templates", &name]))?;
            say(&format!("deleted template {name}"));
            Ok(())
        }
    }
}

fn get(client: &Client, name: &str) -> anyhow::Result<Template> {
    Ok(client.get::<TemplateResponse>(&api(&["templates", name]))?.template)
}

fn list(client: &Client, common: &Common) -> anyhow::Result<()> {
    let found: TemplatesResponse = client.get("/api/v1/templates")?;
    if common.json {
        return table::json(&found.templates);
    }
    let mut table = table::Table::new(&["TEMPLATE", "WORKSPACE", "SETS"]);
    for template in found.templates {
        let keys: Vec<&str> = template.config.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        table.row(vec![template.name.clone(), template.workspace_id.to_string(), keys.join(", ")]);
    }
    table.print("no templates", "create one with `instep template create NAME CONFIG`");
    Ok(())
}
