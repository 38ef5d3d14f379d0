//! Which checkpoints trials work with, and what they report of them.

use instep_api::trials::ReportSourceRequest;

use super::super::access::Access::{Change, Read};
use super::super::access::Thing::{Checkpoint, InBody, ModelVersion};
use super::super::route::Method::{Get, Post};
use super::super::route::{Route, route};
use super::super::trial_sources;

pub(super) fn routes() -> Vec<Route> {
    const ASKED: &[&str] = &["metricGroup", "trialSourceInfoType"];
    vec![
        route(Post, "/api/v1/trial-source-info", Change(InBody), trial_sources::report)
            .request::<ReportSourceRequest>(),
        route(Get, "/api/v1/checkpoints/{uuid}/metrics", Read(Checkpoint), trial_sources::of_checkpoint).query(ASKED),
        route(Get, "/api/v1/models/{name}/versions/{version}/metrics", Read(ModelVersion), trial_sources::of_version)
            .query(ASKED),
    ]
}
