//! The slots of one pool, and who has them: a copy that a pass may write on.

use std::collections::HashMap;
use std::sync::Arc;

use instep_api::link::Serves;

use super::model::{Agent, Grant, Holder};

/// Who has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occupant {
    /// Nobody.
    Free,
    /// Nobody may.
    Disabled,
    /// The running allocation of this index.
    Holder(u32),
    /// Somebody whom this pass gave it to.
    Promised,
}

/// One machine; its slots lie at `first..first + count` of the board.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    first: u32,
    count: u32,
    /// Slots that nobody has.
    pub free: usize,
    /// Slots that may be used.
    pub usable: usize,
    /// Tasks without slots.
    pub zero_slot_tasks: usize,
    pub takes_work: bool,
    /// The only user whose tasks it takes.
    tenant: Tenant,
    pub hash: u64,
}

/// Whose tasks a machine takes.
#[derive(Debug, Clone)]
enum Tenant {
    Everybody,
    User(Arc<str>),
    /// Whoever comes first, and nobody else from then on.
    First,
}

impl Tenant {
    fn of(serves: &Serves) -> Tenant {
        match serves {
            Serves::Everybody => Tenant::Everybody,
            Serves::User { name } => Tenant::User(name.as_str().into()),
            Serves::First => Tenant::First,
        }
    }
}

impl Machine {
    /// Whether it takes tasks of a user.
    pub fn serves(&self, user: &str) -> bool {
        match &self.tenant {
            Tenant::Everybody | Tenant::First => true,
            Tenant::User(name) => **name == *user,
        }
    }

    /// The only user that it serves, if there is one by now.
    pub fn served(&self) -> Option<&str> {
        match &self.tenant {
            Tenant::User(name) => Some(name),
            Tenant::Everybody | Tenant::First => None,
        }
    }

    /// Takes a user in.
    pub fn admit(&mut self, user: &str) {
        if matches!(self.tenant, Tenant::First) {
            self.tenant = Tenant::User(user.into());
        }
    }
}

/// The names of machines and numbers of slots, which a pass does not change.
#[derive(Debug)]
struct Names {
    agents: Vec<String>,
    slots: Vec<u32>,
}

/// All machines of a pool.
#[derive(Debug, Clone)]
pub(super) struct Board {
    names: Arc<Names>,
    pub machines: Vec<Machine>,
    occupants: Vec<Occupant>,
    /// Where each holder sits: indices of slots.
    slots_held: Arc<Vec<Vec<u32>>>,
    /// Which machine each slot belongs to.
    machine_of: Arc<Vec<u32>>,
}

