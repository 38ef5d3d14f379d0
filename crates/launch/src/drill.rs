//! A drill: kills ranks at random times, and keeps account of how the job came back (`--drill`).
//!
//! Pure: times come in, blows to strike and a [`Report`] come out; the supervisor strikes. Blows come at random, as
//! real losses do (exponentially distributed, one clock for each kind), and the same seed gives the same sequence.
//! They fall only while a round runs and its ranks have begun, and never more of them than `times`, so that the drill itself does not use up
//! the restarts.

use std::str::FromStr;
use std::time::{Duration, Instant};

/// Beyond this a mean time is a mistake, and far below it the arithmetic of clocks would overflow.
const LONGEST_MEAN: Duration = Duration::from_secs(30 * 24 * 3600);
/// Blows come no closer together.
const SHORTEST_GAP: Duration = Duration::from_millis(100);
/// Ranks that have printed nothing yet are given this time to begin: a blow before says nothing about the one before.
const SPARED_FOR: Duration = Duration::from_secs(30);

/// What `--drill` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrillSettings {
    /// Mean time between losses of one rank.
    pub kill_rank: Option<Duration>,
    /// Mean time between losses of all ranks of this node at once.
    pub kill_node: Option<Duration>,
    /// What the random times follow from; 0 if not given.
    pub seed: u64,
    /// The most blows; `None` means as many as there are restarts.
    pub times: Option<u32>,
}

/// `--drill` cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--drill \"{text}\": {problem}")]
pub struct DrillError {
    text: String,
    problem: String,
}

impl FromStr for DrillSettings {
    type Err = DrillError;

    fn from_str(text: &str) -> Result<DrillSettings, DrillError> {
        let wrong = |problem: String| DrillError { text: text.to_owned(), problem };
        let mut settings = DrillSettings { kill_rank: None, kill_node: None, seed: 0, times: None };
        for pair in text.split(',').map(str::trim) {
            let (key, value) = pair.split_once('=').ok_or_else(|| wrong(format!("\"{pair}\" is not KEY=VALUE")))?;
            let value = value.trim();
            let mean =
                || parse_duration(value).ok_or_else(|| wrong(format!("{value} is not a time such as 30s or 5m")));
            match key.trim() {
                "kill-rank" => settings.kill_rank = Some(mean()?),
                "kill-node" => settings.kill_node = Some(mean()?),
                "seed" => {
                    settings.seed = value.parse().map_err(|_| wrong(format!("{value} is not a number from 0")))?;
                }
                "times" => {
                    let times = value.parse().ok().filter(|times| *times > 0);
                    settings.times = Some(times.ok_or_else(|| wrong(format!("{value} is not a number from 1")))?);
                }
                other => return Err(wrong(format!("{other} is none of kill-rank, kill-node, seed, times"))),
            }
        }
        if settings.kill_rank.is_none() && settings.kill_node.is_none() {
            return Err(wrong("nothing is to be killed".to_owned()));
        }
        Ok(settings)
    }
}

/// `500ms`, `30s`, `5m`, `2h`, or a number of seconds.
fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let seconds = digits.parse::<f64>().ok()? * unit;
    let given = Duration::try_from_secs_f64(seconds).ok()?;
    (Duration::from_millis(1)..=LONGEST_MEAN).contains(&given).then_some(given)
}

/// What is lost in a blow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlowKind {
    /// One rank.
    Rank,
    /// All ranks of this node.
    Node,
}

/// How a round begins, by its first lines: whether it is the beginning of the first round again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// It printed something else than the first round did: it went on.
    Elsewhere,
    /// It printed the same lines as the first round.
    TheStart,
    /// Too little was printed to tell.
    Unknown,
}

/// One blow, and what followed.
#[derive(Debug, Clone, PartialEq)]
pub struct Blow {
    /// What was lost.
    pub kind: BlowKind,
    /// The ranks that were killed.
    pub ranks: Vec<usize>,
    /// When, since the launcher started.
    pub at: Duration,
    /// How long until the ranks of the next round were started.
    pub restarted: Option<Duration>,
    /// How long until one of them had printed something.
    pub first_line: Option<Duration>,
    /// Where they began.
    pub beginning: Beginning,
}

impl Blow {
    /// Until the job was at work again, as far as it can be seen.
    pub fn lost(&self) -> Option<Duration> {
        self.first_line.or(self.restarted)
    }
}

/// What a drill found.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What to give as `seed=` to repeat the times.
    pub seed: u64,
    /// In order.
    pub blows: Vec<Blow>,
    /// How long the job ran.
    pub duration: Duration,
}

