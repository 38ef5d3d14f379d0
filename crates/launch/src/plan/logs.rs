//! What the options say about output.

use std::collections::BTreeSet;

use super::error::{PlanError, error};
use super::request::Request;
use crate::output::logs::{LogBase, LogPolicy, StreamMask};

pub(super) fn log_policy(request: &Request, prefix_from_environment: Option<String>) -> Result<LogPolicy, PlanError> {
    let mask = |option: &str, text: &str| {
        text.parse::<StreamMask>().map_err(|cause| {
            error(format!("{option}: {cause}"), "0 none, 1 stdout, 2 stderr, 3 both, or by local rank: 0:3,1:1")
        })
    };
    let filter = |text: &str| -> Result<Option<BTreeSet<usize>>, PlanError> {
        if text.is_empty() {
            return Ok(None);
        }
        let ranks: Result<BTreeSet<usize>, _> = text.split(',').map(|rank| rank.trim().parse()).collect();
        ranks.map(Some).map_err(|_| {
            error(
                format!("--local-ranks-filter \"{text}\" is not a list of local ranks"),
                "for example --local-ranks-filter 0,1",
            )
        })
    };
    let template = Some(request.log_line_prefix_template.clone()).filter(|text| !text.is_empty());
    Ok(LogPolicy {
        base: match &request.log_dir {
            None => LogBase::Temporary,
            Some(path) if path.as_os_str() == "/dev/null" => LogBase::Nowhere,
            Some(path) => LogBase::Directory(path.clone()),
        },
        redirects: mask("--redirects", &request.redirects)?,
        tee: mask("--tee", &request.tee)?,
        filter: filter(&request.local_ranks_filter)?,
        prefix_template: template.or(prefix_from_environment.filter(|text| !text.is_empty())),
        duplicate_stdout: split_filters(&request.duplicate_stdout_filters),
        duplicate_stderr: split_filters(&request.duplicate_stderr_filters),
        fold: request.fold,
    })
}

/// A filter that no rank of this node passes hides all output.
pub(super) fn nothing_shown(logs: &LogPolicy, workers: usize) -> Option<String> {
    let filter = logs.filter.as_ref()?;
    let ranks = match workers {
        1 => "0".to_owned(),
        _ => format!("0 to {}", workers.checked_sub(1)?),
    };
    let hides_all = !filter.iter().any(|rank| *rank < workers);
    hides_all.then(|| format!("--local-ranks-filter hides all output: the local ranks here are {ranks}"))
}

/// A comma list in which `,,` stands for a comma.
fn split_filters(text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    text.replace(",,", "\0").split(',').map(|part| part.replace('\0', ",")).collect()
}
