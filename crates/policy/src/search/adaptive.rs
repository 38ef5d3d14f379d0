//! The brackets of an adaptive search: how many, with which rungs, how many trials in each.

use instep_api::config::{AdaptiveAsha, Mode};

use super::halving::Bracket;

/// The brackets, the one with the most rungs first.
pub(super) fn brackets(search: &AdaptiveAsha, max_time: u64) -> Vec<Bracket> {
    let rungs = bracket_rungs(search, max_time);
    let trials = trials(search.max_trials, search.divisor, &rungs);
    let concurrent = concurrent(search.max_concurrent_trials, search.divisor, &trials);
    let bracket = |((rungs, trials), concurrent): ((&u32, &u32), u32)| {
        Bracket::new(Bracket::units(*rungs, max_time, search.divisor), *trials, concurrent, search.divisor)
    };
    rungs.iter().zip(&trials).zip(concurrent).map(bracket).collect()
}

/// How many rungs each bracket has.
fn bracket_rungs(search: &AdaptiveAsha, max_time: u64) -> Vec<u32> {
    let mut rungs = if search.bracket_rungs.is_empty() {
        let halvings = |of: f64| (of.ln() / search.divisor.ln()).floor() as u32 + 1;
        let most = search.max_rungs.min(halvings(max_time as f64)).min(halvings(f64::from(search.max_trials))).max(1);
        match search.mode {
            Mode::Conservative => (1..=most).collect(),
            Mode::Standard => ((most - 1) / 2 + 1..=most).collect(),
            Mode::Aggressive => vec![most],
        }
    } else {
        search.bracket_rungs.clone()
    };
    rungs.sort_unstable_by(|one, other| other.cmp(one));
    rungs
}

/// How many trials each bracket has: the more of them it stops early, the more it can try.
fn trials(max_trials: u32, divisor: f64, rungs: &[u32]) -> Vec<u32> {
    let weight = |rungs: &u32| divisor.powi(*rungs as i32 - 1) / f64::from(*rungs);
    let sum: f64 = rungs.iter().map(weight).sum();
    let share = |rungs: &u32| ((weight(rungs) / sum * f64::from(max_trials)).floor() as u32).max(1);
    let mut trials: Vec<u32> = rungs.iter().map(share).collect();
    let left = max_trials.saturating_sub(trials.iter().sum());
    if let Some(first) = trials.first_mut() {
        *first += left;
    }
    trials
}

/// How many trials of each bracket run at the same time.
fn concurrent(most: u32, divisor: f64, trials: &[u32]) -> Vec<u32> {
    let count = trials.len() as u32;
    if most == 0 {
        let each = trials.last().copied().unwrap_or(1).max(divisor.floor() as u32);
        return vec![each; trials.len()];
    }
    let most = most.max(count);
    (0..count).map(|bracket| most / count + u32::from(bracket < most % count)).collect()
}

#[cfg(test)]
mod tests {
    use instep_api::config::Time;

    use super::*;

    #[test]
    fn trials_are_split_between_brackets() {
        let cases: &[(u32, f64, &[u32], &[u32])] = &[
            (20, 3.0, &[3, 2, 1], &[12, 5, 3]),
            (50, 3.0, &[4, 3], &[35, 15]),
            (50, 4.0, &[3, 2], &[37, 13]),
            (100, 4.0, &[4, 3, 2], &[70, 22, 8]),
        ];
        for (max_trials, divisor, rungs, split) in cases {
            assert_eq!(trials(*max_trials, *divisor, rungs), *split);
        }
    }

    #[test]
    fn slots_are_split_between_brackets() {
        assert_eq!(concurrent(0, 3.0, &[9, 3, 1]), [3, 3, 3]);
        assert_eq!(concurrent(11, 3.0, &[9, 3, 1]), [4, 4, 3]);
        assert_eq!(concurrent(0, 4.0, &[40, 10]), [10, 10]);
    }

    /// A bracket: its rungs, how many trials in all, how many at a time, how many at first.
    type Shown = (Vec<u64>, u32, u32);

    fn shown(max_trials: u32, max_time: u64, divisor: f64, max_rungs: u32, mode: Mode, concurrent: u32) -> Vec<Shown> {
        let search = AdaptiveAsha {
            max_trials,
            time: Time::default(),
            mode,
            divisor,
            max_rungs,
            max_concurrent_trials: concurrent,
            bracket_rungs: Vec::new(),
            stop_once: false,
        };
        let shown = |bracket: Bracket| (bracket.times().collect(), bracket.max_trials, bracket.initial());
        brackets(&search, max_time).into_iter().map(shown).collect()
    }

    #[test]
    fn searches_have_the_brackets_of_the_table() {
        use Mode::{Aggressive, Conservative, Standard};
        let long = [15, 62, 250, 1000];
        let longest = [250, 1000, 4000, 16000, 64000];
        let bracket = |times: &[u64], trials, initial| (times.to_vec(), trials, initial);
        let cases: Vec<(Vec<Shown>, Vec<Shown>)> = vec![
            (shown(10, 100, 4.0, 5, Standard, 2), vec![bracket(&[25, 100], 7, 1), bracket(&[100], 3, 1)]),
            (shown(10, 100, 4.0, 5, Standard, 16), vec![bracket(&[25, 100], 7, 7), bracket(&[100], 3, 3)]),
            (
                shown(10, 1000, 3.0, 5, Conservative, 5),
                vec![bracket(&[111, 333, 1000], 7, 2), bracket(&[333, 1000], 2, 2), bracket(&[1000], 1, 1)],
            ),
            (shown(9, 90, 3.0, 5, Standard, 3), vec![bracket(&[10, 30, 90], 6, 2), bracket(&[30, 90], 3, 1)]),
            (shown(10, 900, 3.0, 10, Standard, 5), vec![bracket(&[100, 300, 900], 7, 3), bracket(&[300, 900], 3, 2)]),
            (shown(16, 400, 4.0, 5, Standard, 16), vec![bracket(&[25, 100, 400], 12, 8), bracket(&[100, 400], 4, 4)]),
            (
                shown(64, 1000, 4.0, 5, Standard, 16),
                vec![bracket(&long, 45, 6), bracket(&long[1..], 14, 5), bracket(&long[2..], 5, 5)],
            ),
            (shown(64, 1000, 4.0, 5, Aggressive, 16), vec![bracket(&long, 64, 16)]),
            (
                shown(64, 1000, 4.0, 5, Conservative, 16),
                vec![
                    bracket(&long, 43, 4),
                    bracket(&long[1..], 14, 4),
                    bracket(&long[2..], 5, 4),
                    bracket(&long[3..], 2, 2),
                ],
            ),
            (
                shown(500, 64000, 4.0, 5, Standard, 16),
                vec![bracket(&longest, 354, 6), bracket(&longest[1..], 110, 5), bracket(&longest[2..], 36, 5)],
            ),
            (shown(1, 100, 4.0, 5, Standard, 16), vec![bracket(&[100], 1, 1)]),
            (shown(5, 3, 4.0, 5, Standard, 16), vec![bracket(&[3], 5, 5)]),
        ];
        for (row, (found, expected)) in cases.into_iter().enumerate() {
            assert_eq!(found, expected, "row {}", row + 1);
        }
    }
}
