//! A drill: kills ranks at random times, and records whether the job restarted and resumed (`--drill`), or went on without a
//! restart (`--recover step`).
//!
//! Pure: times and output come in, kills and a [`Report`] come out; the supervisor kills. Kills come at random, as
//! real losses do (exponentially distributed, one clock for each kind), and the same seed gives the same sequence.
//! They come only while a round runs and its ranks have begun (printed something or, where steps are to be kept, trained in
//! a session), and never more of them than `times`, so that the drill itself does not use up the restarts. A kill waits
//! until the one before it is overcome.
//!
//! A rank can also be told where in a step to end (`at`): the supervisor leaves it an order (`orders`), and its session
//! carries that out. With `replay`, sessions do every step twice and compare; then nobody need be killed.
//!
//! Whether a job resumed is judged by the steps and epochs that the node's first rank prints (`progress`): after a
//! restart they must be later than those with which the job began. A job that prints none is not judged.

pub(crate) mod orders;
pub(crate) mod progress;
mod settings;

use std::time::{Duration, Instant};

use self::progress::Progress;
pub use self::settings::{DrillError, DrillSettings, Place};

/// Kills come no closer together.
const SHORTEST_GAP: Duration = Duration::from_millis(100);
/// Ranks that have not begun yet are given this time: a kill before that says nothing.
const SPARED_FOR: Duration = Duration::from_secs(30);

/// What a kill takes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillKind {
    /// One rank.
    Rank,
    /// All ranks of this node.
    Node,
}

/// Where a round began, by the steps and epochs that it and the rounds before it printed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resume {
    /// Whether it began later than the job itself once did; `None` if that cannot be known.
    pub resumed: Option<bool>,
    /// How far the round before was when it was killed.
    pub before: Option<String>,
    /// The first step or epoch of this one.
    pub after: Option<String>,
}

/// One kill, and what followed.
#[derive(Debug, Clone, PartialEq)]
pub struct Kill {
    /// What was lost.
    pub kind: KillKind,
    /// The ranks that were killed.
    pub ranks: Vec<usize>,
    /// When, since the launcher started.
    pub at: Duration,
    /// Where in a step, if it was told.
    pub place: Option<Place>,
    /// How long until all ranks trained again without a restart, and which step is next then.
    pub recovered: Option<(Duration, u64)>,
    /// How long until the ranks of the next round were started.
    pub restarted: Option<Duration>,
    /// How long until one of them had printed something.
    pub first_line: Option<Duration>,
    /// Where they began.
    pub resume: Resume,
}

impl Kill {
    /// Until the job was at work again, as far as it can be seen.
    pub fn lost(&self) -> Option<Duration> {
        self.recovered.map(|(time, _)| time).or(self.first_line).or(self.restarted)
    }
}

/// What a drill found.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What to give as `seed=` to repeat the times.
    pub seed: u64,
    /// In order.
    pub kills: Vec<Kill>,
    /// How long the job ran.
    pub duration: Duration,
    /// A rank that was told to end somewhere and never came there.
    pub unreached: Option<(usize, Place)>,
    /// Nobody was killed because steps were to be kept and not all ranks came to one in a session.
    pub without_sessions: bool,
    /// How many steps were done twice, if they were to be.
    pub replayed: Option<u64>,
}

impl Report {
    /// Kills after which ranks were started again.
    pub fn restarts(&self) -> usize {
        self.kills.iter().filter(|kill| kill.restarted.is_some()).count()
    }

    /// Kills after which the job went on from a later step or epoch than its first.
    pub fn resumes(&self) -> usize {
        self.kills.iter().filter(|kill| kill.resume.resumed == Some(true)).count()
    }

    /// Whether it has done to the job what it was to do.
    pub fn has_shown_anything(&self) -> bool {
        match self.replayed {
            Some(steps) => steps > 0,
            None => !self.kills.is_empty(),
        }
    }

    /// How long recoveries took that needed no restart, in order of length.
    pub fn recoveries(&self) -> Vec<Duration> {
        let mut times: Vec<Duration> = self.kills.iter().filter_map(|kill| Some(kill.recovered?.0)).collect();
        times.sort();
        times
    }

    /// The median of the times until the job was at work again.
    pub fn median_lost(&self) -> Option<Duration> {
        let mut lost: Vec<Duration> = self.kills.iter().filter_map(Kill::lost).collect();
        lost.sort();
        let (below, above) = (lost.len().checked_sub(1)? / 2, lost.len() / 2);
        Some((lost[below] + lost[above]) / 2)
    }

