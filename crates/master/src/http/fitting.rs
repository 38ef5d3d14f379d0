//! Whether what a task asks for can ever be had.

use instep_api::config::Environment;

use super::call::Call;
use super::failure::Failure;
use super::pools::named_or_default;
use crate::engines::Container;

/// Slots that are asked for.
pub(super) struct Wish<'a> {
    /// Empty for the default one.
    pub pool: &'a str,
    pub slots: u32,
    /// Whether they must be those of one machine.
    pub one_machine: bool,
    /// The slots of each node, where the configuration says other than the pool.
    pub slots_per_node: Option<u32>,
    /// What it runs in.
    pub environment: &'a Environment,
}

/// Refuses what can never be had, and gives what whoever asks should know of when it can.
pub(super) async fn check(call: &Call, wish: Wish<'_>) -> Result<Vec<String>, Failure> {
    let room = call.application.cluster.room_in(wish.pool.to_owned()).await?.ok_or_else(|| {
        let what = format!("invalid resource configuration: resource pool '{}' not found", wish.pool);
        Failure::invalid(format!("{what}\nhint: `instep resource-pool list` shows the pools"))
    })?;
    let container = Container::of(wish.environment, wish.slots > 0);
    let pool = named_or_default(wish.pool).to_owned();
    if let Some(what) = call.application.cluster.container_objection(pool, container).await? {
        return Err(Failure::invalid(what));
    }
    let slots = wish.slots as usize;
    let per_node = room.per_node.map(|per_node| wish.slots_per_node.map_or(per_node, |wished| wished as usize));
    if let Some(per_node) = per_node.filter(|per_node| slots > *per_node && !slots.is_multiple_of(*per_node)) {
        return Err(Failure::invalid(format!(
            "{slots} slots cannot be shared out evenly over nodes of {per_node}, as pool {} has them\nhint: ask for a \
             multiple of {per_node}, or set `slurm: {{slots_per_node: …}}` to a number that divides {slots}",
            wish.pool
        )));
    }
    let largest = per_node.or(room.largest);
    if let Some(largest) = largest.filter(|largest| wish.one_machine && slots > *largest) {
        return Err(Failure::invalid(format!(
            "request unfulfillable, please try requesting less slots: {slots} are wanted on one machine, and the largest of \
             the pool has {largest}"
        )));
    }
    let exceeded = slots > room.slots;
    Ok(exceeded.then(|| "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED".to_owned()).into_iter().collect())
}
