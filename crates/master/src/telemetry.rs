//! What the master counts about itself, for Prometheus.
//!
//! Labels are routes as the table spells them, never what callers sent: their number is bounded, and they name nobody.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use instep_api::goodput::ClassSeconds;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::cluster::Passes;

/// Upper ends of the classes of latencies, in seconds.
const LATENCIES: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    method: &'static str,
    route: &'static str,
    status: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: &'static str,
}

/// The counters.
pub(crate) struct Telemetry {
    answers: Family<AnswerLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    running: Gauge,
}

impl Telemetry {
    pub(crate) fn new() -> Telemetry {
        let histogram: fn() -> Histogram = || Histogram::new(LATENCIES);
        Telemetry {
            answers: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            running: Gauge::default(),
        }
    }

    /// A request has come.
    pub(crate) fn begun(&self) {
        self.running.inc();
    }

    /// It has been answered. What is streamed is counted when it begins.
    pub(crate) fn answered(&self, method: &'static str, route: &'static str, status: u16, took: Duration) {
        self.running.dec();
        self.answers.get_or_create(&AnswerLabels { method, route, status: status.into() }).inc();
        self.seconds.get_or_create(&RouteLabels { method, route }).observe(took.as_secs_f64());
    }

    /// Everything in the text format, with what the database and the cluster count.
    pub(crate) fn text(
        &self,
        database: &instep_database::Load,
        passes: Passes,
        goodput: &ClassSeconds,
        epoch: i64,
    ) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("instep");
        register_leadership(&mut registry, true, Some(epoch));
        let info = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of the master", info);
        registry.register("requests", "Requests answered", self.answers.clone());
        registry.register("request_seconds", "Time until a response began", self.seconds.clone());
        registry.register("requests_running", "Requests in progress", self.running.clone());
        let points = ConstCounter::new(database.points);
        registry.register("metric_points", "Metric points stored since the start", points);
        let waiting = "Jobs waiting for the database";
        let gauge = |count: usize| ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
        registry.register("database_writes_waiting", waiting, gauge(database.waiting_writes));
        registry.register("database_reads_waiting", waiting, gauge(database.waiting_reads));
        let seconds = |time: Duration| ConstGauge::new(time.as_secs_f64());
        registry.register("scheduling_passes", "Scheduling passes", ConstCounter::new(passes.count));
        registry.register("scheduling_pass_last_seconds", "Duration of the last pass", seconds(passes.last));
        registry.register("scheduling_pass_longest_seconds", "Duration of the longest pass", seconds(passes.longest));
        registry.register("allocations_waiting", "Allocations waiting for slots", gauge(passes.waiting));
        let by_class = Family::<ClassLabels, Counter<f64, AtomicU64>>::default();
        for (class, seconds) in goodput.all() {
            by_class.get_or_create(&ClassLabels { class }).inc_by(seconds);
        }
        registry.register("goodput_seconds", "Time of the ranks of trials since the start, by class", by_class);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// What a master counts that stands by: nothing but whether it leads.
pub(crate) fn of_standby(epoch: Option<i64>) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("instep");
    register_leadership(&mut registry, false, epoch);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn register_leadership(registry: &mut Registry, leads: bool, epoch: Option<i64>) {
    registry.register("leader", "1 if this master leads, 0 if it stands by", ConstGauge::new(i64::from(leads)));
    if let Some(epoch) = epoch {
        let help = "Term of the leader: how often a master began to lead";
        registry.register("leader_epoch", help, ConstGauge::new(epoch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_in_the_text() {
        let telemetry = Telemetry::new();
        for _ in 0..3 {
            telemetry.begun();
        }
        telemetry.answered("GET", "/info", 200, Duration::from_micros(700));
        telemetry.answered("GET", "/info", 200, Duration::from_micros(300));
        let load = instep_database::Load { points: 7, waiting_writes: 1, waiting_reads: 0 };
        let goodput = ClassSeconds { compute: 1.5, ..ClassSeconds::default() };
        let passes = Passes { count: 3, longest: Duration::from_millis(20), waiting: 5, ..Passes::default() };
        let text = telemetry.text(&load, passes, &goodput, 7).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        for line in [
            "instep_requests_total{method=\"GET\",route=\"/info\",status=\"200\"} 2",
            "instep_request_seconds_bucket{le=\"0.0005\",method=\"GET\",route=\"/info\"} 1",
            "instep_request_seconds_count{method=\"GET\",route=\"/info\"} 2",
            "instep_requests_running 1",
            "instep_leader 1",
            "instep_leader_epoch 7",
            "instep_metric_points_total 7",
            "instep_database_writes_waiting 1",
            "instep_scheduling_passes_total 3",
            "instep_scheduling_pass_longest_seconds 0.02",
            "instep_allocations_waiting 5",
            "instep_goodput_seconds_total{class=\"compute\"} 1.5",
            "instep_goodput_seconds_total{class=\"lost\"} 0.0",
            &format!("instep_build_info{{version=\"{version}\"}} 1"),
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        let standby = of_standby(Some(8)).unwrap();
        assert!(standby.contains("instep_leader 0\n") && standby.contains("instep_leader_epoch 8\n"), "{standby}");
        assert!(!of_standby(None).unwrap().contains("epoch"), "nobody knows who leads");
    }
}
