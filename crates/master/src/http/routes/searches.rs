//! Searching experiments and runs, what can be done with many runs, and what tables and charts of them show.

use instep_api::experiments::ModelFileRequest;
use instep_api::runs::{MoveRunsRequest, RunsRequest, SearchRequest};

use super::super::access::Access::{Change, Read};
use super::super::access::Thing::{Experiment, InBody, Project, Several};
use super::super::route::Method::{Get, Post};
use super::super::route::{Kind, Route, route};
use super::super::{code, columns, experiment_metrics, runs, search};

pub(super) fn routes() -> Vec<Route> {
    const METRIC: &[&str] = &["metricName", "metricType", "group", "periodSeconds"];
    vec![
        route(Post, "/api/v1/experiments-search", Read(Several), search::experiments).request::<SearchRequest>(),
        route(Post, "/api/v1/runs", Read(Several), search::runs).request::<SearchRequest>(),
        route(Post, "/api/v1/runs/kill", Change(InBody), runs::kill).request::<RunsRequest>(),
        route(Post, "/api/v1/runs/pause", Change(InBody), runs::pause).request::<RunsRequest>(),
        route(Post, "/api/v1/runs/resume", Change(InBody), runs::resume).request::<RunsRequest>(),
        route(Post, "/api/v1/runs/archive", Change(InBody), runs::set_archived).request::<RunsRequest>(),
        route(Post, "/api/v1/runs/unarchive", Change(InBody), runs::set_archived).request::<RunsRequest>(),
        route(Post, "/api/v1/runs/delete", Change(InBody), runs::delete).request::<RunsRequest>(),
        route(Post, "/api/v1/runs/move", Change(InBody), runs::relocate).request::<MoveRunsRequest>(),
        route(Get, "/api/v1/projects/{id}/columns", Read(Project), columns::of_project).query(&["tableType"]),
        route(Get, "/api/v1/projects/{id}/experiments/metric-ranges", Read(Project), columns::metric_ranges),
        route(Get, "/api/v1/projects/{id}/metadata/{key}", Read(Project), columns::metadata_values),
        route(Get, "/api/v1/experiments/metrics-stream/metric-names", Read(Several), experiment_metrics::names)
            .query(&["ids", "periodSeconds"])
            .answers(Kind::Lines),
        route(Get, "/api/v1/experiments/{id}/metrics-stream/batches", Read(Experiment), experiment_metrics::batches)
            .query(METRIC)
            .answers(Kind::Lines),
        route(
            Get,
            "/api/v1/experiments/{id}/metrics-stream/trials-sample",
            Read(Experiment),
            experiment_metrics::sample,
        )
        .query(&[
            "metricName",
            "metricType",
            "group",
            "periodSeconds",
            "maxTrials",
            "maxDatapoints",
            "startBatches",
            "endBatches",
        ])
        .answers(Kind::Lines),
        route(
            Get,
            "/api/v1/experiments/{id}/metrics-stream/trials-snapshot",
            Read(Experiment),
            experiment_metrics::snapshot,
        )
        .query(&["metricName", "metricType", "group", "periodSeconds", "batchesProcessed", "batchesMargin"])
        .answers(Kind::Lines),
        route(
            Get,
            "/api/v1/experiments/{id}/validation-history",
            Read(Experiment),
            experiment_metrics::validation_history,
        ),
        route(Get, "/api/v1/experiments/{id}/file_tree", Read(Experiment), code::file_tree),
        route(Post, "/api/v1/experiments/{id}/file", Read(Experiment), code::file).request::<ModelFileRequest>(),
    ]
}
