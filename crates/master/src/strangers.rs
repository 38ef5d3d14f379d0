//! How many connections to tasks are open whose callers have not said who they are: strangers hold up nobody but each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::cluster::Target;
use crate::sync::lock;

/// Connections of one target at a time whose callers have not said who they are, and of all targets: a process has few
/// hundred files to spare.
const STRANGERS: usize = 128;
const ALL_STRANGERS: usize = 384;

/// How many callers are connected without a name, by target.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    connected: Mutex<HashMap<Target, usize>>,
}

impl Strangers {
    /// Lets one more in; `None` if there are too many.
    pub(crate) fn enter(self: &Arc<Strangers>, target: &Target) -> Option<Stranger> {
        let mut connected = lock(&self.connected);
        if connected.values().sum::<usize>() >= ALL_STRANGERS || connected.get(target).copied() >= Some(STRANGERS) {
            return None;
        }
        let count = connected.entry(target.clone()).or_default();
        *count += 1;
        Some(Stranger { all: Arc::clone(self), target: target.clone() })
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Stranger {
    all: Arc<Strangers>,
    target: Target,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut connected = lock(&self.all.connected);
        if let Some(count) = connected.get_mut(&self.target) {
            *count -= 1;
            if *count == 0 {
                connected.remove(&self.target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_of_one_target_hold_up_nobody_else() {
        let all = Arc::new(Strangers::default());
        let target = |task: &str| Target { task: task.to_owned(), port: None };
        let mut inside: Vec<Stranger> = (0..STRANGERS).map(|_| all.enter(&target("a")).unwrap()).collect();
        assert!(all.enter(&target("a")).is_none() && all.enter(&target("b")).is_some());
        inside.pop();
        inside.push(all.enter(&target("a")).unwrap());
        inside.extend((0..ALL_STRANGERS - STRANGERS).map(|number| all.enter(&target(&number.to_string())).unwrap()));
        assert!(all.enter(&target("b")).is_none(), "all of them together are bounded too");
        drop(inside);
        assert!(lock(&all.connected).is_empty());
    }
}
