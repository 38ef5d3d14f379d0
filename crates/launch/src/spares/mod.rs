//! Spare interpreters, made in the background: one for each worker of this node (`--preload`), or some that are shared by all
//! of its workers (`--recover step --spares N`), each of which takes over whichever rank is lost first, or hot ones, one for
//! each worker (`--recover step --spares hot`), which have run the script up to its loop.
//!
//! When: [`SETTLE`] after the workers of a round have started, as many at a time as there are processors without a
//! worker (one at least), at low priority where that can be taken back. Workers that started cold import first: they
//! get as long again as a spare has needed for the same. As soon as a round stops, a half-made spare is held still, so
//! that a restart never competes with it; a slot whose spare is not ready starts cold, at once. A spare that is used is
//! made again.
//!
//! Before the first one a *proof* is made: the same interpreter with a program that does nothing. Only if it stops
//! where a spare is to stop (a wrapper might drop `PYTHONPATH`) are spares made, which carry the user's command line.
//!
//! Trouble is reported once. Modules that cannot be imported end the whole attempt to keep spares; a spare that dies
//! otherwise is made again, [`MAX_DEATHS`] times for each slot.
//!
//! A shared spare waits in any local rank's slot: what is different for another rank, environment and CPUs, it is given
//! when it is woken. Whether a stream is a file Python finds out at its start, so that it serves no rank for
//! which that is different.
//!
//! A hot spare is one of its round: it has the rank and the store of that, so that all of them end with it.

mod archive;
pub(crate) mod priority;
mod spare;

use std::num::NonZero;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use crate::console::{Console, Note};
use crate::control::Start;
use crate::plan::{Plan, SpareKind};
use crate::spares::priority::LoweredPriority;
use crate::spares::spare::{Spare, SpareMessage, SpareSettings, quiet_streams, same_streams};
use crate::workers::environment::{Incarnation, recovery_variables};
use crate::workers::guardian::Guardian;
use crate::workers::process::{FileLimit, Spawn, Worker};
use crate::workers::spawn::worker_spawn;

/// How long workers have the machine to themselves after a start.
const SETTLE: Duration = Duration::from_secs(2);
/// How long imports may take: a spare that hangs must not hold up the others for ever.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a slot's spare may die before no more are made for it.
const MAX_DEATHS: u32 = 3;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    slots: Vec<Slot>,
    /// Any worker may take any of them.
    shared: bool,
    /// They run the script up to its loop.
    hot: bool,
    /// Those that are being made, or the proof.
    preparing: Vec<PreparingSpare>,
    /// How many may be made at a time.
    at_once: usize,
    settings: Option<SpareSettings>,
    proven: bool,
    /// The round in which spares are made, and since when they may be.
    round: Option<u64>,
    due: Option<Instant>,
    /// Some worker of the round had no spare.
    cold: bool,
    /// How long it took to make the last spare.
    preparation_time: Duration,
    has_messages: bool,
}

#[derive(Debug, Default)]
struct Slot {
    ready: Option<Spare>,
    deaths: u32,
}

impl Slot {
    fn needs_spare(&self) -> bool {
        self.ready.is_none() && self.deaths < MAX_DEATHS
    }
}

#[derive(Debug)]
struct PreparingSpare {
    spare: Spare,
    /// `None` for the proof.
    slot: Option<usize>,
    /// Since when it works or is held, and how long it has worked before.
    since: Instant,
    worked: Duration,
    held: bool,
}

impl Spares {
    /// For the workers of a plan; none are kept unless it says so.
    pub(crate) fn new(plan: &Plan) -> Spares {
        let slots = match plan.spares {
            _ if plan.preload.is_empty() => 0,
            SpareKind::Shared(count) => count,
            SpareKind::EachRank | SpareKind::Hot => plan.job.workers,
        };
        let slots = (0..slots).map(|_| Slot::default()).collect();
        let shared = matches!(plan.spares, SpareKind::Shared(_));
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let at_once = processors.saturating_sub(plan.job.workers).max(1);
        Spares { slots, shared, hot: plan.spares == SpareKind::Hot, at_once, ..Spares::default() }
    }