impl Report {
    /// Blows after which ranks were started again.
    pub fn came_back(&self) -> usize {
        self.blows.iter().filter(|blow| blow.restarted.is_some()).count()
    }

    /// The share of the time that did not pass between a blow and the first sign of life after it, from 0 to 1.
    pub fn at_work(&self) -> f64 {
        let away = |blow: &Blow| blow.lost().unwrap_or(self.duration.saturating_sub(blow.at)).as_secs_f64();
        let lost: f64 = self.blows.iter().map(away).sum();
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
    began: Instant,
    blows: Vec<Blow>,
    /// The first lines of the first round.
    opening: Option<Vec<Vec<u8>>>,
    /// Until the ranks of this round have printed something or this time has come, nothing falls.
    spared_until: Option<Instant>,
}

#[derive(Debug)]
struct Clock {
    kind: BlowKind,
    mean: Duration,
    due: Option<Instant>,
}

impl Drill {
    pub(crate) fn new(settings: &DrillSettings, restarts: u32, began: Instant) -> Drill {
        let seed = settings.seed;
        let clock = |(kind, mean): (BlowKind, Option<Duration>)| mean.map(|mean| Clock { kind, mean, due: None });
        Drill {
            seed,
            random: Random(seed),
            clocks: [(BlowKind::Rank, settings.kill_rank), (BlowKind::Node, settings.kill_node)]
                .into_iter()
                .filter_map(clock)
                .collect(),
            left: settings.times.unwrap_or(restarts).min(restarts),
            began,
            blows: Vec::new(),
            opening: None,
            spared_until: None,
        }
    }

    /// When the next blow falls.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.clocks.iter().filter_map(|clock| clock.due).min()
    }

    /// The ranks of a round have been started: clocks run.
    pub(crate) fn started(&mut self, now: Instant) {
        if let Some(blow) = self.blows.last_mut().filter(|blow| blow.restarted.is_none()) {
            blow.restarted = Some(now.saturating_duration_since(self.began + blow.at));
        }
        self.spared_until = Some(now + SPARED_FOR);
        for clock in self.clocks.iter_mut().filter(|_| self.left > 0) {
            clock.due = Some(now + self.random.exponential(clock.mean).max(SHORTEST_GAP));
        }
    }

    /// The round has ended or is about to: nothing falls until the next.
    pub(crate) fn stopped(&mut self) {
        self.clocks.iter_mut().for_each(|clock| clock.due = None);
    }

    /// What has been printed by the ranks of the round: when first, and the first lines.
    pub(crate) fn printed(&mut self, first: Instant, lines: &[Vec<u8>]) {
        let since = self.began;
        if self.blows.last().is_none_or(|blow| blow.restarted.is_some()) {
            self.spared_until = None;
        }
        match self.blows.last_mut() {
            None => self.opening = Some(lines.to_vec()),
            // Until the next round has started, this is still the output of the one that was struck.
            Some(blow) if blow.restarted.is_some() => {
                blow.first_line.get_or_insert_with(|| first.saturating_duration_since(since + blow.at));
                blow.beginning = compare(self.opening.as_deref().unwrap_or_default(), lines);
            }
            Some(_) => {}
        }
    }

    /// Whom the blow that is due hits, of the ranks that are alive; they are to be killed now.
    pub(crate) fn strike(&mut self, now: Instant, alive: &[usize]) -> Option<Vec<usize>> {
        let spared = self.spared_until.is_some_and(|until| until > now) || alive.is_empty();
        let clock = self.clocks.iter_mut().find(|clock| clock.due.is_some_and(|due| due <= now))?;
        if spared {
            clock.due = Some(now + SHORTEST_GAP);
            return None;
        }
        let kind = clock.kind;
        let ranks = match kind {
            BlowKind::Rank => vec![alive[self.random.below(alive.len())]],
            BlowKind::Node => alive.to_vec(),
        };
        self.left = self.left.saturating_sub(1);
        self.stopped();
        self.blows.push(Blow {
            kind,
            ranks: ranks.clone(),
            at: now.saturating_duration_since(self.began),
            restarted: None,
            first_line: None,
            beginning: Beginning::Unknown,
        });
        Some(ranks)
    }

    pub(crate) fn report(self, now: Instant) -> Report {
        Report { seed: self.seed, blows: self.blows, duration: now.saturating_duration_since(self.began) }
    }
}

