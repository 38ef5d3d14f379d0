//! Experiments that the master runs: creating, forking and continuing them.

use std::path::{Path, PathBuf};

use clap::Args;
use instep_api::experiments::{CreateExperimentRequest, CreateExperimentResponse, Experiment};
use instep_api::identifiers::{ExperimentId, ProjectId};
use instep_client::Client;
use serde_json::{Value, json};

use super::context::{self, Packed};
use super::dialog::say;
use super::options::Common;
use super::{configuration, follow, lookup, shown, table};

/// `instep experiment create`
#[derive(Debug, Args)]
pub(super) struct CreateArguments {
    /// Configuration file, YAML or JSON
    #[arg(value_name = "CONFIG")]
    file: PathBuf,
    /// Folder with the code; files listed in its .detignore are not sent
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Apply the configuration on top of this template
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Create it in this project
    #[arg(long = "project-id", alias = "project_id", value_name = "ID")]
    project: Option<ProjectId>,
    /// First run a small test (one trial, one slot, one batch, no checkpoints); create nothing if it fails
    #[arg(long = "test-mode", visible_alias = "test", conflicts_with = "paused")]
    test: bool,
}

/// `instep experiment fork`
#[derive(Debug, Args)]
pub(super) struct ForkArguments {
    /// Experiment that provides the code, and the configuration if none is given
    id: ExperimentId,
    /// Configuration to use instead, YAML or JSON
    #[arg(value_name = "CONFIG")]
    file: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// `instep experiment continue`
#[derive(Debug, Args)]
pub(super) struct ContinueArguments {
    /// Experiment, which must have ended
    id: ExperimentId,
    /// Configuration file with the settings to override
    #[arg(long = "config-file", value_name = "CONFIG")]
    file: Option<PathBuf>,
    /// Override one setting, such as searcher.max_length.batches=200; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE")]
    config: Vec<String>,
    /// Follow the logs of its trials until the experiment ends
    #[arg(short, long = "follow", visible_alias = "follow-first-trial")]
    follow: bool,
}

/// What creating and forking share.
#[derive(Debug, Args)]
struct Settings {
    /// Follow the logs of its trials until the experiment ends
    #[arg(short, long = "follow", visible_alias = "follow-first-trial", conflicts_with = "paused")]
    follow: bool,
    /// Create it paused
    #[arg(long)]
    paused: bool,
    /// Override one setting, such as hyperparameters.rate=0.1; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE")]
    config: Vec<String>,
}

/// Creates an experiment.
pub(super) fn create(client: &Client, common: &Common, arguments: CreateArguments) -> anyhow::Result<()> {
    let config = configuration::read(&arguments.file, &arguments.settings.config)?;
    let packed = arguments.folder.as_deref().map(context::pack).transpose()?.unwrap_or_default();
    for each in &packed.left_out {
        say(&format!("left out: {each}"));
    }
    announce(&packed);
    if let Some(script) = missing_script(&configuration::parse(&config).unwrap_or_default(), &packed) {
        say(&format!("warning: {}", not_sent(&script, arguments.folder.as_deref())));
    }
    let mut request = CreateExperimentRequest {
        config: Some(config.clone()),
        activate: Some(!arguments.settings.paused),
        project_id: arguments.project,
        template: arguments.template,
        model_definition: Some(packed.files),
        ..CreateExperimentRequest::default()
    };
    if arguments.test {
        try_out(client, &mut request, &config)?;
    }
    let made: CreateExperimentResponse = client.post("/api/v1/experiments", &request)?;
    finish(client, common, &made.experiment, &made.warnings, arguments.settings.follow)
}

/// Runs a small version, and fails if it does.
fn try_out(client: &Client, request: &mut CreateExperimentRequest, config: &str) -> anyhow::Result<()> {
    request.validate_only = Some(true);
    let _: Value = client.post("/api/v1/experiments", request)?;
    request.validate_only = Some(false);
    request.config = Some(configuration::small(configuration::parse(config)?).to_string());
    let made: CreateExperimentResponse = client.post("/api/v1/experiments", request)?;
    say(&format!("testing as experiment {}", made.experiment.id));
    follow::to_the_end(client, made.experiment.id)?;
    request.config = Some(config.to_owned());
    Ok(())
}

fn announce(packed: &Packed) {
    if !packed.files.is_empty() {
        let size = shown::size(i64::try_from(packed.bytes).unwrap_or(i64::MAX));
        let number = packed.files.len();
        let files = if number == 1 { "1 file or folder".to_owned() } else { format!("{number} files and folders") };
        say(&format!("sending {files}, {size}"));
    }
}

/// The script that an entrypoint runs, if nothing that is sent can be it. A start-up hook may make files, and absolute
/// paths and mounts are the machine's own.
fn missing_script(config: &Value, packed: &Packed) -> Option<String> {
    let words: Vec<&str> = match &config["entrypoint"] {
        Value::String(line) => line.split_whitespace().collect(),
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let is_script = |word: &&&str| word.ends_with(".py") || word.ends_with(".sh");
    let script = words.iter().find(is_script).map(|word| word.trim_start_matches("./"))?;
    let elsewhere = script.starts_with(['/', '$', '~', '-', '.']) || !config["bind_mounts"].is_null();
    let sent = |name: &str| packed.files.iter().any(|file| file.path.as_deref() == Some(name));
    (!elsewhere && !sent(script) && !sent("startup-hook.sh")).then(|| script.to_owned())
}

fn not_sent(script: &str, folder: Option<&Path>) -> String {
    match folder {
        Some(folder) if folder.join(script).exists() => {
            format!("{script}, which the entrypoint runs, is not sent: {}/.detignore leaves it out", folder.display())
        }
        Some(folder) => format!("{} has no {script}, which the entrypoint runs", folder.display()),
        None => format!(
            "no code is sent, and the entrypoint runs {script}\n\
             hint: name the folder of the code after the configuration: instep experiment create CONFIG ."
        ),
    }
}

/// Creates an experiment with the code of another.
pub(super) fn fork(client: &Client, common: &Common, arguments: ForkArguments) -> anyhow::Result<()> {
    let settings = arguments.settings;
    let config = match &arguments.file {
        Some(file) => configuration::read(file, &settings.config)?,
        None => {
            let original = lookup::get_experiment(client, arguments.id)?.original_config.into_text();
            if settings.config.is_empty() {
                original
            } else {
                configuration::with(configuration::parse(&original)?, &settings.config)?.to_string()
            }
        }
    };
    let request = CreateExperimentRequest {
        config: Some(config),
        activate: Some(!settings.paused),
        parent_id: Some(arguments.id),
        ..CreateExperimentRequest::default()
    };
    let made: CreateExperimentResponse = client.post("/api/v1/experiments", &request)?;
    finish(client, common, &made.experiment, &made.warnings, settings.follow)
}

/// Goes on with an experiment that is over.
pub(super) fn continue_experiment(
    client: &Client,
    common: &Common,
    arguments: &ContinueArguments,
) -> anyhow::Result<()> {
    let over = match &arguments.file {
        Some(file) => configuration::read(file, &arguments.config)?,
        None => configuration::with(json!({}), &arguments.config)?.to_string(),
    };
    let request = json!({"id": arguments.id, "overrideConfig": over});
    let made: Value = client.post("/api/v1/experiments/continue", &request)?;
    let experiment: Experiment = serde_json::from_value(made["experiment"].clone())?;
    let warnings: Vec<String> = serde_json::from_value(made["warnings"].clone()).unwrap_or_default();
    finish(client, common, &experiment, &warnings, arguments.follow)
}

fn finish(
    client: &Client,
    common: &Common,
    experiment: &Experiment,
    warnings: &[String],
    follow: bool,
) -> anyhow::Result<()> {
    for warning in warnings {
        let text = match warning.as_str() {
            "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED" => {
                "it needs more slots than the pool has now, and waits until there are enough"
            }
            other => other,
        };
        say(&format!("warning: {text}"));
    }
    if common.json {
        table::json(experiment)?;
    } else {
        table::fields(&[
            ("Experiment", experiment.id.to_string()),
            ("Name", experiment.name.clone()),
            ("State", shown::state(experiment.state)),
            ("Page", format!("{}/det/experiments/{}", client.address(), experiment.id)),
        ]);
    }
    if follow { follow::to_the_end(client, experiment.id) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use instep_api::experiments::ModelFile;

    use super::*;

    #[test]
    fn a_script_that_is_not_sent_is_noticed() {
        let file = |name: &str| ModelFile { path: Some(name.to_owned()), ..ModelFile::default() };
        let packed = Packed { files: vec![file("train.py"), file("a/b.py")], ..Packed::default() };
        let missing = |entrypoint: Value| missing_script(&json!({"entrypoint": entrypoint}), &packed);
        assert_eq!(missing(json!("python3 trian.py --lr 1")), Some("trian.py".to_owned()));
        assert_eq!(
            missing(json!(["python3", "-m", "determined.launch.torch_distributed", "x.py"])),
            Some("x.py".into())
        );
        for fine in [
            json!("python3 train.py"),
            json!("python3 ./train.py other.py"),
            json!("bash -c true"),
            json!("python3 a/b.py"),
            json!("/opt/x.py"),
            json!("python3 $HOME/x.py"),
            json!("model_def:Trial"),
            json!(null),
        ] {
            assert_eq!(missing(fine.clone()), None, "{fine}");
        }
        let hooked = Packed { files: vec![file("startup-hook.sh")], ..Packed::default() };
        assert_eq!(missing_script(&json!({"entrypoint": "x.py"}), &hooked), None);
        assert!(not_sent("x.py", None).contains("hint:"));
        let folder = tempfile::tempdir().unwrap();
        assert!(not_sent("x.py", Some(folder.path())).contains(" has no x.py, which"));
        std::fs::write(folder.path().join("x.py"), "").unwrap();
        assert!(not_sent("x.py", Some(folder.path())).ends_with("/.detignore leaves it out"));
    }
}
