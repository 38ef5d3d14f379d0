//! The logs of all trials of an experiment: one after the other, or all at once as they come.
//!
//! Where an experiment may have more than one trial, every line begins with its own: `trial 7 | `.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use instep_api::experiments::Experiment;
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::states::State;
use instep_api::trials::TrialsResponse;
use instep_client::Client;
use instep_client::sync::lock;
use instep_launch::Console;
use instep_launch::output::logs::Stream;

use super::dialog::say;
use super::logs::{self, LogArguments};
use super::{lookup, shown};
use crate::console::{self, TerminalConsole};
use crate::report::Hinted;

/// How often a follower looks for new trials.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// After how long somebody who waits for the first line is told why there is none.
const SAY_WHY: Duration = Duration::from_secs(2);
/// Logs that are followed at the same time; further trials wait, and nothing of theirs is lost.
const AT_ONCE: usize = 64;
/// Colours for the names of trials, in turn.
const COLOURS: [&str; 6] = ["36", "33", "32", "35", "34", "31"];

/// Where lines go.
pub(super) struct Output<'a> {
    pub console: &'a Mutex<TerminalConsole>,
    pub json: bool,
    /// Whether lines say whose they are.
    named: bool,
    colours: bool,
}

impl Output<'_> {
    pub(super) fn of<'a>(experiment: &Experiment, console: &'a Mutex<TerminalConsole>, json: bool) -> Output<'a> {
        let named = experiment.num_trials > 1 || !["", "single"].contains(&experiment.searcher_type.as_str());
        let colours = std::io::stdout().is_terminal() && console::colours();
        Output { console, json, named: named && !json, colours }
    }

    fn print(&self, trial: TrialId, text: &str) {
        let text = if self.named { prefixed(trial, text, self.colours) } else { text.to_owned() };
        lock(self.console).output(Stream::Out, text.as_bytes());
    }

    /// Prints the log of one trial.
    fn print_all(&self, client: &Client, trial: TrialId, arguments: &LogArguments) -> anyhow::Result<()> {
        logs::each(client, &format!("/api/v1/trials/{trial}/logs"), arguments, |line| {
            self.print(trial, &logs::text(line, self.json)?);
            Ok(())
        })
    }
}

/// Lines that say which trial wrote them.
fn prefixed(trial: TrialId, text: &str, colours: bool) -> String {
    let colour = COLOURS[usize::try_from(trial.0).unwrap_or(0) % COLOURS.len()];
    let name = format!("trial {trial} |");
    let name = if colours { format!("\x1b[{colour}m{name}\x1b[0m") } else { name };
    text.lines().map(|line| format!("{name} {line}\n")).collect()
}

/// Prints the logs of an experiment's trials; to the end of the experiment, if that is wanted.
pub(super) fn print(client: &Client, id: ExperimentId, arguments: &LogArguments, json: bool) -> anyhow::Result<()> {
    let found = lookup::get_experiment(client, id)?;
    let console = Mutex::new(TerminalConsole::new(false));
    let output = Output::of(&found, &console, json);
    if arguments.follows() {
        return follow(client, id, arguments, &output).map(drop);
    }
    if found.trial_ids.is_empty() {
        let hint = format!("wait for them with `instep experiment logs {id} -f`");
        return Err(Hinted::new(format!("experiment {id} has no trials yet"), hint).into());
    }
    found.trial_ids.iter().try_for_each(|trial| output.print_all(client, *trial, arguments))
}

/// Prints what trials write, from the first to the last one, until the experiment has ended; gives it as it then is.
pub(super) fn follow(
    client: &Client,
    id: ExperimentId,
    arguments: &LogArguments,
    output: &Output<'_>,
) -> anyhow::Result<Experiment> {
    let begin = Instant::now();
    let mut told = false;
    let mut followed: BTreeSet<TrialId> = BTreeSet::new();
    let active = AtomicUsize::new(0);
    let failed: Mutex<Option<anyhow::Error>> = Mutex::new(None);
    let failure = || lock(&failed).take();
    let ended = thread::scope(|scope| {
        loop {
            let found = lookup::get_experiment(client, id)?;
            let trials: TrialsResponse = client.get(&format!("/api/v1/experiments/{id}/trials"))?;
            let over = found.state.is_terminal();
            let mut new: Vec<TrialId> = trials
                .trials
                .iter()
                .filter(|trial| (over || trial.state != State::Queued) && !followed.contains(&trial.id))
                .map(|trial| trial.id)
                .collect();
            new.sort_unstable();
            if over && new.is_empty() && active.load(Ordering::Acquire) == 0 {
                return Ok(found);
            }
            for trial in new.into_iter().take(AT_ONCE.saturating_sub(active.load(Ordering::Acquire))) {
                followed.insert(trial);
                active.fetch_add(1, Ordering::AcqRel);
                let (active, failed) = (&active, &failed);
                scope.spawn(move || {
                    if let Err(error) = output.print_all(client, trial, arguments) {
                        *lock(failed) = Some(error);
                    }
                    active.fetch_sub(1, Ordering::AcqRel);
                });
            }
            if let Some(error) = failure() {
                return Err(error);
            }
            if !told && followed.is_empty() && begin.elapsed() > SAY_WHY {
                say(&format!("experiment {id} is {}: no trial has started yet", shown::state(found.state)));
                told = true;
            }
            thread::sleep(POLL_INTERVAL);
        }
    });
    failure().map_or(ended, Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_says_whose_it_is() {
        assert_eq!(prefixed(TrialId(7), "a\nhint: b\n", false), "trial 7 | a\ntrial 7 | hint: b\n");
        assert_eq!(prefixed(TrialId(6), "a\n", true), "\u{1b}[36mtrial 6 |\u{1b}[0m a\n");
    }
}