    /// The share of the time that did not pass between a kill and the first sign of life after it, from 0 to 1.
    pub fn at_work(&self) -> f64 {
        let away = |kill: &Kill| kill.lost().unwrap_or(self.duration.saturating_sub(kill.at)).as_secs_f64();
        let lost: f64 = self.kills.iter().map(away).sum();
        (1.0 - lost / self.duration.as_secs_f64().max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
    }
}

/// A drill under way.
#[derive(Debug)]
pub(crate) struct Drill {
    seed: u64,
    random: Random,
    clocks: Vec<Clock>,
    left: u32,
    place: Option<Place>,
    replay: bool,
    /// Ranks are to be replaced and keep their step, for which each needs a session.
    keeps_steps: bool,
    /// Who was told to end somewhere, and has not yet.
    told: Option<(usize, Place)>,
    began: Instant,
    kills: Vec<Kill>,
    /// Where the job began: the first marks of the earliest rounds that printed any.
    origin: Progress,
    /// How far the round is that runs, and how far the one before was.
    current: Progress,
    reached: Progress,
    /// Until the ranks of this round have begun or this time has come, nobody is killed.
    spared_until: Option<Instant>,
}

#[derive(Debug)]
struct Clock {
    kind: KillKind,
    mean: Duration,
    due: Option<Instant>,
}

impl Drill {
    /// `restarts` bounds the kills where each of them costs one; none do where steps are kept.
    pub(crate) fn new(settings: &DrillSettings, restarts: Option<u32>, began: Instant) -> Drill {
        let seed = settings.seed;
        let clock = |(kind, mean): (KillKind, Option<Duration>)| mean.map(|mean| Clock { kind, mean, due: None });
        Drill {
            seed,
            random: Random(seed),
            clocks: [(KillKind::Rank, settings.kill_rank), (KillKind::Node, settings.kill_node)]
                .into_iter()
                .filter_map(clock)
                .collect(),
            left: settings.times.unwrap_or(u32::MAX).min(restarts.unwrap_or(u32::MAX)),
            place: settings.at,
            replay: settings.replay,
            keeps_steps: restarts.is_none(),
            told: None,
            began,
            kills: Vec::new(),
            origin: Progress::default(),
            current: Progress::default(),
            reached: Progress::default(),
            spared_until: None,
        }
    }

    /// When the next kill is due.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.clocks.iter().filter_map(|clock| clock.due).min()
    }

    /// The ranks of a round have been started: clocks run.
    pub(crate) fn started(&mut self, now: Instant) {
        if let Some(kill) = self.kills.last_mut().filter(|kill| kill.restarted.is_none()) {
            kill.restarted = Some(now.saturating_duration_since(self.began + kill.at));
        }
        self.reached = std::mem::take(&mut self.current);
        self.spared_until = Some(now + SPARED_FOR);
        self.told = None;
        self.set_clocks(now);
    }

    /// Whether it must be told once all ranks train in sessions.
    pub(crate) fn awaits_sessions(&self) -> bool {
        self.keeps_steps && self.spared_until.is_some()
    }

    /// All ranks train in sessions.
    pub(crate) fn sessions_began(&mut self) {
        self.spared_until = None;
    }

    fn set_clocks(&mut self, now: Instant) {
        for clock in self.clocks.iter_mut().filter(|_| self.left > 0) {
            clock.due = Some(now + self.random.exponential(clock.mean).max(SHORTEST_GAP));
        }
    }

    /// A rank has ended: perhaps where it was told to.
    pub(crate) fn lost(&mut self, rank: usize, now: Instant) {
        if let Some((_, place)) = self.told.take_if(|(told, _)| *told == rank) {
            self.record(KillKind::Rank, vec![rank], Some(place), now);
        }
    }

    /// All ranks train again, and this step is next.
    pub(crate) fn recovered(&mut self, step: u64, now: Instant) {
        let Some(kill) = self.kills.last_mut().filter(|kill| kill.lost().is_none()) else { return };
        kill.recovered = Some((now.saturating_duration_since(self.began + kill.at), step));
        self.set_clocks(now);
    }

    /// The round has ended or is about to: nobody is killed until the next.
    pub(crate) fn stopped(&mut self) {
        self.clocks.iter_mut().for_each(|clock| clock.due = None);
    }

