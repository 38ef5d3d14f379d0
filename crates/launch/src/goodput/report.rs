//! Goodput for programs.

use serde_json::{Map, Value, json};

use super::{Class, Goodput, Times};

/// As `--summary-json` and `--events` have it.
pub fn to_json(goodput: &Goodput) -> Value {
    let total = goodput.total();
    let ranks = goodput.ranks.iter().map(|rank| {
        let (number, local_rank) = (rank.rank, rank.local_rank);
        json!({"rank": number, "local_rank": local_rank, "ettr": rank.times.ettr(), "seconds": seconds(&rank.times)})
    });
    json!({
        "wall_seconds": to_seconds(goodput.wall),
        "ettr": total.ettr(),
        "seconds": seconds(&total),
        "first_step": goodput.steps.map(|steps| steps.first),
        "steps": goodput.steps.map(|steps| steps.done),
        "redone_steps": goodput.steps.map(|steps| steps.redone),
        "taken_back_steps": goodput.steps.map(|steps| steps.taken_back),
        "ranks": ranks.collect::<Vec<_>>(),
    })
}

fn seconds(times: &Times) -> Map<String, Value> {
    Class::ALL.iter().map(|class| (class.name().to_owned(), json!(to_seconds(times.of(*class))))).collect()
}

fn to_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
