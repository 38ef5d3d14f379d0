//! How much memory the server may count on.

use std::fs;

/// The memory of this machine, or of the control group that the process sees as its own, in bytes.
pub(crate) fn of_this_machine() -> Option<usize> {
    let machine = total(&fs::read_to_string("/proc/meminfo").ok()?)?;
    // In a container this is what it was given; elsewhere there is no such file, or no limit in it.
    let container = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse().ok());
    Some(container.map_or(machine, |container| machine.min(container)))
}

/// `MemTotal` of `/proc/meminfo`.
fn total(text: &str) -> Option<usize> {
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))?;
    kibibytes.parse::<usize>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::{of_this_machine, total};
    use crate::protocol::Limits;

    #[test]
    fn what_clients_may_store_together_grows_with_the_memory() {
        assert!(of_this_machine().is_some_and(|bytes| bytes > 1 << 20));
        let text = "MemTotal:       24690356 kB\nMemFree:         1234 kB\n";
        let memory = total(text).unwrap();
        assert_eq!(memory, 24_690_356 << 10);
        assert_eq!([total(""), total("MemTotal: many kB"), total("MemFree: 1 kB")], [None; 3]);
        assert_eq!(Limits::for_memory(1 << 30), Limits::default());
        let limits = Limits::for_memory(memory);
        assert_eq!((limits.stored, limits.unread, limits.incomplete), (memory / 4, memory / 4, memory / 8));
        assert_eq!(limits.request, Limits::default().request);
    }
}
