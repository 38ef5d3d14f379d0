//! Why something waits, as a sentence for people.

use std::collections::HashMap;
use std::fmt;

use super::model::{Cluster, Job, Request};
use super::possible;
use super::view::{Candidate, Decision, Shape, View, shape};

/// Why a request waits. Displays as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Reason {
    /// Its pool does not exist.
    NoSuchPool {
        pool: String,
        /// Those that do.
        others: Vec<String>,
    },
    /// Its pool has no machine that takes work.
    NoAgents {
        pool: String,
        /// Machines that do not take work at present.
        idle: usize,
    },
    /// Every machine that takes work serves somebody else.
    ServesOthers {
        pool: String,
        /// Whose request it is.
        user: String,
        /// The machines, each with whom it serves.
        machines: Vec<(String, String)>,
    },
    /// No arrangement of the pool could run it.
    Impossible {
        /// What it needs.
        slots: usize,
        /// On one machine.
        single_node: bool,
        pool: String,
        /// The most that one task can have there.
        largest: usize,
        /// What machines there are.
        machines: String,
        /// Machines that it must not run on.
        excluded: Vec<String>,
        /// How many machines serve only somebody else.
        reserved: usize,
        /// It would fit if all machines took work.
        disabled: bool,
    },
    /// There is not enough room at present.
    NoRoom {
        /// What it needs.
        slots: usize,
        pool: String,
        /// Free slots there.
        free: usize,
        /// The most on one machine.
        free_on_one: usize,
        /// Machines that it must not run on.
        excluded: Vec<String>,
        /// How many machines serve only somebody else.
        reserved: usize,
        /// Who else waits.
        ahead: Ahead,
    },
    /// Somebody more important has no room.
    Behind {
        /// What it needs.
        slots: usize,
        name: String,
        /// Their priority.
        priority: u32,
        /// What they need.
        needs: usize,
    },
    /// Others are stopping, and their slots are kept for it.
    MakingRoom {
        /// What it needs.
        slots: usize,
        /// The jobs that make room.
        jobs: Vec<String>,
    },
    /// It starts when work that was asked to stop has.
    NextPass,
    /// Its job holds its share.
    ShareSpent {
        /// What it needs.
        slots: usize,
        /// The job's share.
        offered: usize,
        /// What the job holds.
        held: usize,
        /// The most that the job wants to hold.
        max_slots: Option<usize>,
    },
    /// Every machine has all the tasks without slots that it takes.
    NoRoomWithoutSlots {
        pool: String,
        /// How many one takes.
        most: usize,
    },
}

/// Who waits before a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ahead {
    /// The first of them.
    pub first: Option<String>,
    /// How many jobs.
    pub jobs: usize,
}

