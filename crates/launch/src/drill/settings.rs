//! What `--drill` says.

use std::str::FromStr;
use std::time::Duration;

/// Beyond this a mean time is a mistake, and far below it the arithmetic of clocks would overflow.
const LONGEST_MEAN: Duration = Duration::from_secs(30 * 24 * 3600);
/// What `--drill` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrillSettings {
    /// Mean time between losses of one rank.
    pub kill_rank: Option<Duration>,
    /// Mean time between losses of all ranks of this node at once.
    pub kill_node: Option<Duration>,
    /// What the random times follow from; 0 if not given.
    pub seed: u64,
    /// The most kills; `None` means as many as there are restarts, or no limit where ranks are replaced.
    pub times: Option<u32>,
    /// Where in a step ranks end; `None` means anywhere.
    pub at: Option<Place>,
    /// Every step is done twice.
    pub replay: bool,
}

/// Where in a step a rank can be told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// As its body begins.
    Forward,
    /// When gradients are computed.
    Backward,
    /// Before it says that it has come through the step.
    Vote,
    /// After that, around the update of the weights.
    Optimizer,
    /// While a rank that was lost gets its state: the one that gets it, or one that gives it.
    Transfer,
}

impl Place {
    const ALL: [Place; 5] = [Place::Forward, Place::Backward, Place::Vote, Place::Optimizer, Place::Transfer];

    /// As in options, reports and orders.
    pub fn name(self) -> &'static str {
        match self {
            Place::Forward => "forward",
            Place::Backward => "backward",
            Place::Vote => "vote",
            Place::Optimizer => "optimizer",
            Place::Transfer => "transfer",
        }
    }
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
        let mut settings = DrillSettings::default();
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
                "at" if value == "random" => settings.at = None,
                "at" => {
                    let place = Place::ALL.into_iter().find(|place| place.name() == value);
                    let names = Place::ALL.map(Place::name).join(", ");
                    settings.at = Some(place.ok_or_else(|| wrong(format!("{value} is not one of random, {names}")))?);
                }
                "replay" => {
                    settings.replay = value.parse().map_err(|_| wrong(format!("{value} is not true or false")))?;
                }
                other => {
                    let known = "kill-rank, kill-node, at, replay, seed, times";
                    return Err(wrong(format!("{other} is not one of {known}")));
                }
            }
        }
        if !settings.kills() && !settings.replay {
            return Err(wrong("nothing to kill".to_owned()));
        }
        if settings.at.is_some() && settings.kill_rank.is_none() {
            return Err(wrong("only single ranks can be told where to end: kill-rank=10s,at=vote".to_owned()));
        }
        Ok(settings)
    }
}

impl DrillSettings {
    /// Whether any rank is to be killed.
    pub fn kills(&self) -> bool {
        self.kill_rank.is_some() || self.kill_node.is_some()
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

#[cfg(test)]
mod tests {
    use super::{DrillSettings, Place};
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn settings_are_read_or_refused_with_a_reason() {
        let settings: DrillSettings = "kill-rank=90s, kill-node=5m,seed=7,times=4".parse().expect("valid");
        assert_eq!(settings.kill_rank, Some(Duration::from_secs(90)));
        assert_eq!(settings.kill_node, Some(Duration::from_secs(300)));
        assert_eq!((settings.seed, settings.times), (7, Some(4)));
        let settings: DrillSettings = "kill-rank=1s,at=vote".parse().expect("valid");
        assert_eq!((settings.at, settings.replay), (Some(Place::Vote), false));
        let settings: DrillSettings = "replay=true".parse().expect("valid");
        assert!(settings.replay && !settings.kills());
        for (wrong, why) in [
            ("", "is not KEY=VALUE"),
            ("seed=1", "nothing to kill"),
            ("kill-rank=fast", "is not a time"),
            ("kill-rank=-1s", "is not a time"),
            ("kill-rank=0s", "is not a time"),
            ("kill-rank=1e30h", "is not a time"),
            ("kill-rank=1s,times=0", "from 1"),
            ("kill-cat=1s", "is not one of"),
            ("kill-rank=1s,at=lunch", "is not one of random, forward"),
            ("kill-node=1s,at=vote", "only single ranks"),
            ("replay=maybe", "is not true or false"),
            ("replay=false", "nothing to kill"),
        ] {
            let error = wrong.parse::<DrillSettings>().expect_err(wrong).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_any_drill_does_not_panic(text in "\\PC{0,60}") {
            let _ = text.parse::<DrillSettings>();
        }
    }
}