    /// What has been printed by the ranks of the round: when first, and how far the first of them is.
    pub(crate) fn printed(&mut self, first: Instant, progress: &Progress) {
        let since = self.began;
        self.origin.learn(progress);
        self.current.clone_from(progress);
        match self.kills.last_mut() {
            // Until the next round has started, this is still the output of the one that was killed.
            Some(kill) if kill.restarted.is_none() => return,
            Some(kill) => {
                kill.first_line.get_or_insert_with(|| first.saturating_duration_since(since + kill.at));
                kill.resume = compare_progress(&self.origin, &self.reached, progress);
            }
            None => {}
        }
        if !self.keeps_steps {
            self.spared_until = None;
        }
    }

    /// What to do now to ranks that are alive, if a kill is due.
    pub(crate) fn kill_due(&mut self, now: Instant, alive: &[usize]) -> Option<Strike> {
        let spared = self.spared_until.is_some_and(|until| until > now) || alive.is_empty();
        let clock = self.clocks.iter_mut().find(|clock| clock.due.is_some_and(|due| due <= now))?;
        if spared {
            clock.due = Some(now + SHORTEST_GAP);
            return None;
        }
        let kind = clock.kind;
        self.left = self.left.saturating_sub(1);
        self.stopped();
        self.told = None;
        let (killed, told) = match (kind, self.place) {
            (KillKind::Node, _) => (alive.to_vec(), None),
            (KillKind::Rank, None) => (vec![self.one_of(alive)], None),
            (KillKind::Rank, Some(Place::Transfer)) => {
                // With two ranks only the replacement may end: somebody must have the state.
                let lost = self.one_of(alive);
                let other = if alive.len() > 2 { self.one_of(alive) } else { lost };
                (vec![lost], Some((other, Place::Transfer)))
            }
            (KillKind::Rank, Some(place)) => (Vec::new(), Some((self.one_of(alive), place))),
        };
        if killed.is_empty() {
            self.told = told;
        } else {
            self.record(kind, killed.clone(), told.map(|(_, place)| place), now);
        }
        Some(Strike { killed, told })
    }

    fn one_of(&mut self, alive: &[usize]) -> usize {
        alive[self.random.below(alive.len())]
    }

    fn record(&mut self, kind: KillKind, ranks: Vec<usize>, place: Option<Place>, now: Instant) {
        self.kills.push(Kill {
            kind,
            ranks,
            at: now.saturating_duration_since(self.began),
            place,
            recovered: None,
            restarted: None,
            first_line: None,
            resume: Resume::default(),
        });
    }

    /// What it found; `replayed` is how many steps every rank has done twice.
    pub(crate) fn report(self, replayed: u64, now: Instant) -> Report {
        Report {
            seed: self.seed,
            without_sessions: self.awaits_sessions() && self.kills.is_empty() && self.told.is_none(),
            kills: self.kills,
            duration: now.saturating_duration_since(self.began),
            unreached: self.told,
            replayed: self.replay.then_some(replayed),
        }
    }
}

/// Whom to kill, and who is to end by itself, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) killed: Vec<usize>,
    pub(crate) told: Option<(usize, Place)>,
}

/// Where a round began, given where the job once began and how far the round before was.
fn compare_progress(origin: &Progress, reached: &Progress, now: &Progress) -> Resume {
    let judged = now.firsts().map(|after| {
        let before = reached.of_kind(after).map(|(_, latest)| latest);
        let began = origin.of_kind(after).map(|(first, _)| first);
        // Back where the job began says nothing if the round before had not got any further.
        let resumed = match began {
            Some(began) if after > began => Some(true),
            Some(began) if before.is_some_and(|before| before > began) => Some(false),
            _ => None,
        };
        Resume { resumed, before: before.map(ToString::to_string), after: Some(after.to_string()) }
    });
    judged
        .reduce(|first, other| if first.resumed.is_none() && other.resumed.is_some() { other } else { first })
        .unwrap_or_default()
}

/// SplitMix64: small, seeded, good enough for times and choices.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }

    fn exponential(&mut self, mean: Duration) -> Duration {
        // From 0 exclusive to 1 inclusive, so that the logarithm exists.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        mean.mul_f64(-uniform.ln())
    }
}

#[cfg(test)]
mod tests {
    use super::{Drill, DrillSettings, Kill, KillKind, Place, Progress, Report, Resume, Strike, compare_progress};
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    fn output(lines: &[&str]) -> Progress {
        let mut progress = Progress::default();
        lines.iter().for_each(|line| progress.line(line.as_bytes()));
        progress
    }