/// "1 slot", "8 slots".
pub(super) fn slots(count: usize) -> String {
    if count == 1 { "1 slot".to_owned() } else { format!("{count} slots") }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("waiting: ")?;
        match self {
            Reason::NoSuchPool { pool, others } if others.is_empty() => {
                write!(formatter, "there is no pool {pool}, and no other pool; hint: start an agent")
            }
            Reason::NoSuchPool { pool, others } => {
                write!(formatter, "there is no pool {pool}; hint: there is {}", others.join(", "))
            }
            Reason::NoAgents { pool, idle: 0 } => {
                write!(formatter, "pool {pool} has no agents; hint: start one with `instep agent`")
            }
            Reason::NoAgents { pool, idle: 1 } => {
                write!(formatter, "the agent of pool {pool} takes no work (disabled, draining or offline)")
            }
            Reason::NoAgents { pool, idle } => {
                write!(formatter, "none of the {idle} agents of pool {pool} takes work (disabled, draining or offline)")
            }
            Reason::ServesOthers { pool, user, machines } => serves_others(formatter, pool, user, machines),
            Reason::Impossible {
                slots: needed,
                single_node,
                pool,
                largest,
                machines,
                excluded,
                reserved,
                disabled,
            } => {
                let suffix = if *single_node { " on one agent" } else { "" };
                write!(formatter, "needs {}{suffix}", slots(*needed))?;
                if *needed > *largest {
                    write!(formatter, ", but pool {pool} can give one task at most {largest}")?;
                } else {
                    write!(formatter, ", which pool {pool} cannot divide evenly over its agents")?;
                }
                if !machines.is_empty() {
                    write!(formatter, " (it has {machines})")?;
                }
                exclusions(formatter, excluded)?;
                reservations(formatter, *reserved)?;
                if *disabled {
                    write!(formatter, "; it would fit if all agents were enabled and connected")?;
                }
                Ok(())
            }
            Reason::NoRoom { slots: needed, pool, free, free_on_one, excluded, reserved, ahead } => {
                write!(formatter, "needs {}, pool {pool} has {free} free", slots(*needed))?;
                if free >= needed {
                    write!(formatter, ", but at most {free_on_one} on one agent and too few idle agents")?;
                }
                exclusions(formatter, excluded)?;
                reservations(formatter, *reserved)?;
                match (&ahead.first, ahead.jobs) {
                    (None, _) => Ok(()),
                    (Some(first), 0 | 1) => write!(formatter, ", behind {first}"),
                    (Some(first), 2) => write!(formatter, ", behind {first} and 1 other job"),
                    (Some(first), jobs) => write!(formatter, ", behind {first} and {} other jobs", jobs - 1),
                }
            }
            Reason::Behind { slots: needed, name, priority, needs } => write!(
                formatter,
                "needs {}, behind {name} (priority {priority}), which waits for {}",
                slots(*needed),
                slots(*needs)
            ),
            Reason::MakingRoom { slots: needed, jobs } => {
                let verb = if jobs.len() == 1 { "is" } else { "are" };
                write!(formatter, "needs {}, which {} {verb} giving up", slots(*needed), jobs.join(", "))
            }
            Reason::NextPass => formatter.write_str("there is room, and it starts when others have stopped"),
            Reason::ShareSpent { slots: needed, offered, held, max_slots } => {
                write!(formatter, "needs {}, its job holds {held} of its fair share of {offered}", slots(*needed))?;
                max_slots.map_or(Ok(()), |most| write!(formatter, " (max_slots is {most})"))
            }
            Reason::NoRoomWithoutSlots { pool, most } => {
                write!(formatter, "every agent of pool {pool} already runs {most} tasks without slots, the maximum")
            }
        }
    }
}

fn exclusions(formatter: &mut fmt::Formatter<'_>, excluded: &[String]) -> fmt::Result {
    match excluded {
        [] => Ok(()),
        names => write!(formatter, ", and a log policy keeps it off {}", names.join(", ")),
    }
}

fn reservations(formatter: &mut fmt::Formatter<'_>, reserved: usize) -> fmt::Result {
    match reserved {
        0 => Ok(()),
        1 => write!(formatter, ", and 1 agent serves only another user"),
        count => write!(formatter, ", and {count} agents serve only other users"),
    }
}

/// Machines that are named; of more, how many there are.
const NAMED: usize = 3;

fn serves_others(
    formatter: &mut fmt::Formatter<'_>,
    pool: &str,
    user: &str,
    machines: &[(String, String)],
) -> fmt::Result {
    let named = machines.iter().take(NAMED).map(|(agent, served)| format!("agent {agent} serves only {served}"));
    let more = machines.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(", and {more} more agents serve others") } else { String::new() };
    let named = named.collect::<Vec<_>>().join(", ");
    write!(
        formatter,
        "no agent of pool {pool} serves user {user} ({named}{more}); hint: an agent without root serves one user, \
         unless it runs with --shared-uid; start one as root, or with --serve-user {user}"
    )
}

/// Says why requests wait, once the pass is over.
pub(super) struct Explainer<'v, 'a> {
    view: &'v View<'a>,
    /// By user: free slots, the most on one machine, and machines for somebody else.
    free: HashMap<&'a str, (usize, usize, usize)>,
    first: Option<&'a Job>,
    last: Option<&'a str>,
    jobs: usize,
    /// Why shapes can never fit, where they cannot.
    never: HashMap<Shape<'a>, Option<Reason>>,
}

impl<'v, 'a> Explainer<'v, 'a> {
    pub fn new(view: &'v View<'a>) -> Self {
        Explainer { view, free: HashMap::new(), first: None, last: None, jobs: 0, never: HashMap::new() }
    }

