//! The pages for browsers: one document for every address of theirs, and the files that it needs.
//!
//! They hold nothing of what is recorded, so everybody may open them; their script asks the API, with the session of
//! whoever signs in.

use instep_api::identifiers::ExperimentId;

use super::assets::{self, Asset};
use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;

/// What is shown if the binary was compiled without the pages.
const NOT_BUILT: &[u8] = b"<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>instep</title>\
    <h1>The pages are not in this binary</h1>\
    <p>It was compiled without them. <code>make build</code> builds them first, and needs nothing installed for it.</p>\
    <p>The API works without them: <code>det experiment list</code>.</p></html>\n";

fn document() -> Reply {
    let missing = Asset { content: NOT_BUILT, kind: "text/html; charset=utf-8", lasting: false };
    Reply::Asset(assets::find("/index.html").unwrap_or(missing))
}

/// A page that needs nothing of its address: the list of experiments, the cluster, the queue.
pub(crate) async fn page(_: Call) -> Result<Reply, Failure> {
    Ok(document())
}

/// What `url_reverse_webui_exp_view` names.
pub(crate) async fn experiment(call: Call) -> Result<Reply, Failure> {
    call.id::<ExperimentId>("id")?;
    Ok(document())
}

/// A script, a style sheet or a picture.
pub(crate) async fn asset(call: Call) -> Result<Reply, Failure> {
    let name = call.part("name");
    let found = assets::find(&format!("/assets/{name}"));
    found.map(Reply::Asset).ok_or_else(|| Failure::not_found(format!("the pages have no file `{name}`")))
}
