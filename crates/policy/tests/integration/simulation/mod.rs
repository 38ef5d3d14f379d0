//! A whole cluster in one process, under a virtual clock: experiments, the scheduler, machines that fail, people who
//! change their minds and a master that is restarted, in random order.
//!
//! Safety: no slot has two tasks, no trial runs twice at a time, no more restarts than allowed. Liveness: when the faults
//! end, everything ends. `SEED=... cargo test -p instep-policy simulation` replays one run.

mod machines;
mod master;

use instep_policy::lifecycle::Event;
use instep_policy::schedule::{Fitting, Rule, Settings};
use instep_testkit::{Random, seeds};

use machines::SECOND;
use master::{Happening, Master};

/// For so long, anything may happen.
const UNREST: i64 = 900 * SECOND;

#[test]
fn a_cluster_in_trouble_loses_nothing_and_comes_to_rest() {
    for seed in seeds(100, 50, &[14797021652621338427]) {
        let mut random = Random::new(seed);
        let mut master = Master::new(seed, settings(&mut random), &mut random);
        while master.now < UNREST {
            trouble(&mut master, &mut random);
            master.run_for(1 + random.below(20) as i64 * SECOND, &mut random);
        }
        calm(&mut master, &mut random);
    }
}

fn settings(random: &mut Random) -> Settings {
    let rule = match random.below(3) {
        0 => Rule::FairShare,
        chance => Rule::Priority { preemption: chance == 1 },
    };
    Settings {
        rule,
        fitting: *random.pick(&[Fitting::Best, Fitting::Worst]),
        heterogeneous: random.once_in(2),
        ..Settings::default()
    }
}

/// Something that nobody wanted, or somebody did.
fn trouble(master: &mut Master, random: &mut Random) {
    let some = master.experiments.keys().copied().collect::<Vec<_>>();
    match random.below(12) {
        0..=2 => master.submit(random),
        3 | 4 => master.cut_off(random),
        5 => master.disable(random),
        6 => master.restart(),
        7 => master.change_priority(random),
        _ if some.is_empty() => {}
        _ => {
            let experiment = *random.pick(&some);
            let request = format!("r{}", 1 + random.below(3));
            let event = match random.below(12) {
                0..=2 => Event::Pause,
                3..=6 => Event::Activate,
                7 => Event::Cancel,
                8 => Event::Kill,
                9 => Event::KillTrial { request },
                _ => Event::InvalidHyperparameters { request },
            };
            master.tell(experiment, event, random);
        }
    }
}

/// No more faults, everybody wants results: everything must end.
fn calm(master: &mut Master, random: &mut Random) {
    master.calm = true;
    master.happen(0, Happening::AllAgentsWork);
    for _ in 0..400 {
        for experiment in master.experiments.keys().copied().collect::<Vec<_>>() {
            master.tell(experiment, Event::Activate, random);
        }
        master.run_for(60 * SECOND, random);
        if master.is_at_rest() {
            return;
        }
    }
    panic!("SEED={}: it never comes to rest:\n{}", master.seed, master.describe());
}
