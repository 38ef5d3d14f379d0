//! Configurations of experiments as people give them: a file, and single settings on the command line.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::report::Hinted;
use crate::usage::slips;

/// How many files are named when one cannot be read.
const MOST_NAMED: usize = 5;

/// Reads a file with single settings laid over it. Without any, the text stays as it was written, comments and all.
pub(super) fn read(path: &Path, settings: &[String]) -> anyhow::Result<String> {
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    if settings.is_empty() {
        return Ok(text);
    }
    Ok(with(parse_file(path, &text)?, settings)?.to_string())
}

/// Names the files beside it that could have been meant, the likeliest first.
fn unreadable(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut others: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| [".yaml", ".yml", ".json"].iter().any(|kind| name.ends_with(kind)))
        .collect();
    let meant = path.file_name().unwrap_or_default().to_string_lossy();
    others.sort_by_cached_key(|name| (slips(&meant, name), name.clone()));
    others.truncate(MOST_NAMED);
    let what = format!("cannot read the configuration {}: {error}", path.display());
    let at = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
    let hint = match others.is_empty() {
        true => format!("there are no .yaml files in {}", at.display()),
        false => format!("{} has {}", at.display(), others.join(", ")),
    };
    Hinted::new(what, hint).into()
}

/// Reads a file with single settings laid over it, and takes it apart.
pub(super) fn read_parsed(path: &Path, settings: &[String]) -> anyhow::Result<Value> {
    parse_file(path, &read(path, settings)?)
}

fn parse_file(path: &Path, text: &str) -> anyhow::Result<Value> {
    parse(text).with_context(|| format!("{} is not a configuration", path.display()))
}

/// YAML, of which JSON is a part.
pub(super) fn parse(text: &str) -> anyhow::Result<Value> {
    match read_text(text).map_err(anyhow::Error::msg)? {
        Value::Null => Ok(json!({})),
        config @ Value::Object(_) => Ok(config),
        _ => anyhow::bail!("a configuration maps names to values, such as `name: first`"),
    }
}

fn read_text(text: &str) -> Result<Value, String> {
    instep_api::config::parse_text(text)
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// Lays settings such as `hyperparameters.rate=0.1` over a configuration.
pub(super) fn with(mut config: Value, settings: &[String]) -> anyhow::Result<Value> {
    for setting in settings {
        let wrong =
            |why: &str| Hinted::new(format!("--config {setting}: {why}"), "--config KEY=VALUE, KEY as in a.b.c");
        let (key, value) = setting.split_once('=').ok_or_else(|| wrong("missing `=`"))?;
        let value = read_text(value).map_err(|error| wrong(&format!("the value: {error}")))?;
        set(&mut config, key, value).map_err(|why| wrong(&why))?;
    }
    Ok(config)
}

fn set(config: &mut Value, key: &str, value: Value) -> Result<(), String> {
    let mut place = config;
    for part in key.split('.') {
        if part.is_empty() {
            return Err("the key has an empty part".to_owned());
        }
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(fields) = place else {
            return Err(format!("cannot set `{part}` in {place}, which is not a map"));
        };
        place = fields.entry(part).or_insert(Value::Null);
    }
    *place = value;
    Ok(())
}

/// A small version of an experiment, to see whether it runs at all: one trial, one slot, one batch, no restarts, nothing
/// kept.
pub(super) fn small(mut config: Value) -> Value {
    let metric = config["searcher"]["metric"].clone();
    let description = config["description"].as_str().map(|text| format!(": {text}")).unwrap_or_default();
    config["description"] = json!(format!("a test{description}"));
    config["searcher"] = json!({"name": "single", "metric": metric, "max_length": {"batches": 1}});
    config["max_restarts"] = json!(0);
    config["scheduling_unit"] = json!(1);
    config["min_validation_period"] = json!({"batches": 1});
    for (section, key, value) in [
        ("resources", "slots_per_trial", 1),
        ("checkpoint_storage", "save_experiment_best", 0),
        ("checkpoint_storage", "save_trial_best", 0),
        ("checkpoint_storage", "save_trial_latest", 0),
    ] {
        // A storage that is only told what to keep would lose its place.
        if section == "resources" || config[section].is_object() {
            config[section][key] = json!(value);
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn settings_are_laid_over_a_configuration() {
        let config = parse("name: a\nhyperparameters: {rate: 1, deep: {x: 1}}\n").unwrap();
        let settings =
            ["hyperparameters.rate=0.5", "hyperparameters.deep.y=[1, b]", "resources.slots_per_trial=2", "name="];
        let found = with(config, &settings.map(str::to_owned)).unwrap();
        let expected = json!({
            "name": null,
            "hyperparameters": {"rate": 0.5, "deep": {"x": 1, "y": [1, "b"]}},
            "resources": {"slots_per_trial": 2},
        });
        assert_eq!(found, expected);
        for (setting, why) in
            [("a", "missing `=`"), ("name.b=1", "is not a map"), (".a=1", "empty part"), ("a={", "the value")]
        {
            let error = with(json!({"name": "x"}), &[setting.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(why), "{setting}: {error}");
        }
        assert!(parse("- 1\n").is_err());
        assert_eq!(parse("").unwrap(), json!({}));
    }

    #[test]
    fn a_mistyped_file_name_is_answered_with_the_likeliest_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml", "search.yaml", "search.py"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let error = read(&folder.path().join("serach.yaml"), &[]).unwrap_err();
        let hint = error.downcast_ref::<Hinted>().unwrap().to_string();
        assert!(hint.contains(" has search.yaml, "), "{hint}");
    }

    #[test]
    fn a_test_is_small() {
        let found =
            small(json!({"searcher": {"name": "random", "metric": "loss", "max_trials": 9}, "entrypoint": "x"}));
        assert_eq!(found["searcher"], json!({"name": "single", "metric": "loss", "max_length": {"batches": 1}}));
        assert_eq!((&found["max_restarts"], &found["resources"]), (&json!(0), &json!({"slots_per_trial": 1})));
        assert!(found.get("checkpoint_storage").is_none_or(Value::is_null));
    }

    proptest! {
        #[test]
        fn any_setting_is_taken_or_refused(setting in "\\PC{0,30}") {
            let _ = with(json!({"a": {"b": 1}, "c": [1]}), &[setting]);
        }
    }
}
