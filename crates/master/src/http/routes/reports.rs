//! What is known of tasks, who used which slots, and for how long logs are kept.

use instep_api::bulk::{BulkRequest, RetainLogsOfSeveralRequest};
use instep_api::logs::RetainLogsRequest;
use instep_api::metrics::TrialMetrics;

use super::super::access::Access::{Administrator, Change, Read};
use super::super::access::Thing::{Allocation, Common, Experiment, InBody, Several, Task, Trial};
use super::super::route::Method::{Delete, Get, Post, Put};
use super::super::route::{Kind, Route, route};
use super::super::{bulk, cluster, log_retention, metrics, search, task_info, usage};

pub(super) fn routes() -> Vec<Route> {
    const SPAN: &[&str] = &["timestampAfter", "timestampBefore"];
    const DAYS: &[&str] = &["startDate", "endDate", "period"];
    const CSV: Kind = Kind::Other("text/csv");
    vec![
        route(Get, "/api/v1/tasks/count", Read(Several), task_info::count),
        route(Get, "/api/v1/tasks/{id}/acceleratorData", Read(Task), task_info::accelerators),
        route(Get, "/api/v1/allocations/{id}", Read(Allocation), task_info::allocation),
        route(Get, "/api/v1/master/telemetry", Read(Common), cluster::telemetry),
        route(Get, "/api/v1/experiment/labels", Read(Several), search::labels).query(&["projectId"]),
        route(Get, "/api/v1/resources/allocation/raw", Read(Several), usage::raw).query(SPAN),
        route(Get, "/api/v1/resources/allocation/aggregated", Read(Several), usage::aggregated).query(DAYS),
        route(Get, "/resources/allocation/raw", Read(Several), usage::raw_csv).query(SPAN).answers(CSV),
        route(Get, "/resources/allocation/aggregated", Read(Several), usage::aggregated_csv).query(DAYS).answers(CSV),
        route(Get, "/resources/allocation/allocations-csv", Read(Several), usage::allocations_csv)
            .query(SPAN)
            .answers(CSV),
        route(Put, "/api/v1/trials/{id}/retain_logs", Change(Trial), log_retention::retain_of_trial)
            .request::<RetainLogsRequest>(),
        route(Get, "/api/v1/trials/{id}/remaining_log_retention_days", Read(Trial), log_retention::days_left),
        route(Put, "/api/v1/experiments/{id}/retain_logs", Change(Experiment), log_retention::retain_of_experiment)
            .request::<RetainLogsRequest>(),
        route(Put, "/api/v1/projects/{id}/experiments/retain_logs", Change(InBody), bulk::retain_logs)
            .request::<RetainLogsOfSeveralRequest>(),
        route(Delete, "/api/v1/projects/{id}/experiments/delete", Change(InBody), bulk::delete)
            .request::<BulkRequest>(),
        route(Post, "/api/v1/cleanup_logs", Administrator, log_retention::clean),
        route(Post, "/api/v1/trials/{id}/training_metrics", Change(Trial), metrics::report_training)
            .request::<TrialMetrics>(),
        route(Post, "/api/v1/trials/{id}/validation_metrics", Change(Trial), metrics::report_validation)
            .request::<TrialMetrics>(),
    ]
}
