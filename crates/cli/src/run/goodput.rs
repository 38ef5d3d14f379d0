//! What became of the ranks' time, for people: only after a run in which something was lost.

use instep_launch::Outcome;
use instep_launch::goodput::{Class, Goodput, Times};

use crate::console;

/// With more ranks than this only the sum is shown.
const SHOWN_RANKS: usize = 16;

/// A class that took less, over all ranks, has no column.
const SHOWN_NANOSECONDS: u64 = 5_000_000;

/// Prints the share of training and where the rest went, if ranks were replaced or restarted.
pub(super) fn show(outcome: &Outcome) {
    if outcome.replacements == 0 && outcome.restarts == 0 {
        return;
    }
    if let Some(text) = outcome.goodput.as_ref().and_then(render) {
        console::print_error(&text);
    }
}

/// Whether the job came to its end without a session. One that failed may not have come so far.
pub(super) fn shows_no_session(outcome: &Outcome) -> bool {
    let has_steps = outcome.goodput.as_ref().is_some_and(|goodput| goodput.steps.is_some());
    outcome.success && outcome.replacements == 0 && !has_steps
}

/// None where ranks kept no ledger.
fn render(goodput: &Goodput) -> Option<String> {
    let total = goodput.total();
    let ettr = total.ettr()?;
    let lost = goodput.steps.map(|steps| {
        let count = |steps: u64, what: &str| {
            (steps > 0).then(|| format!("; {steps} step{} {what}", if steps == 1 { "" } else { "s" }))
        };
        [count(steps.redone, "redone"), count(steps.taken_back, "taken back by restarts")]
            .into_iter()
            .flatten()
            .collect()
    });
    let lost: String = lost.unwrap_or_default();
    let training = format!("{:.1} % of the ranks' time was training (ETTR){lost}", ettr * 100.0);
    let shown: Vec<Class> = Class::ALL.into_iter().filter(|class| total.of(*class) >= SHOWN_NANOSECONDS).collect();
    let row = |name: &str, times: &Times| {
        let cells = shown.iter().map(|class| {
            let width = class.name().len().max(9);
            format!("  {:>width$}", format!("{:.2} s", times.of(*class) as f64 / 1e9))
        });
        format!("  {name:<9}{}\n", cells.collect::<String>())
    };
    let heads = shown.iter().map(|class| format!("  {:>width$}", class.name(), width = class.name().len().max(9)));
    let mut text = format!("instep: {training}\n  {:<9}{}\n", "", heads.collect::<String>());
    if goodput.ranks.len() <= SHOWN_RANKS {
        text.extend(goodput.ranks.iter().map(|rank| row(&format!("rank {}", rank.rank), &rank.times)));
    }
    if goodput.ranks.len() > 1 {
        text.push_str(&row(&format!("{} ranks", goodput.ranks.len()), &total));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::render;
    use instep_launch::goodput::{Goodput, RankGoodput, StepCount, Times};

    #[test]
    fn the_table_has_the_classes_that_took_time() {
        let times = Times::from_seconds([2, 90, 5, 0, 0, 2, 1, 0, 0]);
        let ranks = vec![
            RankGoodput { rank: 4, local_rank: 0, times },
            RankGoodput { rank: 5, local_rank: 1, times: Times::from_seconds([2, 90, 4, 0, 0, 3, 1, 0, 0]) },
        ];
        let steps = Some(StepCount { first: 0, done: 40, redone: 1, taken_back: 0 });
        let text = render(&Goodput { wall: 100_000_000_000, ranks, steps }).unwrap();
        let expected = "\
instep: 94.5 % of the ranks' time was training (ETTR); 1 step redone
                 start    compute  communication    restart       lost
  rank 4        2.00 s    90.00 s         5.00 s     2.00 s     1.00 s
  rank 5        2.00 s    90.00 s         4.00 s     3.00 s     1.00 s
  2 ranks       4.00 s   180.00 s         9.00 s     5.00 s     2.00 s
";
        assert_eq!(text, expected);
    }

    #[test]
    fn of_ranks_without_a_ledger_nothing_is_said() {
        let times = Times::from_seconds([1, 0, 0, 0, 0, 0, 0, 0, 9]);
        let ranks = vec![RankGoodput { rank: 0, local_rank: 0, times }];
        assert_eq!(render(&Goodput { wall: 10_000_000_000, ranks, steps: None }), None);
    }
}
