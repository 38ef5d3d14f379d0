//! The page that `url_reverse_webui_exp_view` names.

use instep_api::identifiers::ExperimentId;

use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;

/// Says how to see an experiment. It shows nothing of the experiment itself, because anybody may open it.
pub(crate) async fn experiment(call: Call) -> Result<Reply, Failure> {
    let id: ExperimentId = call.id("id")?;
    Ok(Reply::Page(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Experiment {id}</title>\
         <h1>Experiment {id}</h1><p>This master records it. To see what it reported:</p>\
         <pre>det experiment describe {id}\ndet experiment list-trials {id}</pre></html>\n"
    )))
}
