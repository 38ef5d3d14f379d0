//! What a search will do, told before it begins.

use instep_api::config::{Hyperparameters, Method, SearcherConfig};

use super::{Plan, SearchError, plan};

/// So many trials, and where they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Planned {
    /// How many.
    pub trials: u64,
    pub ends: Ends,
}

/// Where a trial ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ends {
    /// At this time of the search.
    At(u64),
    /// Where the script ends.
    ByItself,
}

/// How many trials will end where, the earliest first; of a search that stops trials, if no two metrics are equal and no
/// trial fails.
pub fn preview(config: &SearcherConfig, hyperparameters: &Hyperparameters) -> Result<Vec<Planned>, SearchError> {
    let brackets = match plan(config, hyperparameters)? {
        Plan::Random { left } => return Ok(vec![Planned { trials: u64::from(left), ends: Ends::ByItself }]),
        Plan::Grid { left } => return Ok(vec![Planned { trials: left, ends: Ends::ByItself }]),
        Plan::Halving { brackets } => brackets,
    };
    let divisor = match &config.method {
        Method::AsyncHalving(search) => search.divisor,
        Method::AdaptiveAsha(search) => search.divisor,
        Method::Single | Method::Random { .. } | Method::Grid { .. } => f64::INFINITY,
    };
    let mut planned: Vec<Planned> = Vec::new();
    for bracket in &brackets {
        let times: Vec<u64> = bracket.times().collect();
        let mut trials = u64::from(bracket.max_trials);
        for (index, time) in times.iter().enumerate() {
            let go_on = if index + 1 == times.len() { 0 } else { ((trials as f64 / divisor).floor() as u64).max(1) };
            add(&mut planned, trials.saturating_sub(go_on), *time);
            trials = go_on;
        }
    }
    planned.retain(|planned| planned.trials > 0);
    planned.sort_by_key(|planned| planned.ends);
    Ok(planned)
}

fn add(planned: &mut Vec<Planned>, trials: u64, time: u64) {
    match planned.iter_mut().find(|known| known.ends == Ends::At(time)) {
        Some(known) => known.trials += trials,
        None => planned.push(Planned { trials, ends: Ends::At(time) }),
    }
}
