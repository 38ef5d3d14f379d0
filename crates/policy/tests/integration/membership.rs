//! The membership of a job: a table of situations, and a simulation of random ones.
//!
//! `SEED=... cargo test -p instep-policy membership` replays one schedule.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use instep_policy::membership::{
    Action, Event, LauncherId, Membership, MembershipTerms, NodeFacts, NodeId, Quorum, Resumption, RoundMember,
};
use instep_testkit::{Random, seeds};

const SECOND: Duration = Duration::from_secs(1);

fn terms(min_nodes: usize, max_nodes: usize, max_restarts: u32) -> MembershipTerms {
    MembershipTerms {
        min_nodes,
        max_nodes,
        fixed_ranks: false,
        max_restarts,
        last_call: 30 * SECOND,
        join_timeout: 600 * SECOND,
        max_changes: 3,
        settle: SECOND,
        rejoin_window: 5 * SECOND,
        fence: 2 * SECOND,
        quorum: Quorum::Majority,
        step_recovery: false,
    }
}

fn facts(address: &str, workers: usize, node_rank: usize) -> NodeFacts {
    NodeFacts {
        launcher: LauncherId(0),
        last_round: None,
        votes: Vec::new(),
        busy: false,
        after_silence: false,
        address: address.to_owned(),
        process: 1,
        workers,
        role: "default".to_owned(),
        node_rank,
        host: address == "host",
        foreign: false,
    }
}

fn joined(node: u64, address: &str, workers: usize, node_rank: usize) -> Event {
    Event::Joined {
        node: NodeId(node),
        facts: NodeFacts { launcher: LauncherId(node), ..facts(address, workers, node_rank) },
    }
}

fn members(actions: &[Action]) -> Option<&[RoundMember]> {
    actions.iter().find_map(|action| match action {
        Action::Start { members, .. } => Some(members.as_slice()),
        _ => None,
    })
}

#[test]
fn a_single_node_starts_at_once() {
    let mut job = Membership::new(terms(1, 1, 0), SECOND);
    let actions = job.on(joined(7, "host", 4, 0), SECOND);
    let [Action::Start { round: 0, restarts: 0, members, world_size: 4, .. }] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert_eq!((members[0].node, members[0].first_rank, members[0].role_world_size), (NodeId(7), 0, 4));
}

#[test]
fn the_host_gets_rank_0_and_the_others_their_requested_order() {
    let mut job = Membership::new(terms(4, 4, 0), SECOND);
    job.on(joined(1, "c", 2, 1), SECOND);
    job.on(joined(2, "b", 1, 2), SECOND);
    job.on(joined(3, "a", 3, 2), SECOND);
    let actions = job.on(joined(4, "host", 4, 0), SECOND);
    let order: Vec<(u64, usize)> =
        members(&actions).expect("started").iter().map(|member| (member.node.0, member.first_rank)).collect();
    assert_eq!(order, [(4, 0), (1, 4), (3, 6), (2, 9)]);
}

#[test]
fn ranks_count_within_a_role() {
    let mut job = Membership::new(terms(3, 3, 0), SECOND);
    let with_role = |node: u64, address: &str, role: &str| {
        let mut facts = facts(address, 2, 0);
        facts.role = role.to_owned();
        Event::Joined { node: NodeId(node), facts }
    };
    job.on(with_role(1, "host", "trainer"), SECOND);
    job.on(with_role(2, "x", "reader"), SECOND);
    let actions = job.on(with_role(3, "y", "trainer"), SECOND);
    let roles: Vec<(usize, usize)> = members(&actions)
        .expect("started")
        .iter()
        .map(|member| (member.first_role_rank, member.role_world_size))
        .collect();
    assert_eq!(roles, [(0, 4), (0, 2), (2, 4)]);
}

