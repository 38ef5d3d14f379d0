//! An experiment: its state, its trials and the search that decides about them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use instep_api::states::{LogLevel, State};
use instep_api::wire::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::allocation::{Manner, Phase};
use super::events::{Effect, Event, Run};
use super::searcher::Searcher;
use super::states::{experiment_may, is_stopping, stopping_for, terminal_of, word};
use super::trial::{Birth, Trial};
use crate::search::{Action, EarlyExit, Event as SearchEvent, Search};

/// What an experiment was started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// How many times a trial whose script fails is started again.
    pub max_restarts: u32,
    /// How long a script that was asked to stop has for it.
    pub preemption_timeout: Duration,
    /// There is one trial, whatever happens: it is the one that `continue` goes on with.
    pub single: bool,
}

/// The decisions about one experiment. See the module documentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment<S = Search> {
    id: i32,
    state: State,
    terms: Terms,
    search: S,
    trials: BTreeMap<String, Trial>,
    /// How many times it was continued.
    continuations: u32,
    /// What the search has yet to hear; empty between events.
    #[serde(skip, default)]
    news: VecDeque<SearchEvent>,
}

impl<S: Searcher> Experiment<S> {
    /// An experiment that [`Event::Started`] sets in motion, at once active or at rest.
    pub fn new(id: i32, terms: Terms, search: S, paused: bool) -> Experiment<S> {
        let state = if paused { State::Paused } else { State::Active };
        Experiment { id, state, terms, search, trials: BTreeMap::new(), continuations: 0, news: VecDeque::new() }
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        self.state
    }

    /// What it was started with.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The search that decides about its trials.
    pub fn search(&self) -> &S {
        &self.search
    }

    /// Its trials, by the name that the search gave them.
    pub fn trials(&self) -> &BTreeMap<String, Trial> {
        &self.trials
    }