    proptest! {
        /// Never more kills than restarts, none while no round runs, and always on a rank that lives.
        #[test]
        fn a_drill_kills_live_ranks_and_no_more_often_than_restarts_allow(seed: u64, restarts in 0u32..6, mean in 1u64..10_000, node: bool) {
            let mean = Some(Duration::from_millis(mean));
            let settings =
                DrillSettings { kill_rank: mean, kill_node: mean.filter(|_| node), seed, ..DrillSettings::default() };
            let began = Instant::now();
            let mut drill = Drill::new(&settings, Some(restarts), began);
            let mut now = began;
            let mut struck = 0;
            for _ in 0..restarts + 3 {
                prop_assert!(drill.wake_at().is_none(), "no clock runs between rounds");
                drill.started(now);
                drill.printed(now, &Progress::default());
                let Some(due) = drill.wake_at() else { break };
                prop_assert_eq!(drill.kill_due(due - Duration::from_millis(1), &[4, 5]), None);
                let strike = drill.kill_due(due, &[4, 5]).expect("it is due");
                prop_assert!(strike.killed.iter().all(|rank| [4, 5].contains(rank)));
                (struck, now) = (struck + 1, due + Duration::from_millis(20));
            }
            prop_assert_eq!(struck, restarts);
            let report = drill.report(0, now);
            prop_assert_eq!(report.kills.len(), struck as usize);
            let fits = |kill: &Kill| kill.ranks.len() == if kill.kind == KillKind::Rank { 1 } else { 2 };
            prop_assert!(report.kills.iter().all(fits));
            prop_assert!((0.0..=1.0).contains(&report.at_work()));
        }
    }

    #[test]
    fn what_followed_a_kill_is_measured_from_it() {
        let settings: DrillSettings = "kill-rank=1s,seed=3".parse().expect("valid");
        let began = Instant::now();
        let mut drill = Drill::new(&settings, Some(1), began);
        drill.started(began);
        drill.printed(began, &output(&["Epoch 0", "Epoch 1"]));
        let due = drill.wake_at().expect("a kill is due");
        assert!(drill.kill_due(due, &[0, 1]).is_some());
        drill.printed(began, &output(&["Epoch 0", "Epoch 1", "Epoch 2"]));
        drill.started(due + Duration::from_millis(40));
        assert!(drill.wake_at().is_none(), "one restart, one kill");
        drill.printed(due + Duration::from_millis(100), &output(&["Epoch 0", "Epoch 1"]));
        let report = drill.report(0, due + Duration::from_secs(1));
        let kill = &report.kills[0];
        assert_eq!(kill.restarted, Some(Duration::from_millis(40)));
        assert_eq!(kill.first_line, Some(Duration::from_millis(100)));
        assert_eq!(kill.resume, resume(Some(false), Some("epoch 2"), Some("epoch 0")));
        assert_eq!((report.restarts(), report.resumes()), (1, 0));
    }

    #[test]
    fn the_next_kill_waits_until_all_ranks_train_again() {
        let settings: DrillSettings = "kill-rank=1s,times=2".parse().expect("valid");
        let began = Instant::now();
        let mut drill = Drill::new(&settings, None, began);
        drill.started(began);
        drill.sessions_began();
        let due = drill.wake_at().expect("a kill is due");
        assert!(drill.kill_due(due, &[0, 1]).is_some_and(|strike| strike.killed.len() == 1));
        assert_eq!(drill.wake_at(), None);
        drill.recovered(17, due + Duration::from_millis(60));
        let due = drill.wake_at().expect("another kill is due");
        assert!(drill.kill_due(due, &[0, 1]).is_some());
        drill.recovered(18, due + Duration::from_millis(40));
        assert_eq!(drill.wake_at(), None, "two were asked for");
        let report = drill.report(0, due + Duration::from_secs(1));
        assert_eq!(report.kills[0].recovered, Some((Duration::from_millis(60), 17)));
        assert_eq!(report.recoveries(), [40, 60].map(Duration::from_millis));
    }

    #[test]
    fn a_rank_that_is_to_keep_its_step_is_spared_until_all_have_sessions() {
        let settings: DrillSettings = "kill-rank=1s".parse().expect("valid");
        let began = Instant::now();
        let mut drill = Drill::new(&settings, None, began);
        drill.started(began);
        drill.printed(began, &output(&["step 1"]));
        let due = drill.wake_at().expect("a kill is due");
        assert!(drill.awaits_sessions() && drill.kill_due(due, &[0, 1]).is_none());
        drill.sessions_began();
        let due = drill.wake_at().expect("it is still due");
        assert!(!drill.awaits_sessions() && drill.kill_due(due, &[0, 1]).is_some());

        let mut drill = Drill::new(&settings, None, began);
        drill.started(began);
        assert!(drill.report(0, began).without_sessions);
    }

