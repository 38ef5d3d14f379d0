//! Which checkpoints trials work with, and what they report of them.

use instep_api::trials::ReportSourceRequest;

use super::super::guard::Access::{Change, Read};
use super::super::guard::Thing::{Checkpoint, InBody, ModelVersion};
use super::super::router::Method::{Get, Post};
use super::super::trial_sources;
use super::{Route, route};

pub(super) fn routes() -> Vec<Route> {
    const ASKED: &[&str] = &["metricGroup", "trialSourceInfoType"];
    vec![
        route(Post, "/api/v1/trial-source-info", Change(InBody), trial_sources::report).takes::<ReportSourceRequest>(),
        route(Get, "/api/v1/checkpoints/{uuid}/metrics", Read(Checkpoint), trial_sources::of_checkpoint).asks(ASKED),
        route(Get, "/api/v1/models/{name}/versions/{version}/metrics", Read(ModelVersion), trial_sources::of_version)
            .asks(ASKED),
    ]
}
