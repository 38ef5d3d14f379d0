//! Following an experiment that the master runs: the logs of its trials, and on a terminal a line that says how far all of
//! it is.

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use instep_api::experiments::Experiment;
use instep_api::identifiers::ExperimentId;
use instep_api::jobs::JobsResponseV2;
use instep_api::trials::TrialsResponse;
use instep_client::Client;
use instep_client::sync::{lock, wait_timeout_while};
use instep_launch::Console;

use super::dialog::say;
use super::interrupt::SayOnInterrupt;
use super::logs::LogArguments;
use super::trial_logs::{self, Output};
use super::{lookup, outcome, shown, table};
use crate::console::TerminalConsole;

/// How often the line is drawn.
const DRAW_AGAIN: Duration = Duration::from_secs(2);

/// Follows the logs of all trials and waits until the experiment is over; an error if it did not complete.
pub(super) fn to_the_end(client: &Client, id: ExperimentId) -> anyhow::Result<()> {
    let again = format!("experiment {id} keeps running\nhint: follow it again with `instep experiment logs -f {id}`");
    let _interrupt = SayOnInterrupt::new(format!("{again}, stop it with `instep experiment kill {id}`"));
    let console = Mutex::new(TerminalConsole::new(true));
    let over = Finished::default();
    let outcome = thread::scope(|scope| {
        let watching = lock(&console).wants_status();
        let watcher = watching.then(|| scope.spawn(|| watch(client, id, &console, &over)));
        let outcome = lookup::get_experiment(client, id).and_then(|begun| {
            let output = Output::of(&begun, &console, false);
            trial_logs::follow(client, id, &LogArguments::following(), &output)
        });
        over.set();
        if let Some(watcher) = watcher {
            let _ = watcher.join();
        }
        outcome
    });
    lock(&console).end_status();
    let ended = outcome?;
    if ended.state != instep_api::states::State::Completed {
        return Err(outcome::not_completed(client, &ended, false));
    }
    let best = best(&ended).map(|best| format!(", best {best}")).unwrap_or_default();
    let trials = shown::plural(ended.num_trials, "trial");
    say(&format!("experiment {id} {}: {trials}{best}", shown::state(ended.state)));
    if ended.best_trial_searcher_metric.is_none() && ended.num_trials > 0 {
        let metric = &ended.searcher_metric;
        lock(&console).warn(&format!("no trial reported a number for `{metric}`, the searcher's metric"));
    }
    Ok(())
}

/// Whether following is over, for the thread that draws.
#[derive(Default)]
struct Finished {
    over: Mutex<bool>,
    changed: Condvar,
}

impl Finished {
    fn set(&self) {
        *lock(&self.over) = true;
        self.changed.notify_all();
    }

    /// Waits for a while; whether it is over.
    fn wait(&self, pause: Duration) -> bool {
        *wait_timeout_while(&self.changed, lock(&self.over), pause, |over| !*over)
    }
}

/// Draws the line until it is over. What cannot be asked is not drawn: the one who follows hears of it.
fn watch(client: &Client, id: ExperimentId, console: &Mutex<TerminalConsole>, over: &Finished) {
    while !over.wait(DRAW_AGAIN) {
        if let Ok(progress) = progress_of(client, id) {
            lock(console).show(&progress.line());
        }
    }
}

/// How far an experiment is.
#[derive(Debug, Default)]
struct Progress {
    state: String,
    done: usize,
    trials: i64,
    best: Option<String>,
    progress: f64,
    seconds: i64,
    /// Why it waits.
    reason: String,
}

fn progress_of(client: &Client, id: ExperimentId) -> anyhow::Result<Progress> {
    let found = lookup::get_experiment(client, id)?;
    let trials: TrialsResponse = client.get(&format!("/api/v1/experiments/{id}/trials"))?;
    let planned = found.config["searcher"]["max_trials"].as_i64().unwrap_or(0);
    let waits = found.state == instep_api::states::State::Queued;
    Ok(Progress {
        state: shown::state(found.state),
        done: trials.trials.iter().filter(|trial| trial.state.is_terminal()).count(),
        trials: planned.max(trials.trials.len() as i64),
        best: best(&found),
        progress: found.progress.unwrap_or(0.0),
        seconds: found.run_seconds().unwrap_or(0),
        reason: if waits { reason(client, &found.job_id).unwrap_or_default() } else { String::new() },
    })
}

fn reason(client: &Client, job: &str) -> Option<String> {
    let jobs: JobsResponseV2 = client.get("/api/v1/job-queues-v2").ok()?;
    jobs.jobs.into_iter().map(|each| each.full).find(|each| each.job_id == job).map(|found| found.reason)
}

fn best(experiment: &Experiment) -> Option<String> {
    let value = experiment.best_trial_searcher_metric?;
    let trial = experiment.best_trial_id.map(|id| format!(" (trial {id})")).unwrap_or_default();
    Some(format!("{} {}{trial}", experiment.searcher_metric, shown::number(value)))
}

impl Progress {
    /// "running · 3 of 10 trials done · best loss 0.12 (trial 4) · 45% · about 3m 2s left"
    fn line(&self) -> String {
        let mut parts = vec![self.state.clone()];
        if !self.reason.is_empty() {
            parts.push(self.reason.clone());
        }
        if self.trials > 0 {
            parts.push(format!("{} of {} done", self.done, shown::plural(self.trials, "trial")));
        }
        parts.extend(self.best.as_ref().map(|best| format!("best {best}")));
        parts.push(format!("{:.0}%", self.progress * 100.0));
        // Before that the estimate is a guess.
        if (0.02..1.0).contains(&self.progress) {
            let left = self.seconds as f64 * (1.0 - self.progress) / self.progress;
            parts.push(format!("about {} left", shown::duration(left as i64)));
        }
        table::on_one_line(&parts.join(" · "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_it_is() {
        let mut progress = Progress {
            state: "running".to_owned(),
            done: 3,
            trials: 10,
            best: Some("loss 0.12 (trial 4)".to_owned()),
            progress: 0.25,
            seconds: 60,
            reason: String::new(),
        };
        assert_eq!(
            progress.line(),
            "running · 3 of 10 trials done · best loss 0.12 (trial 4) · 25% · about 3m 0s left"
        );
        progress =
            Progress { state: "queued".to_owned(), reason: "waiting: needs 8 slots".to_owned(), ..Progress::default() };
        assert_eq!(progress.line(), "queued · waiting: needs 8 slots · 0%");
        progress = Progress { state: "running".to_owned(), trials: 1, ..Progress::default() };
        assert_eq!(progress.line(), "running · 0 of 1 trial done · 0%");
    }
}