    /// Explains the next one in the queue.
    pub fn explain(&mut self, candidate: Candidate<'a>, decision: &Decision<'a>) -> Reason {
        let slots = candidate.request.slots;
        let reason = match decision {
            Decision::Start(_) | Decision::NextPass => Reason::NextPass,
            Decision::MakingRoom(holders) => Reason::MakingRoom { slots, jobs: self.names(holders) },
            Decision::Behind(first) => Reason::Behind {
                slots,
                name: first.job.name.clone(),
                priority: first.job.priority,
                needs: first.request.slots,
            },
            Decision::ShareSpent { offered, held } => {
                let max_slots = candidate.job.max_slots;
                Reason::ShareSpent { slots, offered: *offered, held: *held, max_slots }
            }
            Decision::NoRoom => self.no_room(candidate),
        };
        self.remember(candidate);
        reason
    }

    fn names(&self, holders: &[usize]) -> Vec<String> {
        let mut names: Vec<String> = holders.iter().map(|index| self.view.running[*index].job.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Requests of one job lie together, so counting changes counts jobs.
    fn remember(&mut self, candidate: Candidate<'a>) {
        self.first.get_or_insert(candidate.job);
        if self.last != Some(&candidate.request.job) {
            self.last = Some(&candidate.request.job);
            self.jobs += 1;
        }
    }

    fn ahead(&self, candidate: Candidate<'a>) -> Ahead {
        let own = usize::from(self.last == Some(&candidate.request.job));
        let jobs = self.jobs - own;
        Ahead { first: self.first.filter(|_| jobs > 0).map(|job| job.name.clone()), jobs }
    }

    fn no_room(&mut self, candidate: Candidate<'a>) -> Reason {
        let request = candidate.request;
        let view = self.view;
        let never = self.never.entry(shape(request)).or_insert_with(|| never(view, request));
        if let Some(reason) = never {
            return reason.clone();
        }
        let (free, free_on_one, reserved) = *self.free.entry(&request.user).or_insert_with(|| {
            let (free, on_one) = view.board.free(&request.user);
            (free, on_one, reserved(view, request))
        });
        let (pool, excluded) = (self.view.pool.to_owned(), request.excluded.iter().cloned().collect());
        Reason::NoRoom {
            slots: request.slots,
            pool,
            free,
            free_on_one,
            excluded,
            reserved,
            ahead: self.ahead(candidate),
        }
    }
}

/// How many machines take work, but not this user's.
fn reserved(view: &View<'_>, request: &Request) -> usize {
    view.board.machines.iter().filter(|machine| machine.takes_work && !machine.serves(&request.user)).count()
}

/// Why a request does not fit whatever else runs, if that is so.
fn never(view: &View<'_>, request: &Request) -> Option<Reason> {
    let (board, settings, pool) = (&view.board, view.settings, view.pool.to_owned());
    if !board.machines.iter().any(|machine| machine.takes_work) {
        return Some(Reason::NoAgents { pool, idle: board.machines.len() });
    }
    if !board.serves(&request.user) {
        let working = board.machines.iter().enumerate().filter(|(_, machine)| machine.takes_work);
        let served =
            working.filter_map(|(index, machine)| Some((board.name(index).to_owned(), machine.served()?.to_owned())));
        return Some(Reason::ServesOthers { pool, user: request.user.clone(), machines: served.collect() });
    }
    if request.slots == 0 {
        return Some(Reason::NoRoomWithoutSlots { pool, most: settings.most_without_slots });
    }
    let reason = || Reason::Impossible {
        slots: request.slots,
        single_node: request.single_node,
        pool,
        largest: possible::largest(board, request, settings),
        machines: possible::machines_in_words(board, request),
        excluded: request.excluded.iter().cloned().collect(),
        reserved: reserved(view, request),
        disabled: possible::with_all_machines(board, request, settings),
    };
    (!possible::Possible::default().ever(board, request, settings)).then(reason)
}

/// A request whose pool is not there.
pub(super) fn no_such_pool(cluster: &Cluster, job: &Job) -> Reason {
    Reason::NoSuchPool { pool: job.pool.clone(), others: cluster.pools.keys().cloned().collect() }
}