/// Only as many lines as both have can be compared, and one line says little.
fn compare(first: &[Vec<u8>], later: &[Vec<u8>]) -> Beginning {
    let both = first.len().min(later.len());
    match first[..both] == later[..both] {
        false => Beginning::Elsewhere,
        true if both >= 2 => Beginning::TheStart,
        true => Beginning::Unknown,
    }
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
    use super::{Beginning, Blow, BlowKind, Drill, DrillSettings, compare};
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    fn lines(text: &[&str]) -> Vec<Vec<u8>> {
        text.iter().map(|line| line.as_bytes().to_vec()).collect()
    }

    #[test]
    fn settings_are_read_or_refused_with_a_reason() {
        let settings: DrillSettings = "kill-rank=90s, kill-node=5m,seed=7,times=4".parse().expect("valid");
        assert_eq!(settings.kill_rank, Some(Duration::from_secs(90)));
        assert_eq!(settings.kill_node, Some(Duration::from_secs(300)));
        assert_eq!((settings.seed, settings.times), (7, Some(4)));
        for (wrong, why) in [
            ("", "is not KEY=VALUE"),
            ("seed=1", "nothing is to be killed"),
            ("kill-rank=fast", "is not a time"),
            ("kill-rank=-1s", "is not a time"),
            ("kill-rank=0s", "is not a time"),
            ("kill-rank=1e30h", "is not a time"),
            ("kill-rank=1s,times=0", "from 1"),
            ("kill-cat=1s", "is none of"),
        ] {
            let error = wrong.parse::<DrillSettings>().expect_err(wrong).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(text in "\\PC{0,60}") {
            let _ = text.parse::<DrillSettings>();
        }

        /// Never more blows than restarts, none while no round runs, and always on a rank that lives.
        #[test]
        fn blows_follow_the_rules(seed: u64, restarts in 0u32..6, mean in 1u64..10_000, node: bool) {
            let mean = Some(Duration::from_millis(mean));
            let settings = DrillSettings { kill_rank: mean, kill_node: mean.filter(|_| node), seed, times: None };
            let began = Instant::now();
            let mut drill = Drill::new(&settings, restarts, began);
            let mut now = began;
            let mut struck = 0;
            for _ in 0..restarts + 3 {
                prop_assert!(drill.wake_at().is_none(), "no clock runs between rounds");
                drill.started(now);
                drill.printed(now, &[]);
                let Some(due) = drill.wake_at() else { break };
                prop_assert_eq!(drill.strike(due - Duration::from_millis(1), &[4, 5]), None);
                let ranks = drill.strike(due, &[4, 5]).expect("it is due");
                prop_assert!(ranks.iter().all(|rank| [4, 5].contains(rank)));
                (struck, now) = (struck + 1, due + Duration::from_millis(20));
            }
            prop_assert_eq!(struck, restarts);
            let report = drill.report(now);
            prop_assert_eq!(report.blows.len(), struck as usize);
            let fits = |blow: &Blow| blow.ranks.len() == if blow.kind == BlowKind::Rank { 1 } else { 2 };
            prop_assert!(report.blows.iter().all(fits));
            prop_assert!((0.0..=1.0).contains(&report.at_work()));
        }
    }

    #[test]
    fn what_followed_a_blow_is_measured_from_it() {
        let settings: DrillSettings = "kill-rank=1s,seed=3".parse().expect("valid");
        let began = Instant::now();
        let mut drill = Drill::new(&settings, 1, began);
        drill.started(began);
        drill.printed(began, &lines(&["Epoch 0", "Epoch 1"]));
        let due = drill.wake_at().expect("a blow will fall");
        assert!(drill.strike(due, &[0, 1]).is_some());
        drill.started(due + Duration::from_millis(40));
        assert!(drill.wake_at().is_none(), "one restart, one blow");
        drill.printed(due + Duration::from_millis(100), &lines(&["Epoch 0", "Epoch 1"]));
        let report = drill.report(due + Duration::from_secs(1));
        let blow = &report.blows[0];
        assert_eq!(blow.restarted, Some(Duration::from_millis(40)));
        assert_eq!(blow.first_line, Some(Duration::from_millis(100)));
        assert_eq!(blow.beginning, Beginning::TheStart);
        assert_eq!(report.came_back(), 1);
    }

    #[test]
    fn one_line_in_common_says_little() {
        let first = lines(&["loading", "Epoch 0", "Epoch 1"]);
        assert_eq!(compare(&first, &lines(&["loading"])), Beginning::Unknown);
        assert_eq!(compare(&first, &lines(&["loading", "Epoch 7"])), Beginning::Elsewhere);
        assert_eq!(compare(&first, &lines(&["loading", "Epoch 0"])), Beginning::TheStart);
        assert_eq!(compare(&[], &first), Beginning::Unknown);
    }
}
