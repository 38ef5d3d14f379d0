//! Random clusters and queues: S1 to S3 hold whatever comes.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::link::Serves;
use instep_policy::schedule::{Fitting, Rule, Schedule};
use instep_testkit::{Random, seeds};

use crate::schedule::world::World;

fn random_world(random: &mut Random) -> World {
    let sizes: Vec<u32> = (0..random.below(7)).map(|_| *random.pick(&[1, 2, 4, 4, 8])).collect();
    let mut world = World::of(&sizes, random.once_in(2));
    let settings = &mut world.pool().settings;
    if random.once_in(3) {
        settings.rule = Rule::FairShare;
    }
    settings.fitting = *random.pick(&[Fitting::Best, Fitting::Worst]);
    settings.heterogeneous = random.once_in(3);
    settings.most_without_slots = 1 + random.below(3);
    for agent in &mut world.pool().agents {
        agent.takes_work = !random.once_in(6);
        agent.serves = match random.below(6) {
            0 => Serves::First,
            1 => Serves::User { name: "bob".to_owned() },
            _ => Serves::Everybody,
        };
        agent.slots.iter_mut().for_each(|slot| slot.enabled = !random.once_in(10));
    }
    for index in 0..1 + random.below(6) {
        let job = world.job(&format!("job {index}"), *random.pick(&[10, 42, 42, 60]));
        job.weight = *random.pick(&[0.5, 1.0, 3.0]);
        job.max_slots = if random.once_in(4) { Some(random.below(6)) } else { None };
    }
    occupy(&mut world, random);
    for index in 0..random.below(20) {
        let job = format!("job {}", random.below(world.queue.jobs.len()));
        let request = world.asks(&job, &format!("w{index}"), *random.pick(&[0, 1, 1, 2, 3, 4, 6, 8, 16]));
        request.preemptible = !random.once_in(5);
        request.single_node = random.once_in(5);
        request.user = (*random.pick(&["alice", "bob"])).to_owned();
        if random.once_in(5) {
            request.excluded.insert("a1".to_owned());
        }
    }
    world
}

/// Running work here and there: never two on one slot.
fn occupy(world: &mut World, random: &mut Random) {
    let agents: Vec<(String, u32)> =
        world.pool().agents.iter().map(|agent| (agent.id.clone(), agent.slots.len() as u32)).collect();
    for (agent, size) in agents {
        let mut next = 0;
        while next < size && !random.once_in(4) {
            let end = (next + 1 + random.below(4) as u32).min(size);
            let job = format!("job {}", random.below(world.queue.jobs.len()));
            let holder = world.holds(&job, &format!("r {agent} {next}"), &agent, next..end);
            holder.preemptible = !random.once_in(4);
            holder.stopping = random.once_in(5);
            next = end;
        }
    }
}

/// S1: a slot is given only if nobody has it, it is enabled, and its machine takes work and serves the request's user.
fn gives_only_what_is_free(world: &World, pass: &Schedule, seed: u64) {
    let mut taken: BTreeSet<(&str, u32)> = BTreeSet::new();
    let held = world.queue.running.iter().flat_map(|holder| &holder.placement);
    for grant in held {
        taken.extend(grant.slots.iter().map(|slot| (grant.agent.as_str(), *slot)));
    }
    let pool = &world.cluster.pools["default"];
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for start in &pass.start {
        let request = world.queue.waiting.iter().find(|request| request.id == start.request).expect("it waited");
        let given: usize = start.placement.iter().map(|grant| grant.slots.len()).sum();
        assert_eq!(given, request.slots, "S1, SEED={seed}: all or nothing");
        assert!(!request.single_node || start.placement.len() == 1, "S1, SEED={seed}");
        for grant in &start.placement {
            let agent = pool.agents.iter().find(|agent| agent.id == grant.agent).expect("it is there");
            assert!(agent.takes_work && !request.excluded.contains(&agent.id), "S1, SEED={seed}");
            let served = match &agent.serves {
                Serves::Everybody => &request.user,
                Serves::User { name } => name.as_str(),
                Serves::First => first.entry(&agent.id).or_insert(&request.user),
            };
            assert_eq!(served, request.user, "S1, SEED={seed}: agent {} serves one user", agent.id);
            for slot in &grant.slots {
                assert!(agent.slots.iter().any(|it| it.id == *slot && it.enabled), "S1, SEED={seed}");
                assert!(taken.insert((&agent.id, *slot)), "S1, SEED={seed}: slot {slot} of {} twice", agent.id);
            }
        }
    }
}

/// S2: what is asked to stop can be asked, and somebody at least as important waits.
fn asks_only_whom_it_may(world: &World, pass: &Schedule, seed: u64) {
    let mut asked = BTreeSet::new();
    for preempt in &pass.preempt {
        assert!(asked.insert(&preempt.allocation), "S2, SEED={seed}: asked twice");
        let holder = world.queue.running.iter().find(|holder| holder.id == preempt.allocation).expect("it runs");
        assert!(holder.preemptible && !holder.stopping, "S2, SEED={seed}");
        let own = world.queue.jobs[&holder.job].priority;
        let rule = world.cluster.pools["default"].settings.rule;
        let somebody = pass.waiting.iter().any(|waiting| {
            let request = world.queue.waiting.iter().find(|request| request.id == waiting.request).expect("it waits");
            world.queue.jobs[&request.job].priority <= own && request.job != holder.job
        });
        match rule {
            Rule::Priority { preemption } => assert!(preemption && somebody, "S2, SEED={seed}"),
            // A job gives back what is above its limit, whether or not others want it.
            Rule::FairShare => {}
        }
    }
}

#[test]
fn random_clusters_keep_every_promise() {
    for seed in seeds(3000, 1000, &[]) {
        let mut random = Random::new(seed);
        let world = random_world(&mut random);
        let pass = world.pass();
        gives_only_what_is_free(&world, &pass, seed);
        asks_only_whom_it_may(&world, &pass, seed);
        let mut answers: BTreeMap<&str, usize> = BTreeMap::new();
        let starting = pass.start.iter().map(|start| start.request.as_str());
        for id in starting.chain(pass.waiting.iter().map(|waiting| waiting.request.as_str())) {
            *answers.entry(id).or_default() += 1;
        }
        for request in &world.queue.waiting {
            assert_eq!(answers.get(request.id.as_str()), Some(&1), "S3, SEED={seed}: {}", request.id);
        }
        assert!(pass.waiting.iter().all(|waiting| waiting.reason.to_string().starts_with("waiting: ")));
        assert_eq!(world.pass(), pass, "SEED={seed}: the same question has the same answer");
    }
}
