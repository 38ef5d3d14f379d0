//! What became of a trial's time, for people.

use instep_api::goodput::{TrialGoodput, TrialGoodputResponse};
use instep_api::identifiers::TrialId;
use instep_client::Client;

use super::shown;

/// Of one trial; none before an allocation has ended, and of masters that do not know.
pub(super) fn of_trial(client: &Client, id: TrialId) -> anyhow::Result<Option<TrialGoodput>> {
    match client.get::<TrialGoodputResponse>(&format!("/api/v1/trials/{id}/goodput")) {
        Err(error) if error.is_not_found() => Ok(None),
        found => Ok(found?.goodput),
    }
}

/// The share of training, and where the rest went; nothing where nobody kept a ledger.
pub(super) fn fields(goodput: &TrialGoodput) -> Vec<(&'static str, String)> {
    let seconds = &goodput.seconds;
    if seconds.training() == 0.0 && seconds.unobserved > 0.0 {
        return Vec::new();
    }
    let share = format!("{:.1}% training (ETTR)", seconds.training() / seconds.sum().max(f64::MIN_POSITIVE) * 100.0);
    let mut words = vec![if goodput.ettr.is_some() { share } else { format!("at least {share}") }];
    words.push(format!(
        "{} over {}",
        shown::plural(goodput.ranks.into(), "rank"),
        shown::plural(goodput.allocations.into(), "allocation")
    ));
    for (steps, what) in [(goodput.redone_steps, "redone"), (goodput.taken_back_steps, "taken back by restarts")] {
        if let Some(steps) = steps.filter(|steps| *steps > 0) {
            words.push(format!("{} {what}", shown::plural(steps.cast_signed(), "step")));
        }
    }
    let spent = seconds.all().into_iter().filter(|(_, seconds)| *seconds >= 0.05);
    let spent: Vec<String> = spent.map(|(class, seconds)| format!("{class} {}", shown::seconds(seconds))).collect();
    vec![("Goodput", shown::list(&words)), ("Time", shown::list(&spent))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_api::goodput::ClassSeconds;

    #[test]
    fn the_share_of_training_and_where_the_rest_went() {
        let seconds = ClassSeconds { start: 4.0, compute: 180.25, lost: 15.75, ..ClassSeconds::default() };
        let mut goodput = TrialGoodput {
            allocations: 2,
            wall_seconds: 100.0,
            ranks: 2,
            seconds,
            ettr: seconds.ettr(),
            steps: Some(40),
            redone_steps: Some(0),
            taken_back_steps: Some(3),
        };
        let text = "90.1% training (ETTR), 2 ranks over 2 allocations, 3 steps taken back by restarts";
        let expected = [("Goodput", text.to_owned()), ("Time", "start 4.0s, compute 3m 0s, lost 15.8s".to_owned())];
        assert_eq!(fields(&goodput), expected);
        goodput.seconds.unobserved = 200.0;
        goodput.ettr = None;
        assert!(fields(&goodput)[0].1.starts_with("at least 45.1% training (ETTR)"));
        goodput.seconds = ClassSeconds { start: 1.0, unobserved: 9.0, ..ClassSeconds::default() };
        assert_eq!(fields(&goodput), []);
    }
}
