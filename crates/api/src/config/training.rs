//! What only Determined's Trial classes read, and what is profiled.

use serde::Serialize;

use super::reader::Fields;

/// The `optimizations` section.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Optimizations {
    pub aggregation_frequency: u32,
    pub auto_tune_tensor_fusion: bool,
    pub average_aggregated_gradients: bool,
    pub average_training_metrics: bool,
    pub grad_updates_size_file: Option<String>,
    pub gradient_compression: bool,
    pub mixed_precision: String,
    pub tensor_fusion_cycle_time: u32,
    pub tensor_fusion_threshold: u32,
}

impl Optimizations {
    pub(super) fn read(mut fields: Fields<'_>) -> Optimizations {
        let precision = fields.choice("mixed_precision", &["O0", "O1", "O2", "O3"]);
        let optimizations = Optimizations {
            aggregation_frequency: fields.count("aggregation_frequency", 1).unwrap_or(1),
            auto_tune_tensor_fusion: fields.flag("auto_tune_tensor_fusion").unwrap_or(false),
            average_aggregated_gradients: fields.flag("average_aggregated_gradients").unwrap_or(true),
            average_training_metrics: fields.flag("average_training_metrics").unwrap_or(true),
            grad_updates_size_file: fields.text("grad_updates_size_file"),
            gradient_compression: fields.flag("gradient_compression").unwrap_or(false),
            mixed_precision: precision.unwrap_or_else(|| "O0".to_owned()),
            tensor_fusion_cycle_time: fields.count("tensor_fusion_cycle_time", 0).unwrap_or(1),
            tensor_fusion_threshold: fields.count("tensor_fusion_threshold", 0).unwrap_or(64),
        };
        fields.finish();
        optimizations
    }
}

/// The `profiling` section.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Profiling {
    pub enabled: bool,
    pub begin_on_batch: u32,
    pub end_after_batch: Option<u32>,
    pub sync_timings: bool,
}

impl Profiling {
    pub(super) fn read(mut fields: Fields<'_>) -> Profiling {
        let profiling = Profiling {
            enabled: fields.flag("enabled").unwrap_or(false),
            begin_on_batch: fields.count("begin_on_batch", 0).unwrap_or(0),
            end_after_batch: fields.count("end_after_batch", 0),
            sync_timings: fields.flag("sync_timings").unwrap_or(true),
        };
        if profiling.end_after_batch.is_some_and(|end| end < profiling.begin_on_batch) {
            fields.wrong("end_after_batch", "must not be less than begin_on_batch");
        }
        fields.finish();
        profiling
    }
}

/// The `reproducibility` section.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reproducibility {
    /// From which everything random of a search follows.
    pub experiment_seed: u32,
}

impl Reproducibility {
    pub(super) fn read(mut fields: Fields<'_>, seed: u32) -> Reproducibility {
        let reproducibility = Reproducibility { experiment_seed: fields.count("experiment_seed", 0).unwrap_or(seed) };
        fields.finish();
        reproducibility
    }
}

/// The `retention_policy` section.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RetentionPolicy {
    /// For how long logs are kept; -1: for ever; `None`: as the master says.
    pub log_retention_days: Option<i64>,
}

impl RetentionPolicy {
    pub(super) fn read(mut fields: Fields<'_>) -> RetentionPolicy {
        let policy = RetentionPolicy { log_retention_days: fields.whole("log_retention_days", -1..=32767) };
        fields.finish();
        policy
    }
}