impl Board {
    /// The pool as it is. Machines are ordered by name, so that the order of agents does not matter.
    pub fn new<'a>(agents: &'a [Agent], holders: impl Iterator<Item = &'a Holder>) -> Board {
        let mut sorted: Vec<&Agent> = agents.iter().collect();
        sorted.sort_by(|one, other| one.id.cmp(&other.id));
        let mut names = Names { agents: Vec::new(), slots: Vec::new() };
        let (mut machines, mut occupants, mut machine_of) = (Vec::new(), Vec::new(), Vec::new());
        let mut by_slot: HashMap<(&str, u32), u32> = HashMap::new();
        let mut by_name: HashMap<&str, usize> = HashMap::new();
        for agent in sorted {
            let first = occupants.len() as u32;
            for slot in &agent.slots {
                by_slot.insert((&agent.id, slot.id), occupants.len() as u32);
                occupants.push(if slot.enabled { Occupant::Free } else { Occupant::Disabled });
                machine_of.push(machines.len() as u32);
                names.slots.push(slot.id);
            }
            let usable = agent.slots.iter().filter(|slot| slot.enabled).count();
            by_name.insert(&agent.id, machines.len());
            names.agents.push(agent.id.clone());
            machines.push(Machine {
                first,
                count: agent.slots.len() as u32,
                free: usable,
                usable,
                zero_slot_tasks: 0,
                takes_work: agent.takes_work,
                tenant: Tenant::of(&agent.serves),
                hash: hash(&agent.id),
            });
        }
        let mut slots_held = Vec::new();
        for (index, holder) in holders.enumerate() {
            let mut held = Vec::new();
            for grant in &holder.placement {
                if grant.slots.is_empty()
                    && let Some(machine) = by_name.get(grant.agent.as_str())
                {
                    machines[*machine].zero_slot_tasks += 1;
                }
                for slot in &grant.slots {
                    let Some(slot_index) = by_slot.get(&(grant.agent.as_str(), *slot)).copied() else { continue };
                    held.push(slot_index);
                    // A slot that was disabled under its holder is not given to anybody after it.
                    if occupants[slot_index as usize] == Occupant::Free {
                        occupants[slot_index as usize] = Occupant::Holder(index as u32);
                        machines[machine_of[slot_index as usize] as usize].free -= 1;
                    }
                }
            }
            slots_held.push(held);
        }
        Board {
            names: Arc::new(names),
            machines,
            occupants,
            slots_held: Arc::new(slots_held),
            machine_of: Arc::new(machine_of),
        }
    }

    pub fn name(&self, machine: usize) -> &str {
        &self.names.agents[machine]
    }

    /// How many slots this holder has.
    pub fn held(&self, holder: usize) -> usize {
        self.slots_held[holder].len()
    }

    /// The machines on which this holder has slots; one may come several times.
    pub fn machines_of(&self, holder: usize) -> impl Iterator<Item = usize> + '_ {
        self.slots_held[holder].iter().map(|slot_index| self.machine_of[*slot_index as usize] as usize)
    }

    /// As if this holder had gone.
    pub fn remove(&mut self, holder: usize) {
        for slot_index in self.slots_held[holder].iter().copied() {
            if self.occupants[slot_index as usize] == Occupant::Holder(holder as u32) {
                self.occupants[slot_index as usize] = Occupant::Free;
                self.machines[self.machine_of[slot_index as usize] as usize].free += 1;
            }
        }
    }

    /// Gives slots on a machine away: those that are free on `now` first, if that is another board, so that as few
    /// holders as possible have to go.
    pub fn promise(&mut self, machine: usize, count: usize, now: Option<&Board>) -> Grant {
        let Machine { first, count: all, .. } = &self.machines[machine];
        let (first, all) = (*first, *all);
        let mut chosen: Vec<usize> = (first as usize..(first + all) as usize)
            .filter(|slot_index| self.occupants[*slot_index] == Occupant::Free)
            .collect();
        if let Some(now) = now {
            chosen.sort_by_key(|slot_index| now.occupants[*slot_index] != Occupant::Free);
        }
        chosen.truncate(count);
        chosen.sort_unstable();
        for slot_index in &chosen {
            self.occupants[*slot_index] = Occupant::Promised;
        }
        self.machines[machine].free -= chosen.len();
        let slots = chosen.iter().map(|slot_index| self.names.slots[*slot_index]).collect();
        Grant { agent: self.names.agents[machine].clone(), slots }
    }

    /// Promises what `other`, a copy of this board from which holders were removed, promised on these machines. Slots of
    /// holders that have not gone yet are promised too; who has them is the answer.
    pub fn adopt(&mut self, other: &Board, machines: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut in_the_way = Vec::new();
        for index in machines {
            self.machines[index].tenant = other.machines[index].tenant.clone();
            let Machine { first, count, .. } = &self.machines[index];
            let (first, count) = (*first, *count);
            for slot_index in first as usize..(first + count) as usize {
                if other.occupants[slot_index] != Occupant::Promised {
                    continue;
                }
                match self.occupants[slot_index] {
                    Occupant::Free => self.machines[index].free -= 1,
                    Occupant::Holder(holder) => in_the_way.push(holder as usize),
                    Occupant::Disabled | Occupant::Promised => {}
                }
                self.occupants[slot_index] = Occupant::Promised;
            }
        }
        in_the_way.sort_unstable();
        in_the_way.dedup();
        in_the_way
    }

    /// Whether a machine that takes work takes a user's.
    pub fn serves(&self, user: &str) -> bool {
        self.machines.iter().any(|machine| machine.takes_work && machine.serves(user))
    }

    /// All slots that may be used, on machines that take work.
    pub fn capacity(&self) -> usize {
        self.machines.iter().filter(|machine| machine.takes_work).map(|machine| machine.usable).sum()
    }

    /// Those that nobody has on machines that serve a user, and the most of them on one.
    pub fn free(&self, user: &str) -> (usize, usize) {
        let working = self.machines.iter().filter(|machine| machine.takes_work && machine.serves(user));
        working.fold((0, 0), |(sum, most), machine| (sum + machine.free, most.max(machine.free)))
    }
}

/// FNV-1a, its bits mixed once more so that names that differ in one letter end far apart. The same on every machine and
/// for ever, so that passes can be repeated.
pub(super) fn hash(text: &str) -> u64 {
    let sum = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}
