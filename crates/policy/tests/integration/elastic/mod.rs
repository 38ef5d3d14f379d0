//! Elastic jobs under a virtual clock: launchers, coordinators and the network between machines, with joins, crashes, cuts
//! that heal, paused processes, slow nodes and lost endpoints in random order.
//!
//! Safety, checked whenever workers start: no two workers with one rank, no round below the minimum or above the maximum,
//! no worker of another round alive, so that never two rounds run on two sides of a cut. Liveness: when the faults end,
//! one round runs with everybody. `SEED=... cargo test -p instep-policy elastic` replays one schedule.

mod launcher;
mod world;

use std::time::Duration;

use instep_policy::membership::{Action, Event, LauncherId, Membership, NodeFacts, NodeId};
use instep_testkit::{Random, seeds};
use world::{World, terms};

/// Schedules that went wrong once.
const ONCE_WRONG: [u64; 13] = [
    // The first node is paused when it has ordered a round and before it has started its own part, and wakes when the
    // others have gone on.
    2199982349283372962,
    // A round is committed, and the link to a node that has started it is cut before it hears of that.
    554220696073848584,
    // One who leads has ordered rounds that were never committed, while another runs an earlier one that is.
    10694308112139801900,
    // The last node of a job that has ended comes to one that was begun anew at the same endpoint.
    10527779507431608330,
    // Spares fill a job that was taken over, while a node of its last round works on behind a cut link.
    15352418515108889421,
    // A node behind a cut link is paused, too, and wakes before it has counted enough silence, with an old order.
    9386480868853766780,
    // Two rounds of one number, one taken over from the other, and a node of the first that is taken for one of the second.
    16446966968973480166,
    // A node that was silent comes back to a leader that has counted it into a round, which it never hears of.
    1019557077448551841,
    // A node of a job that has ended waits for the first round of the next one, and is welcome only then.
    6301064709860369554,
    // A paused node reads what was said to it long before, and takes it for news.
    1940381654504393901,
    // Nodes that have never worked leave a silent leader that has just counted them into a round.
    682014144969308497,
    // A paused leader reads what a node said before it left, and takes it for news.
    3953674751499574504,
    // Half of a round has gone on and lost its leader; the others, too few without it, follow one of the round before.
    8839391732123124173,
];

#[test]
fn a_job_in_trouble_is_never_two_jobs_and_comes_to_rest() {
    live_through(&seeds(1500, 500, &ONCE_WRONG), false);
}

#[test]
fn a_job_whose_ranks_move_to_other_nodes_is_never_two_jobs() {
    let seeds = seeds(300, 200, &[]);
    let (replaced, promoted) = live_through(&seeds, true);
    let enough = seeds.len() == 1 || (replaced > 0 && promoted > 0);
    assert!(enough, "{replaced} ranks moved, {promoted} of them to nodes that stood by: nothing was tried");
}

/// Runs these schedules; says how often ranks were taken over, and how often by nodes that stood by.
fn live_through(seeds: &[u64], step_recovery: bool) -> (usize, usize) {
    let verbose = seeds.len() == 1;
    let life = |seed: &u64| {
        let mut random = Random::new(*seed);
        let mut world = World::new(*seed, verbose, step_recovery, &mut random);
        let unrest = Duration::from_secs(20 + random.below(60) as u64);
        while world.now < unrest {
            world.trouble(&mut random);
            world.run_for(Duration::from_millis(100 + random.below(6000) as u64), &mut random);
        }
        world.calm(&mut random);
        (world.replaced, world.promoted)
    };
    seeds.iter().map(life).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[test]
fn ten_thousand_nodes_form_a_round_with_few_messages() {
    for nodes in [10usize, 100, 1_000, 10_000] {
        let mut job = Membership::new(terms(nodes, nodes + 1), Duration::ZERO);
        let mut messages = 0;
        for node in 0..nodes as u64 {
            let facts = NodeFacts {
                launcher: LauncherId(node),
                last_round: None,
                votes: Vec::new(),
                busy: false,
                after_silence: false,
                address: format!("node{node}"),
                process: 1,
                workers: 8,
                role: "default".to_owned(),
                node_rank: 0,
                host: node == 0,
                foreign: false,
            };
            // The hello and its answer; what people are told while they wait goes to all, so that it must be rare.
            messages += 2;
            let present = node as usize + 1;
            messages += sent(&job.on(Event::Joined { node: NodeId(node), facts }, Duration::ZERO), present);
        }
        messages += sent(&job.on(Event::Tick, Duration::from_secs(60)), nodes);
        assert!(job.is_running());
        let bound = 4.0 * nodes as f64 * (nodes as f64).log2();
        assert!((messages as f64) <= bound, "{nodes} nodes: {messages} messages, more than {bound}");
    }
}

/// How many messages these actions cost with so many nodes.
fn sent(actions: &[Action], present: usize) -> usize {
    actions
        .iter()
        .map(|action| match action {
            Action::Refuse { .. } | Action::Waiting { node: Some(_), .. } => 1,
            Action::Start { .. }
            | Action::Commit { .. }
            | Action::Waiting { .. }
            | Action::Fail { .. }
            | Action::Complete => present,
            Action::Stop { nodes, .. } => nodes.len(),
        })
        .sum()
}
