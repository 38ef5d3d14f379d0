//! What the master adds to [`instep_api::config`]: names that can be seen, patterns of log policies that can be searched
//! for, and one sentence for all mistakes.

use instep_api::config::{ConfigError, ExperimentConfig, Sources};

use crate::cluster::{MOST_POLICIES, compiled};
use crate::names;

/// Reads a configuration. The error is a sentence for its author.
pub(crate) fn read(text: &str, sources: &Sources) -> Result<ExperimentConfig, String> {
    let config = ExperimentConfig::parse(text, sources).map_err(|mistakes| sentence(&mistakes))?;
    let mistakes = mistakes(&config);
    if mistakes.is_empty() { Ok(config) } else { Err(sentence(&mistakes)) }
}

/// What is wrong with a configuration that could be read.
pub(crate) fn mistakes(config: &ExperimentConfig) -> Vec<ConfigError> {
    let mut found = wrong_names(config);
    found.extend(wrong_patterns(config));
    found
}

fn sentence(mistakes: &[ConfigError]) -> String {
    let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    format!("invalid experiment configuration: {}", mistakes.join("; "))
}

/// What is wrong with the names that a configuration gives.
fn wrong_names(config: &ExperimentConfig) -> Vec<ConfigError> {
    // Labels have been sorted: their places would say nothing to their author.
    let labels = config.labels.iter().map(|label| ("labels", label));
    let named = std::iter::once(("name", &config.name)).chain(labels);
    named
        .filter_map(|(path, name)| Some(ConfigError { path: path.to_owned(), what: names::objection(name)? }))
        .collect()
}

fn wrong_patterns(config: &ExperimentConfig) -> Vec<ConfigError> {
    if config.log_policies.len() > MOST_POLICIES {
        let what = format!("has {} policies, and may have {MOST_POLICIES}", config.log_policies.len());
        return vec![ConfigError { path: "log_policies".to_owned(), what }];
    }
    let policies = config.log_policies.iter().enumerate();
    let wrong = policies.filter_map(|(index, policy)| {
        let error = compiled(policy.pattern.as_deref()?).err()?;
        Some(ConfigError {
            path: format!("log_policies[{index}].pattern"),
            what: format!("is not a regular expression: {error}"),
        })
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Result<ExperimentConfig, String> {
        read(text, &Sources { name: "nameless".to_owned(), ..Sources::default() })
    }

    #[test]
    fn what_the_detached_client_sends_is_understood() {
        let text = "checkpoint_storage: {type: directory, container_path: /tmp/x}\ndata: null\ndescription: null\n\
                    labels: null\nname: unmanaged-1\nproject: null\nsearcher: {metric: loss, name: single}\n\
                    workspace: null\n";
        let config = parse(text).unwrap();
        assert_eq!((config.name.as_str(), config.project_names()), ("unmanaged-1", None));
        assert_eq!((config.searcher.metric.as_str(), config.searcher.smaller_is_better), ("loss", true));
        let storage = json!({"type": "directory", "container_path": "/tmp/x", "save_experiment_best": 0,
                             "save_trial_best": 1, "save_trial_latest": 1});
        assert_eq!(config.to_json()["checkpoint_storage"], storage);
        assert_eq!(config.to_json()["data"], json!({}));
    }

    #[test]
    fn wrong_configurations_are_explained() {
        // Two more are built in.
        let policies: Vec<String> = (0..101).map(|number| format!("{{name: p{number}, pattern: x}}")).collect();
        let many = format!("{{searcher: {{name: single, metric: x}}, log_policies: [{}]}}", policies.join(", "));
        let cases = [
            ("[", "invalid experiment configuration: "),
            ("7", "must be a map"),
            ("nam: x", "nam: unknown key; did you mean `name`?"),
            ("searcher: {name: single}", "searcher.metric: is needed"),
            ("name: x", "searcher.name: is needed"),
            ("{searcher: {name: single, metric: x}, workspace: w}", "both be set"),
            ("{searcher: {name: single, metric: x}, labels: 7}", "labels: must be"),
            ("{searcher: {name: single, metric: x}, name: [1]}", "name: must be text"),
            ("{searcher: {name: single, metric: x}, name: \"a\\0\"}", "name: has the control character U+0000"),
            (
                "{searcher: {name: single, metric: x}, labels: [a, \"\\e[0m\"]}",
                "labels: has the control character U+001B",
            ),
            ("{searcher: {name: single, metric: x, smaller_is_better: 1}}", "true or false"),
            ("{searcher: {name: single, metric: x}, log_policies: [{name: a, pattern: '['}]}", "regular expression"),
            (&many, "log_policies: has 103 policies, and may have 100"),
        ];
        for (text, part) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