    /// What to poll; [`Spares::mark_readable`] if there is something.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let waiting = self.slots.iter().filter_map(|slot| slot.ready.as_ref());
        let preparing = self.preparing.iter().map(|preparing| &preparing.spare);
        waiting.chain(preparing).flat_map(Spare::sources).map(|source| PollFd::new(source, PollFlags::POLLIN))
    }

    /// A spare has something to say, which the next turn will take.
    pub(crate) fn mark_readable(&mut self) {
        self.has_messages = true;
    }

    /// When the next turn is due.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let import_deadlines = self.preparing.iter().map(|preparing| preparing.since + IMPORT_TIMEOUT);
        self.due.into_iter().chain(import_deadlines).min()
    }

    /// Wakes a spare as a worker, if there is one for it.
    pub(crate) fn take(
        &mut self,
        plan: &Plan,
        rank: usize,
        local_rank: usize,
        spawn: &Spawn,
        guardian: &mut Guardian,
    ) -> Option<Worker> {
        let ready = self.slot_for(plan, local_rank)?.ready.take_if(|spare| spare.can_be_woken());
        if (self.shared || self.hot) && ready.is_some() {
            // The ranks need the machine now; the next spare can wait.
            self.due = Some(Instant::now() + SETTLE);
        }
        let woken = ready.and_then(|spare| {
            spare
                .wake(rank, local_rank, spawn)
                // It has died meanwhile: this start is a cold one.
                .map_err(|failed| failed.0.end(guardian))
                .ok()
        });
        self.cold |= woken.is_none();
        woken
    }

    /// The slot whose spare a worker would take.
    fn slot_for(&mut self, plan: &Plan, local_rank: usize) -> Option<&mut Slot> {
        if !self.shared {
            return self.slots.get_mut(local_rank);
        }
        let fits = |spare: &Spare| same_streams(&plan.logs, spare.local_rank(), local_rank);
        let found = self.slots.iter().position(|slot| slot.ready.as_ref().is_some_and(fits));
        self.slots.get_mut(found.unwrap_or(0))
    }

    /// Does what is due. `running` is the round whose workers run, if they do.
    pub(crate) fn poll(
        &mut self,
        plan: &Plan,
        running: Option<&Start>,
        guardian: &mut Guardian,
        file_limit: FileLimit,
        console: &mut dyn Console,
    ) {
        if self.slots.is_empty() {
            return;
        }
        self.handle_messages(guardian, console);
        // A node that only stands by has no rank that a hot spare could be.
        let Some(start) = running.filter(|start| !self.hot || start.first_rank < start.world_size) else {
            self.round = None;
            self.due = None;
            self.hold(true);
            if self.hot {
                // They can serve no other round.
                self.end_all(guardian);
            }
            return;
        };
        let now = Instant::now();
        if self.round != Some(start.round) {
            self.round = Some(start.round);
            let imports = if std::mem::take(&mut self.cold) { self.preparation_time } else { Duration::ZERO };
            self.due = Some(now + SETTLE + imports);
            self.hold(true);
        }
        if self.due.is_some_and(|due| due > now) {
            return;
        }
        self.due = None;
        self.hold(false);
        if self.preparing.iter().any(|preparing| preparing.since.elapsed() > IMPORT_TIMEOUT) {
            self.give_up(guardian, console, "its imports have not finished after 10 minutes");
        }
        if let Err(cause) = self.prepare(plan, start, guardian, file_limit) {
            self.give_up(guardian, console, &cause.to_string());
        }
    }

    /// Ends all of them, and makes no more.
    pub(crate) fn end(&mut self, guardian: &mut Guardian) {
        self.end_all(guardian);
        self.slots.clear();
    }

    fn end_all(&mut self, guardian: &mut Guardian) {
        let preparing = self.preparing.drain(..).map(|preparing| preparing.spare);
        let ready = self.slots.iter_mut().filter_map(|slot| slot.ready.take());
        let all: Vec<Spare> = ready.chain(preparing).collect();
        all.iter().for_each(Spare::kill);
        all.into_iter().for_each(|spare| spare.end(guardian));
    }

    fn hold(&mut self, held: bool) {
        for preparing in self.preparing.iter_mut().filter(|preparing| preparing.held != held) {
            preparing.held = held;
            preparing.worked += if held { preparing.since.elapsed() } else { Duration::ZERO };
            preparing.since = Instant::now();
            preparing.spare.hold(held);
        }
    }

    /// Takes what spares have said.
    fn handle_messages(&mut self, guardian: &mut Guardian, console: &mut dyn Console) {
        if !std::mem::take(&mut self.has_messages) {
            return;
        }
        for index in 0..self.slots.len() {
            match self.slots[index].ready.as_mut().and_then(Spare::message) {
                Some(SpareMessage::Failed(why)) => {
                    self.slots[index].ready.take().into_iter().for_each(|spare| spare.end(guardian));
                    self.died(index, &why, console);
                }
                Some(SpareMessage::Parked) => self.announce(console),
                _ => {}
            }
        }
        for preparing in std::mem::take(&mut self.preparing) {
            if self.slots.is_empty() {
                // Another of them has made it give up.
                preparing.spare.end(guardian);
            } else {
                self.handle_preparing(preparing, guardian, console);
            }
        }
    }

    /// Takes what one has said that is being made; puts it where it belongs now.
    fn handle_preparing(&mut self, mut preparing: PreparingSpare, guardian: &mut Guardian, console: &mut dyn Console) {
        match (preparing.spare.message(), preparing.slot) {
            (None | Some(SpareMessage::Rehearsing | SpareMessage::Parked), _) => self.preparing.push(preparing),
            (Some(SpareMessage::Here), Some(_)) => {
                let lets_import = preparing.spare.go();
                self.preparing.push(preparing);
                if let Err(cause) = lets_import {
                    self.give_up(guardian, console, &cause.to_string());
                }
            }
            (Some(SpareMessage::Ready), Some(slot)) => {
                self.preparation_time = preparing.worked + preparing.since.elapsed();
                self.slots[slot].ready = Some(preparing.spare);
                // It may have said more meanwhile.
                self.has_messages = true;
                self.announce(console);
            }
            (Some(SpareMessage::Here | SpareMessage::Ready), None) => {
                self.proven = true;
                preparing.spare.end(guardian);
            }
            (Some(SpareMessage::Failed(why)), slot) => {
                preparing.spare.end(guardian);
                match slot {
                    None => self.give_up(
                        guardian,
                        console,
                        "the interpreter ignores PYTHONPATH (a wrapper, or isolated from its environment?)",
                    ),
                    Some(_) if why.starts_with("cannot import") => self.give_up(guardian, console, &why),
                    Some(slot) => self.died(slot, &why, console),
                }
            }
        }
    }

    /// Says when the last spare has become ready: from now on a restart is a warm one.
    fn announce(&self, console: &mut dyn Console) {
        if self.slots.iter().any(Slot::needs_spare) {
            return;
        }
        if self.hot {
            let mut ready = self.slots.iter().filter_map(|slot| slot.ready.as_ref());
            if ready.all(Spare::is_parked) {
                let text = "hot spares are ready: the next replacement goes on where the script's loop begins";
                console.note(Note::Progress(text.to_owned()));
            }
            return;
        }
        let spares = match self.slots.iter().filter(|slot| slot.ready.is_some()).count() {
            1 => "1 spare interpreter is ready".to_owned(),
            count => format!("{count} spare interpreters are ready"),
        };
        let what = if self.shared { "the next replacement" } else { "the next restart" };
        console.note(Note::Progress(format!("{spares}: {what} skips the imports")));
    }

    fn died(&mut self, slot: usize, why: &str, console: &mut dyn Console) {
        self.slots[slot].deaths += 1;
        let deaths = self.slots[slot].deaths;
        if deaths == 1 || deaths == MAX_DEATHS {
            let text = match (self.shared, deaths < MAX_DEATHS) {
                (true, true) => format!("a spare interpreter is lost, starting another: {why}"),
                (true, false) => format!("a spare interpreter is lost, no more are started in its place: {why}"),
                (false, true) => {
                    format!("the spare interpreter of local rank {slot} is lost, starting another: {why}")
                }
                (false, false) => format!(
                    "the spare interpreter of local rank {slot} is lost, no more are started for this rank: {why}"
                ),
            };
            console.note(Note::Warning(text));
        }
    }

    /// No more spares in this run.
    fn give_up(&mut self, guardian: &mut Guardian, console: &mut dyn Console, why: &str) {
        self.end(guardian);
        let what = match self.shared {
            true => "no spares are kept, replacements import everything again",
            false => "--preload has no effect, restarts import everything again",
        };
        console.note(Note::Warning(format!("{what}: {why}")));
    }

    /// Begins to make as many as may be made now; the proof comes before all others.
    fn prepare(
        &mut self,
        plan: &Plan,
        start: &Start,
        guardian: &mut Guardian,
        file_limit: FileLimit,
    ) -> std::io::Result<()> {
        let at_once = if self.proven { self.at_once } else { 1 };
        while self.preparing.len() < at_once
            && let Some(slot) = self.next_slot()
        {
            self.prepare_slot(slot, plan, start, guardian, file_limit)?;
        }
        Ok(())
    }

    /// A slot that has no spare, and for which none is being made.
    fn next_slot(&self) -> Option<usize> {
        let in_making = |slot| self.preparing.iter().any(|preparing| preparing.slot == Some(slot));
        (0..self.slots.len()).find(|slot| self.slots[*slot].needs_spare() && !in_making(*slot))
    }

    fn prepare_slot(
        &mut self,
        slot: usize,
        plan: &Plan,
        start: &Start,
        guardian: &mut Guardian,
        file_limit: FileLimit,
    ) -> std::io::Result<()> {
        if self.settings.is_none() {
            let script = plan.script.as_ref().map(|script| script.as_os_str());
            self.settings = Some(SpareSettings::new(&plan.preload, script, LoweredPriority::find(), self.hot)?);
        }
        let Some(settings) = &self.settings else { return Ok(()) };
        let local_rank = slot % plan.job.workers.max(1);
        let (reader, streams) = quiet_streams(&plan.logs, local_rank)?;
        let prepared = worker_spawn(plan, start, local_rank, None, guardian, file_limit, streams);
        let mut spawn = prepared.map_err(std::io::Error::other)?;
        if self.hot {
            // Which incarnation it is to be, and in which generation, it is told when it is woken.
            let standby = Incarnation { number: 1, generation: 0 };
            let inherited = |name: &str| std::env::var_os(name);
            spawn.variables.extend(recovery_variables(&plan.terms, start.group_rank, standby, inherited));
        }
        if !self.proven {
            spawn.command.truncate(1);
            spawn.command.extend(["-c", "pass"].map(Into::into));
        }
        let spare = Spare::start(settings, local_rank, spawn, reader)?;
        let slot = self.proven.then_some(slot);
        self.preparing.push(PreparingSpare { spare, slot, since: Instant::now(), worked: Duration::ZERO, held: false });
        Ok(())
    }
}
