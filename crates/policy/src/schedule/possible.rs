//! What a pool could give one task if nothing else ran.

use std::collections::{BTreeMap, HashMap};

use super::board::Board;
use super::model::{Request, Settings};
use super::view::{Shape, shape};

/// The machines that a task may use, by their number of slots.
fn sizes(board: &Board, request: &Request, only_working: bool) -> BTreeMap<usize, usize> {
    let mut sizes = BTreeMap::new();
    for (index, machine) in board.machines.iter().enumerate() {
        let allowed = (machine.takes_work || !only_working) && machine.serves(&request.user);
        if allowed && machine.usable > 0 && !request.excluded.contains(board.name(index)) {
            *sizes.entry(machine.usable).or_default() += 1;
        }
    }
    sizes
}

/// Whether requests would fit if nothing else ran, remembered for alike ones.
#[derive(Default)]
pub(super) struct Possible<'a> {
    known: HashMap<Shape<'a>, bool>,
}

impl<'a> Possible<'a> {
    pub fn ever(&mut self, board: &Board, request: &'a Request, settings: &Settings) -> bool {
        *self.known.entry(shape(request)).or_insert_with(|| ever(board, request, settings))
    }
}

/// Whether a request would fit if nothing else ran.
fn ever(board: &Board, request: &Request, settings: &Settings) -> bool {
    fits(&sizes(board, request, true), request, settings)
}

/// Whether it would fit if also those machines took work that do not at present.
pub(super) fn with_all_machines(board: &Board, request: &Request, settings: &Settings) -> bool {
    fits(&sizes(board, request, false), request, settings)
}

fn fits(sizes: &BTreeMap<usize, usize>, request: &Request, settings: &Settings) -> bool {
    let slots = request.slots;
    if sizes.keys().next_back().is_some_and(|largest| *largest >= slots) {
        return true;
    }
    if request.single_node {
        return false;
    }
    let even = sizes.iter().any(|(size, count)| slots.is_multiple_of(*size) && slots / size <= *count);
    even || (settings.heterogeneous && greedy(sizes, slots))
}

fn greedy(sizes: &BTreeMap<usize, usize>, slots: usize) -> bool {
    let left = sizes.iter().rev().fold(slots, |left, (size, count)| left - size * (left / size).min(*count));
    left == 0
}

/// The most slots that one task of this kind could ever have.
pub(super) fn largest(board: &Board, request: &Request, settings: &Settings) -> usize {
    let sizes = sizes(board, request, true);
    let on_one = sizes.keys().next_back().copied().unwrap_or(0);
    if request.single_node {
        return on_one;
    }
    let even = sizes.iter().map(|(size, count)| size * count).max().unwrap_or(0);
    let all = if settings.heterogeneous { sizes.iter().map(|(size, count)| size * count).sum() } else { 0 };
    on_one.max(even).max(all)
}

/// The machines in words: "2 agents with 4 slots, 1 agent with 8".
pub(super) fn machines_in_words(board: &Board, request: &Request) -> String {
    let sizes = sizes(board, request, true);
    let parts = sizes.iter().rev().map(|(size, count)| {
        let agents = if *count == 1 { "agent" } else { "agents" };
        format!("{count} {agents} with {}", super::reason::slots(*size))
    });
    parts.collect::<Vec<_>>().join(", ")
}
