//! `instep model`.

use clap::{Args, Subcommand};
use instep_api::models::{
    Model, ModelRequest, ModelResponse, ModelVersion, ModelVersionResponse, ModelVersionsResponse, ModelsResponse,
};
use instep_client::{Client, Query};
use serde_json::json;

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::{api, delete, post_empty};
use super::{session, shown, table};
use crate::report::Hinted;

#[derive(Debug, Args)]
pub(crate) struct ModelArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List models
    #[command(visible_alias = "ls")]
    List {
        /// Show only this workspace; may be repeated
        #[arg(
            short,
            long = "workspace-names",
            visible_alias = "workspace",
            value_name = "NAME",
            value_delimiter = ','
        )]
        workspaces: Vec<String>,
    },
    /// Create a model
    Create {
        /// Its name
        name: String,
        /// Description
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Create it in this workspace
        #[arg(short, long = "workspace-name", visible_alias = "workspace", value_name = "NAME")]
        workspace: Option<String>,
        /// Add this label; may be repeated
        #[arg(long = "label", value_name = "LABEL")]
        labels: Vec<String>,
    },
    /// Show a model and one of its versions in detail
    Describe {
        /// Its name
        name: String,
        /// Version to show [default: the newest]
        #[arg(long, value_name = "NUMBER")]
        version: Option<i64>,
    },
    /// List the versions of a model
    ListVersions {
        /// Its name
        name: String,
    },
    /// Register a checkpoint as the next version of a model
    RegisterVersion {
        /// Its name
        name: String,
        /// UUID of the checkpoint
        uuid: String,
        /// Name of the version
        #[arg(long = "name", value_name = "NAME")]
        version_name: Option<String>,
    },
    /// Remove a version from a model; its checkpoint stays
    DeleteVersion {
        /// Its name
        name: String,
        /// Number of the version
        version: i64,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Move a model to another workspace
    Move {
        /// Its name
        name: String,
        /// Target workspace
        #[arg(short, long = "workspace-name", visible_alias = "workspace", value_name = "NAME")]
        workspace: String,
    },
    /// Archive a model, which makes it read-only
    Archive {
        /// Its name
        name: String,
    },
    /// Unarchive a model
    Unarchive {
        /// Its name
        name: String,
    },
    /// Delete a model; the checkpoints stay
    Delete {
        /// Its name
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(arguments: ModelArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::List { workspaces } => list(&client, &common, &workspaces),
        Verb::Create { name, description, workspace, labels } => {
            let request = ModelRequest {
                name: Some(name),
                description,
                workspace_name: workspace,
                labels: Some(labels),
                ..ModelRequest::default()
            };
            let made: ModelResponse = client.post("/api/v1/models", &request)?;
            if common.json {
                return table::json(&made.model);
            }
            fields(&made.model);
            Ok(())
        }
        Verb::Describe { name, version } => describe(&client, &common, &name, version),
        Verb::ListVersions { name } => {
            let found = versions(&client, &name)?;
            if common.json {
                return table::json(&found.model_versions);
            }
            print_versions(&found.model_versions, &name);
            Ok(())
        }
        Verb::RegisterVersion { name, uuid, version_name } => {
            let request = json!({"modelName": name, "checkpointUuid": uuid, "name": version_name});
            let made: ModelVersionResponse = client.post(&api(&["models", &name, "versions"]), &request)?;
            if common.json {
                return table::json(&made.model_version);
            }
            say(&format!("checkpoint {uuid} is version {} of {name}", made.model_version.version));
            Ok(())
        }
        Verb::DeleteVersion { name, version, yes } => {
            confirm(yes, &format!("removing version {version} from model {name}"))?;
            delete(&client, &api(&["models", &name, "versions", &version.to_string()]))
        }
        Verb::Move { name, workspace } => {
            let change = ModelRequest { workspace_name: Some(workspace), ..ModelRequest::default() };
            let _: ModelResponse = client.patch(&api(&["models", &name]), &change)?;
            Ok(())
        }
        Verb::Archive { name } => post_empty(&client, &api(&["models", &name, "archive"])),
        Verb::Unarchive { name } => post_empty(&client, &api(&["models", &name, "unarchive"])),
        Verb::Delete { name, yes } => {
            confirm(yes, &format!("deleting model {name} with its versions"))?;
            delete(&client, &api(&["models", &name]))?;
            say(&format!("deleted model {name}"));
            Ok(())
        }
    }
}

fn list(client: &Client, common: &Common, workspaces: &[String]) -> anyhow::Result<()> {
    let query = Query::new().with_all("workspaceNames", workspaces);
    let found: ModelsResponse = client.get(&format!("/api/v1/models{query}"))?;
    if common.json {
        return table::json(&found.models);
    }
    let headings = ["ID", "NAME", "DESCRIPTION", "VERSIONS", "LABELS", "OWNER", "UPDATED", "ARCHIVED"];
    let mut table = table::Table::new(&headings);
    for model in found.models {
        table.row(vec![
            model.id.to_string(),
            model.name,
            model.description,
            model.num_versions.to_string(),
            shown::list(&model.labels),
            model.username,
            shown::time(model.last_updated_time),
            if model.archived { "yes".to_owned() } else { String::new() },
        ]);
    }
    table.print("no models yet", "create one with `instep model create NAME`");
    Ok(())
}

fn versions(client: &Client, name: &str) -> anyhow::Result<ModelVersionsResponse> {
    Ok(client.get(&api(&["models", name, "versions"]))?)
}

fn describe(client: &Client, common: &Common, name: &str, version: Option<i64>) -> anyhow::Result<()> {
    let found = versions(client, name)?;
    let version = match version {
        None => found.model_versions.into_iter().last(),
        Some(number) => {
            let mut all = found.model_versions.into_iter();
            let none = || Hinted::new(format!("model '{name}' has no version {number}"), "list-versions shows them");
            Some(all.find(|version| version.version == number).ok_or_else(none)?)
        }
    };
    if common.json {
        return table::json(&json!({"model": found.model, "version": version}));
    }
    fields(&found.model);
    crate::console::print(b"\n");
    print_versions(version.as_slice(), name);
    Ok(())
}

fn fields(model: &Model) {
    table::fields(&[
        ("Model", model.id.to_string()),
        ("Name", model.name.clone()),
        ("Description", model.description.clone()),
        ("Labels", shown::list(&model.labels)),
        ("Owner", model.username.clone()),
        ("Created", shown::time(model.creation_time)),
        ("Updated", shown::time(model.last_updated_time)),
        ("Versions", model.num_versions.to_string()),
        ("Metadata", serde_json::Value::Object(model.metadata.clone()).to_string()),
        ("Archived", if model.archived { "yes" } else { "no" }.to_owned()),
    ]);
}

fn print_versions(versions: &[ModelVersion], name: &str) {
    let mut table = table::Table::new(&["VERSION", "NAME", "CHECKPOINT", "TRIAL", "STEPS", "METRIC", "CREATED"]);
    for version in versions {
        let training = &version.checkpoint.training;
        table.row(vec![
            version.version.to_string(),
            version.name.clone(),
            version.checkpoint.uuid.clone(),
            training.trial_id.map(|id| id.to_string()).unwrap_or_default(),
            shown::value(&version.checkpoint.metadata["steps_completed"]),
            training.searcher_metric.map(shown::number).unwrap_or_default(),
            shown::time(version.creation_time),
        ]);
    }
    table.print("no versions yet", &format!("create one with `instep model register-version {name} CHECKPOINT`"));
}