    #[test]
    fn a_rank_that_is_told_where_to_end_counts_when_it_has() {
        let settings: DrillSettings = "kill-rank=1s,at=vote".parse().expect("valid");
        let began = Instant::now();
        let mut drill = Drill::new(&settings, None, began);
        drill.started(began);
        drill.sessions_began();
        let due = drill.wake_at().expect("a kill is due");
        let strike = drill.kill_due(due, &[4]).expect("it is due");
        assert_eq!(strike, Strike { killed: vec![], told: Some((4, Place::Vote)) });
        drill.lost(5, due);
        let died = due + Duration::from_millis(30);
        drill.lost(4, died);
        drill.recovered(3, died + Duration::from_millis(50));
        let again = drill.wake_at().expect("the next is due");
        assert!(drill.kill_due(again, &[4]).is_some());
        let report = drill.report(0, again);
        assert_eq!(report.kills.len(), 1);
        assert_eq!((report.kills[0].ranks.as_slice(), report.kills[0].place), ([4].as_slice(), Some(Place::Vote)));
        assert_eq!(report.kills[0].recovered, Some((Duration::from_millis(50), 3)));
        assert_eq!(report.unreached, Some((4, Place::Vote)));
    }

    #[test]
    fn of_two_ranks_only_the_replacement_ends_in_a_transfer() {
        for (alive, both) in [(vec![0, 1], false), (vec![0, 1, 2, 3], true)] {
            let others = (0..40).filter(|seed| {
                let settings = format!("kill-rank=1s,at=transfer,seed={seed}").parse().expect("valid");
                let began = Instant::now();
                let mut drill = Drill::new(&settings, None, began);
                drill.started(began);
                drill.sessions_began();
                let due = drill.wake_at().expect("a kill is due");
                let strike = drill.kill_due(due, &alive).expect("it is due");
                strike.told.is_some_and(|(told, _)| told != strike.killed[0])
            });
            assert_eq!(others.count() > 0, both);
        }
    }

    fn resume(resumed: Option<bool>, before: Option<&str>, after: Option<&str>) -> Resume {
        Resume { resumed, before: before.map(str::to_owned), after: after.map(str::to_owned) }
    }

    #[test]
    fn a_job_has_resumed_if_its_steps_have() {
        let began = output(&["run 1 at 12:00", "Epoch 0"]);
        let reached = output(&["Epoch 0", "Epoch 7"]);
        for (lines, reached, wanted) in [
            (&["run 2 at 12:01"][..], &reached, resume(None, None, None)),
            (&["Epoch 0"], &reached, resume(Some(false), Some("epoch 7"), Some("epoch 0"))),
            (&["Epoch 0"], &began, resume(None, Some("epoch 0"), Some("epoch 0"))),
            (&["loading", "Epoch 5"], &reached, resume(Some(true), Some("epoch 7"), Some("epoch 5"))),
            (&["Epoch 5"], &Progress::default(), resume(Some(true), None, Some("epoch 5"))),
            // What the first round never printed has nothing to be compared with.
            (&["warm-up step 3", "Epoch 5"], &reached, resume(Some(true), Some("epoch 7"), Some("epoch 5"))),
        ] {
            assert_eq!(compare_progress(&began, reached, &output(lines)), wanted, "{lines:?}");
        }
    }

    #[test]
    fn the_median_of_two_times_is_their_mean() {
        let kill = |lost| Kill {
            kind: KillKind::Rank,
            ranks: vec![0],
            at: Duration::ZERO,
            place: None,
            recovered: None,
            restarted: Some(Duration::ZERO),
            first_line: Some(Duration::from_millis(lost)),
            resume: Resume::default(),
        };
        let median = |lost: &[u64]| {
            let kills = lost.iter().map(|lost| kill(*lost)).collect();
            let duration = Duration::from_secs(9);
            let report = Report { seed: 0, kills, duration, unreached: None, without_sessions: false, replayed: None };
            report.median_lost().map(|time| time.as_millis())
        };
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[50]), Some(50));
        assert_eq!(median(&[900, 100]), Some(500));
        assert_eq!(median(&[900, 100, 200]), Some(200));
    }
}