    /// When [`Event::Tick`] is next needed.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.trials.values().filter_map(Trial::deadline).min()
    }

    /// Why somebody's wish cannot be granted; `None` if it can, or if it is granted already.
    pub fn refusal(&self, event: &Event) -> Option<String> {
        let wish = match event {
            Event::Activate => "activated",
            Event::Pause => "paused",
            _ => return None,
        };
        let (id, state) = (self.id, word(self.state));
        if self.state.is_terminal() {
            return Some(format!(
                "experiment {id} has ended ({state}) and cannot be {wish}; hint: `experiment continue` resumes it"
            ));
        }
        is_stopping(self.state).then(|| format!("experiment {id} is ending ({state}) and cannot be {wish}"))
    }

    /// Takes an event, and says what follows from it.
    pub fn on(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut out = Vec::new();
        if !self.state.is_terminal() {
            self.take(event, now, &mut out);
            self.tell_search(now, &mut out);
            self.conclude(&mut out);
        }
        out
    }

    /// After a restart of the master: what had been decided and may not have been done, once more. Runs that had slots
    /// are not among it: either they are found again, or [`Event::Ended`] says that they are lost.
    pub fn repeat(&self) -> Vec<Effect> {
        let mut out = Vec::new();
        self.trials.values().for_each(|trial| trial.repeat(&mut out));
        out
    }

    /// Goes on with an experiment that has ended: with a search of its own, which names the trials as the first one did
    /// (or there is only one). Trials that are complete stay as they are.
    pub fn carry_on(&mut self, terms: Terms, search: S, now: Timestamp) -> Result<Vec<Effect>, String> {
        if !self.state.is_terminal() {
            let state = word(self.state);
            return Err(format!("experiment {} has not ended ({state}): only one that has can be continued", self.id));
        }
        if !terms.single && self.trials.values().all(|trial| trial.state == State::Completed) {
            return Err(format!("all trials of experiment {} are complete: nothing is left to continue", self.id));
        }
        (self.terms, self.search) = (terms, search);
        self.continuations += 1;
        let mut out = Vec::new();
        self.move_to(State::Active, "it was continued", &mut out);
        out.extend(self.on(Event::Started, now));
        Ok(out)
    }

    fn take(&mut self, event: Event, now: Timestamp, out: &mut Vec<Effect>) {
        match event {
            Event::Started => self.news.push_back(SearchEvent::Started),
            Event::Activate => self.activate(out),
            Event::Pause => self.pause(now, out),
            Event::Cancel if is_stopping(self.state) => {}
            Event::Cancel => self.stop(State::StoppingCanceled, "a user cancelled it", now, out),
            Event::Kill => self.stop(State::StoppingKilled, "a user killed it", now, out),
            Event::KillTrial { request } => self.kill_trial(&request, now, out),
            Event::TrialMade { request, trial } => self.trial_made(&request, trial, out),
            Event::Validated { request, metrics, steps } => self.validated(&request, metrics, steps),
            Event::Progressed { request, progress } => self.progressed(&request, progress),
            Event::InvalidHyperparameters { request } => self.invalid(&request, now, out),
            Event::Assigned { run } => self.reached(&run, Phase::Assigned, out),
            Event::Running { run } => self.reached(&run, Phase::Running, out),
            Event::Ready { run } => self.reached(&run, Phase::Ready, out),
            Event::Acknowledged { run } => {
                if let Some(trial) = current(&mut self.trials, &run) {
                    trial.allocation.iter_mut().for_each(|allocation| allocation.acknowledged = true);
                }
            }
            Event::Displaced { run, why } => self.stop_run(&run, Manner::Gently, &why, now, out),
            Event::Evicted { run, why } => self.stop_run(&run, Manner::AtOnce, &why, now, out),
            Event::Ended { run, end } => {
                if let Some(trial) = current(&mut self.trials, &run)
                    && let Some(state) = trial.run_ended(&end, &self.terms, now, out)
                {
                    self.announce_end(&run.request, state);
                }
            }
            Event::LogMatched { run, policy, pattern, line, action } => {
                if let Some(trial) = current(&mut self.trials, &run) {
                    trial.log_matched(&policy, &pattern, &line, action, out);
                }
            }
            Event::Tick => self.tick(now, out),
        }
    }

    fn tick(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        let due = |trial: &&mut Trial| trial.deadline().is_some_and(|deadline| deadline <= now);
        let mut ticked = Vec::new();
        for trial in self.trials.values_mut().filter(due) {
            trial.tick(&self.terms, now, out);
            ticked.push(trial.request.clone());
        }
        ticked.iter().for_each(|request| self.finish_if_nothing_left(request, out));
    }

    fn move_to(&mut self, state: State, why: &str, out: &mut Vec<Effect>) -> bool {
        let moves = experiment_may(self.state, state);
        if moves {
            self.state = state;
            out.push(Effect::ExperimentState { state, why: why.to_owned() });
        }
        moves
    }

    fn activate(&mut self, out: &mut Vec<Effect>) {
        if self.state != State::Paused || !self.move_to(State::Active, "a user activated it", out) {
            return;
        }
        for trial in self.trials.values_mut().filter(|trial| trial.state == State::Paused) {
            trial.move_to(State::Active, "its experiment was activated", out);
            trial.ask(out);
        }
    }

    fn pause(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        if !self.move_to(State::Paused, "a user paused it", out) {
            return;
        }
        let why = "its experiment was paused";
        for trial in self.trials.values_mut().filter(|trial| trial.state == State::Active) {
            trial.move_to(State::Paused, why, out);
            trial.stop_run(Manner::Gently, why, &self.terms, now, out);
        }
    }

    /// Ends the experiment and with it all trials. What is ending in another way keeps its own name for it, but not its
    /// patience: a kill always kills.
    fn stop(&mut self, state: State, why: &str, now: Timestamp, out: &mut Vec<Effect>) {
        self.move_to(state, why, out);
        let manner = manner_of(state);
        let live: Vec<String> =
            self.trials.values().filter(|trial| trial.is_live()).map(|trial| trial.request.clone()).collect();
        for request in live {
            self.stop_trial(&request, state, manner, why, now, out);
        }
    }

    fn stop_trial(
        &mut self,
        request: &str,
        state: State,
        manner: Manner,
        why: &str,
        now: Timestamp,
        out: &mut Vec<Effect>,
    ) {
        let Some(trial) = self.trials.get_mut(request).filter(|trial| trial.is_live()) else { return };
        trial.move_to(state, why, out);
        trial.stop_run(manner, why, &self.terms, now, out);
        self.finish_if_nothing_left(request, out);
    }

    fn finish_if_nothing_left(&mut self, request: &str, out: &mut Vec<Effect>) {
        let Some(trial) = self.trials.get_mut(request).filter(|trial| trial.has_nothing_left()) else { return };
        if let Some(terminal) = terminal_of(trial.state) {
            trial.finish(terminal, "it has nothing running", out);
            self.announce_end(request, terminal);
        }
    }

    fn kill_trial(&mut self, request: &str, now: Timestamp, out: &mut Vec<Effect>) {
        self.stop_trial(request, State::StoppingKilled, Manner::AtOnce, "a user killed the trial", now, out);
    }

    fn stop_run(&mut self, run: &Run, manner: Manner, why: &str, now: Timestamp, out: &mut Vec<Effect>) {
        if let Some(trial) = current(&mut self.trials, run) {
            // The slots of a run that waits for some cannot be needed.
            if trial.allocation.as_ref().is_some_and(|allocation| allocation.phase > Phase::Asked) {
                trial.stop_run(manner, why, &self.terms, now, out);
            }
        }
    }

    fn trial_made(&mut self, request: &str, id: i32, out: &mut Vec<Effect>) {
        let Some(trial) = self.trials.get_mut(request).filter(|trial| trial.id.is_none()) else { return };
        trial.id = Some(id);
        trial.birth = None;
        self.news.push_back(SearchEvent::TrialCreated { request: trial.alias().to_owned() });
        trial.ask(out);
        self.finish_if_nothing_left(request, out);
    }

    fn validated(&mut self, request: &str, metrics: Map<String, Value>, steps: u64) {
        if let Some(trial) = self.trials.get(request).filter(|trial| trial.is_live()) {
            self.news.push_back(SearchEvent::Validated { request: trial.alias().to_owned(), metrics, steps });
        }
    }

    fn progressed(&mut self, request: &str, progress: f64) {
        if let Some(trial) = self.trials.get(request).filter(|trial| trial.is_live()) {
            self.news.push_back(SearchEvent::Progressed { request: trial.alias().to_owned(), progress });
        }
    }

    fn invalid(&mut self, request: &str, now: Timestamp, out: &mut Vec<Effect>) {
        let Some(trial) = self.trials.get_mut(request).filter(|trial| trial.is_live() && !trial.early) else { return };
        trial.early = true;
        trial.invalid(now, out);
        let reason = EarlyExit::InvalidHyperparameters;
        self.news.push_back(SearchEvent::ExitedEarly { request: trial.alias().to_owned(), reason });
        self.finish_if_nothing_left(request, out);
    }

    fn reached(&mut self, run: &Run, phase: Phase, out: &mut Vec<Effect>) {
        let Some(trial) = current(&mut self.trials, run) else { return };
        let news = trial.allocation.as_mut().is_some_and(|allocation| allocation.reached(phase));
        let name = format!("Trial {} (Experiment {})", trial.id.unwrap_or_default(), self.id);
        // That it has started says the task itself: a line from here could come after its first output.
        if news && phase == Phase::Assigned {
            trial.note(LogLevel::Info, format!("{name} was assigned to an agent"), out);
        }
    }

    /// The search learns that a trial has ended, and how.
    fn announce_end(&mut self, request: &str, state: State) {
        let Some(trial) = self.trials.get_mut(request) else { return };
        let reason = match state {
            State::Error => Some(EarlyExit::Errored),
            State::Canceled => Some(EarlyExit::UserCancelled),
            _ => None,
        };
        if let Some(reason) = reason.filter(|_| !trial.early) {
            trial.early = true;
            self.news.push_back(SearchEvent::ExitedEarly { request: trial.alias().to_owned(), reason });
        }
        self.news.push_back(SearchEvent::Exited { request: trial.alias().to_owned() });
    }

    fn tell_search(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        while let Some(event) = self.news.pop_front() {
            let concerned = event.request().map(str::to_owned);
            match self.search.on(event) {
                Ok(actions) => actions.into_iter().for_each(|action| self.follow(action, now, out)),
                Err(error) => {
                    let text = format!("the experiment fails: {error}");
                    let trial = concerned.as_ref().and_then(|alias| self.trials.get(&self.by_alias(alias)?)?.id);
                    concerned.iter().for_each(|request| self.note_for(request, LogLevel::Error, text.clone(), out));
                    self.stop(State::StoppingError, &search_failed(trial, &error.to_string()), now, out);
                }
            }
        }
    }

    /// Does what the search wants; of an experiment that is ending, only that it ends.
    fn follow(&mut self, action: Action, now: Timestamp, out: &mut Vec<Effect>) {
        match action {
            Action::Shutdown { cancelled, failed } => {
                let terminal = match (failed, cancelled) {
                    (true, _) => State::Error,
                    (false, true) => State::Canceled,
                    (false, false) => State::Completed,
                };
                self.stop(stopping_for(terminal), shutdown_reason(terminal), now, out);
            }
            _ if is_stopping(self.state) => {}
            Action::Create { request, seed, hyperparameters } => self.create(request, seed, hyperparameters, out),
            Action::Stop { request, reason } => {
                let why = format!("the search stopped it: {reason}");
                if let Some(request) = self.by_alias(&request) {
                    self.stop_trial(&request, State::StoppingCompleted, Manner::Gently, &why, now, out);
                }
            }
            Action::Warn { request, text } => self.note_for(&request, LogLevel::Warning, text, out),
        }
    }

    /// A line in the log of the trial that the search knows under this name.
    fn note_for(&self, alias: &str, level: LogLevel, text: String, out: &mut Vec<Effect>) {
        if let Some(trial) = self.by_alias(alias).and_then(|request| self.trials.get(&request)) {
            trial.note(level, text, out);
        }
    }

    fn by_alias(&self, alias: &str) -> Option<String> {
        if self.trials.get(alias).is_some_and(|trial| trial.alias() == alias) {
            return Some(alias.to_owned());
        }
        self.trials.values().find(|trial| trial.alias() == alias).map(|trial| trial.request.clone())
    }

    fn create(&mut self, request: String, seed: u32, hyperparameters: Map<String, Value>, out: &mut Vec<Effect>) {
        if let Some(known) = self.known(&request) {
            return self.reconcile(&known, request, seed, hyperparameters, out);
        }
        let task = format!("{}.{request}", self.id);
        let birth = Birth { seed, hyperparameters, state: self.state };
        let trial = Trial::new(request.clone(), task, birth);
        trial.repeat(out);
        self.trials.insert(request, trial);
    }

    /// The trial of an earlier life that the search means: the one of that name, or the newest if one is all there is to
    /// the experiment.
    fn known(&self, request: &str) -> Option<String> {
        if self.trials.contains_key(request) {
            return Some(request.to_owned());
        }
        let newest = self.trials.values().filter(|trial| !trial.is_live()).max_by_key(|trial| trial.id)?;
        (self.terms.single && self.continuations > 0).then(|| newest.request.clone())
    }

    /// The search of a continued experiment wants a trial that there is already.
    fn reconcile(
        &mut self,
        known: &str,
        alias: String,
        seed: u32,
        hyperparameters: Map<String, Value>,
        out: &mut Vec<Effect>,
    ) {
        let Some(trial) = self.trials.get_mut(known).filter(|trial| !trial.is_live()) else { return };
        self.news.push_back(SearchEvent::TrialCreated { request: alias.clone() });
        if trial.state == State::Completed && !self.terms.single {
            self.news.push_back(SearchEvent::CompletedBefore { request: alias.clone() });
            trial.rename(alias);
            return self.announce_end(known, State::Completed);
        }
        let task = format!("{}.{known}-{}", self.id, self.continuations);
        out.push(Effect::ReviseTrial { request: known.to_owned(), seed, hyperparameters, task: task.clone() });
        trial.revive(alias, task, out);
    }

    /// An experiment that is ending has ended when none of its trials is alive.
    fn conclude(&mut self, out: &mut Vec<Effect>) {
        if let Some(terminal) = terminal_of(self.state)
            && !self.trials.values().any(Trial::is_live)
        {
            self.move_to(terminal, "all of its trials have ended", out);
            out.push(Effect::CollectCheckpoints);
        }
    }
}

/// The trial of a run, if that is still the present one.
fn current<'a>(trials: &'a mut BTreeMap<String, Trial>, run: &Run) -> Option<&'a mut Trial> {
    let trial = trials.get_mut(&run.request)?;
    trial.allocation.as_ref().is_some_and(|allocation| allocation.run == run.number).then_some(trial)
}

fn manner_of(stopping: State) -> Manner {
    match stopping {
        State::StoppingKilled | State::StoppingError => Manner::AtOnce,
        _ => Manner::Gently,
    }
}

/// Why all trials end with a search that cannot decide: their own reasons begin with it, and clients look for it there.
fn search_failed(trial: Option<i32>, error: &str) -> String {
    // A hint after it belongs to whoever reads the log.
    let error = error.lines().next().unwrap_or_default();
    match trial {
        Some(trial) => format!("its search failed on trial {trial}: {error}"),
        None => format!("its search failed: {error}"),
    }
}

fn shutdown_reason(terminal: State) -> &'static str {
    match terminal {
        State::Error => "all of its trials failed",
        State::Canceled => "all of its trials were cancelled",
        _ => "its search is complete",
    }
}
