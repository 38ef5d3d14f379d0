//! Where a request fits: on one machine, or evenly on several that are idle.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::board::{Board, Machine, hash};
use super::model::{Fitting, Request, Settings};

/// How many slots on which machines, in the order of ranks.
pub(super) type Fit = Vec<(usize, usize)>;

/// Finds machines with room for all slots of a request.
pub(super) fn find(board: &Board, request: &Request, settings: &Settings) -> Option<Fit> {
    if request.slots == 0 {
        return without_slots(board, request, settings);
    }
    on_one(board, request, settings).or_else(|| {
        let may_spread = request.slots > 1 && !request.single_node;
        may_spread.then(|| on_several(board, request, settings)).flatten()
    })
}

/// The machines that may take the request.
fn candidates<'a>(board: &'a Board, request: &'a Request) -> impl Iterator<Item = (usize, &'a Machine)> {
    board.machines.iter().enumerate().filter(|(index, machine)| {
        machine.takes_work
            && machine.serves(&request.user)
            && (request.excluded.is_empty() || !request.excluded.contains(board.name(*index)))
    })
}

fn on_one(board: &Board, request: &Request, settings: &Settings) -> Option<Fit> {
    let wanted = hash(&request.id);
    let order = |one: &Machine, other: &Machine| {
        let by_room = match settings.fitting {
            Fitting::Best => one.free.cmp(&other.free),
            // The larger share of free slots first, without dividing.
            Fitting::Worst => (other.free * one.usable).cmp(&(one.free * other.usable)),
        };
        by_room.then_with(|| distance(one, wanted).cmp(&distance(other, wanted)))
    };
    candidates(board, request)
        .filter(|(_, machine)| machine.free >= request.slots)
        .min_by(|(_, one), (_, other)| order(one, other))
        .map(|(index, _)| vec![(index, request.slots)])
}

/// How far a machine is from a request, by their hashes: spreads equal choices over the machines.
fn distance(machine: &Machine, wanted: u64) -> u64 {
    machine.hash.wrapping_sub(wanted)
}

fn on_several(board: &Board, request: &Request, settings: &Settings) -> Option<Fit> {
    let mut idle: Vec<(usize, usize)> = candidates(board, request)
        .filter(|(_, machine)| machine.usable > 0 && machine.free == machine.usable)
        .map(|(index, machine)| (index, machine.usable))
        .collect();
    let mut by_size: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, size) in &idle {
        by_size.entry(*size).or_default().push(*index);
    }
    let even = by_size.iter().rev().find_map(|(size, machines)| {
        let count = request.slots / size;
        let fits = request.slots.is_multiple_of(*size) && machines.len() >= count;
        fits.then(|| machines[..count].iter().map(|index| (*index, *size)).collect())
    });
    if even.is_some() || !settings.heterogeneous {
        return even;
    }
    idle.sort_by(|(_, one), (_, other)| other.cmp(one));
    let mut left = request.slots;
    idle.retain(|(_, size)| {
        let takes = *size <= left;
        left -= if takes { *size } else { 0 };
        takes
    });
    (left == 0).then_some(idle)
}

fn without_slots(board: &Board, request: &Request, settings: &Settings) -> Option<Fit> {
    let wanted = hash(&request.id);
    let emptier = |one: &Machine, other: &Machine| -> Ordering {
        one.zero_slot_tasks
            .cmp(&other.zero_slot_tasks)
            .then_with(|| distance(one, wanted).cmp(&distance(other, wanted)))
    };
    candidates(board, request)
        .filter(|(_, machine)| machine.zero_slot_tasks < settings.most_without_slots)
        .min_by(|(_, one), (_, other)| emptier(one, other))
        .map(|(index, _)| vec![(index, 0)])
}