#[test]
fn a_failure_restarts_everyone_once_all_have_stopped() {
    let mut job = Membership::new(terms(2, 2, 1), SECOND);
    job.on(joined(1, "host", 1, 0), SECOND);
    job.on(joined(2, "b", 1, 1), SECOND);
    // A node that has finished restarts with the others: its work of the round is lost.
    assert_eq!(job.on(Event::Finished { node: NodeId(1) }, SECOND), []);
    let actions = job.on(Event::Failed { node: NodeId(2), cause: "rank 1 exited with code 3".to_owned() }, SECOND);
    let [Action::Stop { nodes, reason, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(nodes, &[NodeId(1), NodeId(2)]);
    assert_eq!(reason, "rank 1 exited with code 3; restart 1 of 1");
    assert_eq!(job.on(Event::Stopped { node: NodeId(2) }, SECOND), []);
    // Said before the order to stop reached it.
    assert_eq!(job.on(Event::Finished { node: NodeId(1) }, SECOND), []);
    let actions = job.on(Event::Stopped { node: NodeId(1) }, SECOND);
    assert!(matches!(actions.as_slice(), [Action::Start { round: 1, restarts: 1, .. }]), "{actions:?}");

    let actions = job.on(Event::Failed { node: NodeId(1), cause: "rank 0 was killed by SIGKILL".to_owned() }, SECOND);
    let [Action::Fail { reason }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(reason, "rank 0 was killed by SIGKILL; the only restart is used up");
    assert_eq!(job.on(Event::Stopped { node: NodeId(1) }, SECOND), []);
}

#[test]
fn the_job_completes_when_the_last_node_has_finished() {
    let mut job = Membership::new(terms(2, 2, 0), SECOND);
    job.on(joined(1, "host", 1, 0), SECOND);
    job.on(joined(2, "b", 1, 1), SECOND);
    job.on(Event::Finished { node: NodeId(2) }, SECOND);
    // A finished node may go: its part is done.
    assert_eq!(
        job.on(Event::Lost { node: NodeId(2), cause: "its connection broke".to_owned(), silent: false }, SECOND),
        []
    );
    assert_eq!(job.on(Event::Finished { node: NodeId(1) }, SECOND), [Action::Complete]);
}

#[test]
fn a_lost_node_costs_a_restart_and_the_others_wait_for_another() {
    let mut job = Membership::new(terms(2, 2, 1), SECOND);
    job.on(joined(1, "host", 1, 0), SECOND);
    job.on(joined(2, "b", 1, 1), SECOND);
    let actions =
        job.on(Event::Lost { node: NodeId(2), cause: "its connection broke".to_owned(), silent: false }, SECOND);
    let [Action::Stop { nodes, reason, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(nodes, &[NodeId(1)]);
    assert_eq!(reason, "node b (pid 1) was lost: its connection broke; restart 1 of 1");
    job.on(Event::Stopped { node: NodeId(1) }, SECOND);
    let actions = job.on(joined(3, "b", 1, 1), 2 * SECOND);
    assert!(members(&actions).is_some(), "{actions:?}");
}

#[test]
fn the_job_ends_with_its_host() {
    let mut job = Membership::new(terms(2, 2, 5), SECOND);
    job.on(joined(1, "host", 1, 0), SECOND);
    job.on(joined(2, "b", 1, 1), SECOND);
    let actions = job.on(Event::Left { node: NodeId(1), cause: "received SIGTERM".to_owned(), failed: false }, SECOND);
    assert_eq!(actions, [Action::Fail { reason: "the first node left: received SIGTERM".to_owned() }]);
}

#[test]
fn a_range_of_nodes_waits_for_the_last_call() {
    let mut job = Membership::new(terms(1, 3, 0), SECOND);
    let actions = job.on(joined(1, "host", 1, 0), SECOND);
    let [Action::Waiting { reason, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(reason.starts_with("1 node has joined, up to 3 may join"), "{reason}");
    assert_eq!(job.wake_at(), Some(31 * SECOND));
    job.on(joined(2, "b", 1, 0), 10 * SECOND);
    assert_eq!(job.on(Event::Tick, 30 * SECOND), []);
    let actions = job.on(Event::Tick, 31 * SECOND);
    assert_eq!(members(&actions).map(<[RoundMember]>::len), Some(2), "{actions:?}");
}

#[test]
fn fixed_ranks_are_checked() {
    let mut job = Membership::new(MembershipTerms { fixed_ranks: true, ..terms(2, 2, 0) }, SECOND);
    job.on(joined(1, "host", 1, 0), SECOND);
    let refusal = |actions: Vec<Action>| match actions.as_slice() {
        [Action::Refuse { reason, .. }] => reason.clone(),
        other => panic!("{other:?}"),
    };
    let taken = refusal(job.on(joined(2, "b", 1, 0), SECOND));
    assert_eq!(taken, "node rank 0 is already taken by host (pid 1)");
    let beyond = refusal(job.on(joined(3, "b", 1, 2), SECOND));
    assert_eq!(beyond, "node rank 2 is out of range: this job has node ranks 0 to 1");
}

#[test]
fn nodes_that_never_come_are_named_when_time_is_up() {
    let mut job = Membership::new(MembershipTerms { fixed_ranks: true, ..terms(3, 3, 0) }, SECOND);
    job.on(joined(1, "host", 1, 0), SECOND);
    job.on(joined(2, "c", 1, 2), SECOND);
    let actions = job.on(Event::Tick, 601 * SECOND);
    let reason = "gave up after 600 s waiting for 1 more node: 2 of 3 have joined (host, pid 1; c, pid 1); \
                  missing: node rank 1";
    assert_eq!(actions, [Action::Fail { reason: reason.to_owned() }]);
    let refused = job.on(joined(4, "b", 1, 1), 602 * SECOND);
    assert!(matches!(refused.as_slice(), [Action::Refuse { .. }]), "{refused:?}");
}

fn member_of(node: u64, round: u64) -> Event {
    let facts = NodeFacts { launcher: LauncherId(node), last_round: Some(round), ..facts("b", 1, 0) };
    Event::Joined { node: NodeId(node), facts }
}

fn lost(node: u64, silent: bool) -> Event {
    Event::Lost { node: NodeId(node), cause: "its connection broke".to_owned(), silent }
}

fn failed(node: u64) -> Event {
    Event::Failed { node: NodeId(node), cause: "rank 1 exited with code 3".to_owned() }
}

fn stopped(node: u64) -> Event {
    Event::Stopped { node: NodeId(node) }
}

/// An elastic job whose first round runs with these nodes, of which the first is the host.
fn running(terms: MembershipTerms, nodes: u64) -> Membership {
    let mut job = Membership::new(MembershipTerms { last_call: SECOND, ..terms }, SECOND);
    for node in 1..=nodes {
        job.on(joined(node, if node == 1 { "host" } else { "b" }, 1, 0), SECOND);
    }
    job.on(Event::Tick, 2 * SECOND);
    assert!(job.is_running());
    job
}

fn reason_to_start(actions: &[Action]) -> Option<(usize, &str)> {
    actions.iter().find_map(|action| match action {
        Action::Start { members, reason, .. } => Some((members.len(), reason.as_deref().unwrap_or_default())),
        _ => None,
    })
}

#[test]
fn survivors_of_a_loss_start_again_at_once_without_paying_a_restart() {
    let mut job = running(terms(2, 3, 0), 3);
    let actions = job.on(lost(3, false), 3 * SECOND);
    let [Action::Stop { nodes, reason, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((nodes.len(), reason.as_str()), (2, "node b (pid 1) was lost: its connection broke"));
    assert_eq!(job.on(stopped(1), 3 * SECOND), []);
    let actions = job.on(stopped(2), 3 * SECOND);
    assert_eq!(reason_to_start(&actions), Some((2, "node b (pid 1) was lost: its connection broke")));
    let [Action::Start { restarts: 0, changes: 1, .. }] = actions.as_slice() else { panic!("{actions:?}") };
}

#[test]
fn a_failure_is_a_failure_if_all_others_answer() {
    let mut job = running(terms(1, 2, 1), 2);
    job.on(failed(2), 3 * SECOND);
    job.on(stopped(2), 3 * SECOND);
    let actions = job.on(stopped(1), 3 * SECOND);
    assert_eq!(reason_to_start(&actions), Some((2, "rank 1 exited with code 3; restart 1 of 1")));
    job.on(failed(1), 4 * SECOND);
    job.on(stopped(2), 4 * SECOND);
    let actions = job.on(stopped(1), 4 * SECOND);
    let [Action::Fail { reason }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(reason, "rank 1 exited with code 3; the only restart is used up");
}

#[test]
fn a_failure_that_follows_from_a_loss_costs_no_restart() {
    let mut job = running(terms(1, 2, 0), 2);
    // The worker here fell because its peer vanished, and was quicker to be noticed.
    job.on(failed(1), 3 * SECOND);
    job.on(stopped(1), 3 * SECOND);
    let actions = job.on(lost(2, false), 3 * SECOND);
    assert_eq!(reason_to_start(&actions), Some((1, "node b (pid 1) was lost: its connection broke")));
}

#[test]
fn a_node_cannot_turn_its_failure_into_a_change_by_leaving() {
    let mut job = running(terms(1, 2, 0), 2);
    job.on(failed(2), 3 * SECOND);
    job.on(lost(2, false), 3 * SECOND);
    let actions = job.on(stopped(1), 3 * SECOND);
    let [Action::Fail { reason }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(reason, "rank 1 exited with code 3; restarts are off (--max-restarts 0)");

    let mut job = running(terms(1, 2, 0), 2);
    let left = Event::Left { node: NodeId(2), cause: "its disk is full".to_owned(), failed: true };
    assert!(matches!(job.on(left, 3 * SECOND).as_slice(), [Action::Stop { .. }]));
    let actions = job.on(stopped(1), 3 * SECOND);
    assert!(matches!(actions.as_slice(), [Action::Fail { .. }]), "{actions:?}");
}

#[test]
fn newcomers_are_taken_in_together_and_further_ones_wait() {
    let mut job = running(terms(1, 3, 0), 1);
    for (node, now) in [(2, 10), (3, 10), (4, 10)] {
        let actions = job.on(joined(node, "b", 1, 0), now * SECOND);
        assert!(matches!(actions.as_slice(), [Action::Waiting { .. }]), "{actions:?}");
    }
    assert_eq!(job.wake_at(), Some(11 * SECOND));
    let actions = job.on(Event::Tick, 11 * SECOND);
    let [Action::Stop { nodes, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(nodes, &[NodeId(1)]);
    let actions = job.on(stopped(1), 11 * SECOND);
    assert_eq!(reason_to_start(&actions).map(|(nodes, _)| nodes), Some(3));
    // The fourth steps in when one is lost, and the others keep their places.
    job.on(lost(2, false), 20 * SECOND);
    job.on(stopped(1), 20 * SECOND);
    let actions = job.on(stopped(3), 20 * SECOND);
    let addresses: Vec<u64> = members(&actions).expect("started").iter().map(|member| member.node.0).collect();
    assert_eq!(addresses, [1, 3, 4]);
}

#[test]
fn a_newcomer_does_not_disturb_a_job_that_is_ending() {
    let mut job = running(terms(1, 3, 0), 2);
    job.on(Event::Finished { node: NodeId(1) }, 3 * SECOND);
    job.on(joined(9, "c", 1, 0), 3 * SECOND);
    assert_eq!(job.on(Event::Tick, 10 * SECOND), []);
    assert_eq!(job.on(Event::Finished { node: NodeId(2) }, 10 * SECOND), [Action::Complete]);
}

#[test]
fn a_draining_node_is_waited_for_and_not_counted_on() {
    let mut job = running(terms(1, 2, 0), 2);
    let actions = job.on(Event::Draining { node: NodeId(2), cause: "received SIGTERM".to_owned() }, 3 * SECOND);
    let [Action::Stop { nodes, reason, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((nodes.as_slice(), reason.as_str()), (&[NodeId(1)][..], "node b (pid 1) is draining: received SIGTERM"));
    assert_eq!(job.on(stopped(1), 3 * SECOND), [], "its workers may still be alive");
    let left = Event::Left { node: NodeId(2), cause: "received SIGTERM".to_owned(), failed: false };
    let actions = job.on(left, 9 * SECOND);
    assert_eq!(reason_to_start(&actions), Some((1, "node b (pid 1) is draining: received SIGTERM")));
}

#[test]
fn changes_have_a_budget() {
    let mut job = running(MembershipTerms { max_changes: 1, ..terms(1, 2, 0) }, 2);
    job.on(lost(2, false), 3 * SECOND);
    assert!(reason_to_start(&job.on(stopped(1), 3 * SECOND)).is_some());
    let actions = job.on(joined(3, "b", 1, 0), 4 * SECOND);
    let [Action::Waiting { reason, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(reason.contains("all membership changes are used up"), "{reason}");
    assert_eq!(job.wake_at(), None);
}

#[test]
fn after_silence_a_majority_goes_on_and_a_minority_waits() {
    let mut job = running(MembershipTerms { max_changes: 9, ..terms(1, 4, 0) }, 3);
    job.on(lost(2, true), 3 * SECOND);
    let actions = job.on(stopped(1), 3 * SECOND);
    assert_eq!(actions, [], "node 3 has not answered yet");
    let actions = job.on(lost(3, true), 4 * SECOND);
    let [Action::Waiting { reason, .. }, Action::Stop { at_once: true, .. }] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert!(reason.starts_with("only 1 of the 3 nodes of round"), "{reason}");
    // One is found to have ended. It may have gone on with the other one before.
    assert_eq!(job.on(Event::Dead { launcher: LauncherId(3) }, 5 * SECOND), []);
    let actions = job.on(member_of(2, 0), 5 * SECOND);
    assert_eq!(reason_to_start(&actions).map(|(nodes, _)| nodes), Some(2));

    let mut job = running(MembershipTerms { quorum: Quorum::Minimum, max_changes: 9, ..terms(1, 4, 0) }, 3);
    job.on(lost(2, true), 3 * SECOND);
    job.on(lost(3, true), 3 * SECOND);
    assert!(reason_to_start(&job.on(stopped(1), 3 * SECOND)).is_some(), "the minimum decides");
}

#[test]
fn a_side_without_a_majority_says_what_it_could_not_know_when_time_is_up() {
    let mut job = running(MembershipTerms { max_changes: 9, ..terms(1, 4, 0) }, 3);
    job.on(lost(2, true), 3 * SECOND);
    job.on(lost(3, true), 3 * SECOND);
    job.on(stopped(1), 3 * SECOND);
    let actions = job.on(Event::Tick, 700 * SECOND);
    let [Action::Fail { reason }] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(reason.starts_with("gave up after 600 s only 1 of the 3 nodes"), "{reason}");
    assert!(reason.contains("may have continued without this side"), "{reason}");
}

fn resumption(size: u64, dead: &[u64]) -> Resumption {
    Resumption {
        round: 5,
        restarts: 2,
        changes: 1,
        size: size as usize,
        order: (0..size).map(LauncherId).collect(),
        host: LauncherId(0),
        dead: dead.iter().copied().map(LauncherId).collect(),
        reason: "the node that led the job was lost".to_owned(),
    }
}

#[test]
fn a_job_that_was_taken_over_goes_on_where_it_was() {
    let mut job = Membership::resume(terms(2, 4, 3), resumption(4, &[0]), SECOND);
    assert!(job.on(member_of(1, 5), SECOND).iter().all(|action| matches!(action, Action::Waiting { .. })));
    assert!(members(&job.on(member_of(2, 5), SECOND)).is_none(), "the fourth is still waited for");
    let actions = job.on(member_of(3, 5), SECOND);
    let [Action::Start { round: 6, restarts: 2, changes: 2, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(reason_to_start(&actions), Some((3, "the node that led the job was lost")));

    // One of them does not come: the others wait for it for a while only.
    let mut job = Membership::resume(terms(2, 4, 3), resumption(4, &[0]), SECOND);
    job.on(member_of(1, 5), SECOND);
    job.on(member_of(2, 5), SECOND);
    assert_eq!(job.wake_at(), Some(6 * SECOND));
    assert_eq!(reason_to_start(&job.on(Event::Tick, 6 * SECOND)).map(|(nodes, _)| nodes), Some(2));
}

#[test]
fn a_job_that_was_taken_over_after_silence_needs_a_majority() {
    let mut job = Membership::resume(terms(1, 4, 3), resumption(2, &[]), SECOND);
    job.on(member_of(1, 5), SECOND);
    let actions = job.on(Event::Tick, 60 * SECOND);
    assert!(members(&actions).is_none(), "half of two without the old host");
    // A newcomer is no witness.
    assert!(members(&job.on(joined(9, "new", 1, 0), 61 * SECOND)).is_none());
    assert!(members(&job.on(Event::Dead { launcher: LauncherId(0) }, 62 * SECOND)).is_none());
    assert!(members(&job.on(member_of(0, 5), 63 * SECOND)).is_some());
}

#[test]
fn a_node_that_still_ends_its_workers_is_waited_for() {
    let mut job = Membership::resume(terms(1, 4, 3), resumption(2, &[0]), SECOND);
    let Event::Joined { node, facts } = member_of(1, 5) else { unreachable!() };
    assert_eq!(job.on(Event::Joined { node, facts: NodeFacts { busy: true, ..facts } }, SECOND), []);
    assert!(members(&job.on(stopped(1), 20 * SECOND)).is_some());
}

#[test]
fn a_node_from_a_newer_round_is_not_led_by_an_older_one() {
    let mut job = running(terms(1, 3, 0), 1);
    let actions = job.on(member_of(7, 9), 3 * SECOND);
    let [Action::Refuse { reason, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(reason, "the node took part in round 9, which is unknown here");
}

/// A launcher in the simulation: what it would do with the coordinator's orders, and what is on its way to it.
#[derive(Debug, Default)]
struct Launcher {
    /// Round of the workers alive.
    working: Option<u64>,
    orders: VecDeque<Order>,
    finished: bool,
}

#[derive(Debug)]
enum Order {
    Start(u64),
    Stop,
}

/// Random nodes join, fail, finish, vanish and obey with delay; the invariants of the module hold after every event.
struct Simulation {
    seed: u64,
    random: Random,
    job: Membership,
    terms: MembershipTerms,
    now: Duration,
    launchers: BTreeMap<NodeId, Launcher>,
    next_node: u64,
    rounds: u64,
    ended: Option<Action>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Random::new(seed);
        let min_nodes = 1 + random.below(4);
        let terms = terms(min_nodes, min_nodes + random.below(3), random.below(4) as u32);
        let job = Membership::new(terms.clone(), Duration::ZERO);
        Simulation {
            seed,
            random,
            job,
            terms,
            now: Duration::ZERO,
            launchers: BTreeMap::new(),
            next_node: 0,
            rounds: 0,
            ended: None,
        }
    }

    fn tell(&mut self, event: Event) {
        for action in self.job.on(event, self.now) {
            assert!(self.ended.is_none() || matches!(action, Action::Refuse { .. }), "M5, SEED={}", self.seed);
            match action {
                Action::Start { round, members, world_size, restarts, changes, .. } => {
                    self.check_start(&members, world_size, restarts, changes);
                    self.rounds += 1;
                    for member in members {
                        let launcher = self.launchers.get_mut(&member.node).expect("a member is there");
                        launcher.orders.push_back(Order::Start(round));
                    }
                }
                Action::Stop { nodes, .. } => {
                    for node in nodes {
                        self.launchers.get_mut(&node).expect("told to stop").orders.push_back(Order::Stop);
                    }
                }
                Action::Refuse { node, .. } => drop(self.launchers.remove(&node)),
                Action::Waiting { .. } | Action::Commit { .. } => {}
                end @ (Action::Fail { .. } | Action::Complete) => self.ended = Some(end),
            }
        }
    }

    fn check_start(&self, members: &[RoundMember], world_size: usize, restarts: u32, changes: u32) {
        let seed = self.seed;
        assert!((self.terms.min_nodes..=self.terms.max_nodes).contains(&members.len()), "M2, SEED={seed}");
        let within = restarts <= self.terms.max_restarts && changes <= self.terms.max_changes;
        assert!(within && self.rounds == u64::from(restarts + changes), "M3, SEED={seed}");
        let mut next_rank = 0;
        for (group_rank, member) in members.iter().enumerate() {
            let launcher = &self.launchers[&member.node];
            let idle = launcher.working.is_none() && launcher.orders.is_empty();
            assert!(idle, "M1: node {:?} has workers or unread orders, SEED={seed}", member.node);
            assert_eq!((member.group_rank, member.first_rank), (group_rank, next_rank), "M4, SEED={seed}");
            next_rank += member.workers;
        }
        assert_eq!(world_size, next_rank, "M4, SEED={seed}");
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(20_000) as u64);
        if self.launchers.is_empty() || (self.launchers.len() < 8 && self.random.once_in(6)) {
            return self.join();
        }
        let nodes: Vec<NodeId> = self.launchers.keys().copied().collect();
        let node = *self.random.pick(&nodes);
        let launcher = self.launchers.get_mut(&node).expect("picked");
        if let Some(order) = launcher.orders.pop_front() {
            return match order {
                Order::Start(round) => launcher.working = Some(round),
                Order::Stop => {
                    launcher.working = None;
                    launcher.finished = false;
                    self.tell(Event::Stopped { node });
                }
            };
        }
        let works = launcher.working.is_some() && !launcher.finished;
        match self.random.below(12) {
            0..=4 if works => {
                launcher.finished = true;
                launcher.working = None;
                self.tell(Event::Finished { node });
            }
            5 if works => self.tell(Event::Failed { node, cause: "a worker failed".to_owned() }),
            6 if node.0 > 0 && self.random.once_in(4) => {
                self.launchers.remove(&node);
                let cause = "simulated".to_owned();
                let left = self.random.once_in(2);
                let silent = self.random.once_in(3);
                self.tell(match left {
                    true => Event::Left { node, cause, failed: false },
                    false => Event::Lost { node, cause, silent },
                });
            }
            _ => self.tell(Event::Tick),
        }
    }

    fn join(&mut self) {
        let node = NodeId(self.next_node);
        self.next_node += 1;
        self.launchers.insert(node, Launcher::default());
        let address = if node.0 == 0 { "host" } else { "other" };
        let workers = 1 + self.random.below(3);
        let event = joined(node.0, address, workers, self.random.below(3));
        self.tell(event);
    }
}

#[test]
fn random_schedules_keep_the_invariants_and_every_job_ends() {
    for seed in seeds(3000, 300, &[]) {
        let mut simulation = Simulation::new(seed);
        // Nodes keep coming and time passes: a job must complete, fail or run out of time.
        for _ in 0..5000 {
            if simulation.ended.is_some() {
                break;
            }
            simulation.step();
        }
        assert!(simulation.ended.is_some(), "the job never ended, SEED={seed}: {:?}", simulation.job);
    }
}
