//! Masks that come in again: what was shown in place of a secret becomes the secret, for those whose it is.

use instep_api::config::{Sources, masks, parse_text, restored};
use instep_api::identifiers::ExperimentId;
use instep_database::Subject;
use serde_json::Value;

use super::call::Call;
use super::failure::Failure;
use crate::clock::now;

/// A configuration whose masks have become what the first of the sources says that has something at the same place.
/// Masks that no source explains are refused: nobody wants to run with eight stars for a password.
pub(crate) fn unmasked<'s>(config: Value, sources: impl IntoIterator<Item = &'s Value>) -> Result<Value, Failure> {
    let config = sources.into_iter().fold(config, restored);
    let left = masks(&config);
    if left.is_empty() {
        return Ok(config);
    }
    Err(Failure::invalid(format!(
        "the configuration has ******** in place of {}: a secret that was not shown\n\
         hint: give the real values, or leave them out; only the owner of an experiment forks it with its secrets",
        left.join(", ")
    )))
}

/// The text of a configuration that somebody submits. What forks show masked stands for what the parent has, if it is the
/// caller's: whoever runs an experiment can read what it is given. What templates and the master say is everybody's.
pub(crate) async fn submitted(
    call: &Call,
    text: String,
    parent: Option<ExperimentId>,
    sources: &Sources,
) -> Result<String, Failure> {
    // What cannot be read is explained by who reads it next.
    let Ok(config) = parse_text(&text) else { return Ok(text) };
    if masks(&config).is_empty() {
        return Ok(text);
    }
    let parent = match parent {
        Some(id) if call.may_change(Subject::Experiment(id)).await.is_ok() => {
            Some(call.application.database.experiment(id, now()).await?)
        }
        _ => None,
    };
    // Whoever may change it is not enough: the owner of its workspace may, and these secrets are not theirs.
    let caller = call.user()?.id;
    let own = parent.filter(|parent| parent.user_id == caller).map(|parent| parent.config.into_value());
    let known = [&own, &sources.template, &sources.defaults];
    Ok(unmasked(config, known.into_iter().flatten())?.to_string())
}
