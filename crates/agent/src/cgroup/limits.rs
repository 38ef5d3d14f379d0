//! What a task may take of its machine, and the files of its group that say so.
//!
//! Fair by slots: whoever asks for a quarter of an agent's slots gets a quarter of the memory that tasks may use, as many
//! processes for each slot as everybody else, and a quarter of the CPU while all want it. A task without slots counts as a
//! quarter of a slot. No task gets less than [`LEAST_MEMORY`], with which an interpreter and torch start at all; all tasks
//! together never get more than there is, because their common group has a limit of its own.

use std::fmt;
use std::str::FromStr;

use super::{Controller, Version};

/// What every task gets, where there is so much.
pub const LEAST_MEMORY: u64 = 2 << 30;
/// Into how many parts a slot is divided; a task without slots has one.
const PARTS_OF_A_SLOT: u64 = 4;
/// Bounds of Linux's numbers for parts of the CPU.
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;
const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;

/// How much memory all tasks together may use: `none`, `80%` of the machine's, `64GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum MemoryBudget {
    Unlimited,
    Percent(u8),
    Bytes(u64),
}

impl MemoryBudget {
    /// In bytes, of a machine with so many.
    fn of(self, machine: u64) -> Option<u64> {
        match self {
            MemoryBudget::Unlimited => None,
            MemoryBudget::Percent(percent) => u64::try_from(u128::from(machine) * u128::from(percent) / 100).ok(),
            MemoryBudget::Bytes(bytes) => Some(bytes.min(machine)),
        }
    }
}

impl FromStr for MemoryBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryBudget, String> {
        let wrong =
            || format!("`{text}` is neither a size such as 64GiB, nor a part of the machine's such as 80%, nor none");
        if text == "none" {
            return Ok(MemoryBudget::Unlimited);
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            return percent.map(MemoryBudget::Percent).ok_or_else(wrong);
        }
        let bytes = instep_api::config::memory_size(text).filter(|bytes| *bytes > 0);
        bytes.map(MemoryBudget::Bytes).ok_or_else(wrong)
    }
}

/// How many processes and threads a task may have for each of its slots: `none`, `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ProcessBudget {
    Unlimited,
    PerSlot(u64),
}

/// Fewer leave no room for the supervisor and one program.
const FEWEST_PROCESSES: u64 = 16;

impl FromStr for ProcessBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<ProcessBudget, String> {
        if text == "none" {
            return Ok(ProcessBudget::Unlimited);
        }
        let number = text.parse().ok().filter(|number| *number >= FEWEST_PROCESSES);
        let wrong = || format!("`{text}` is neither a number of processes, {FEWEST_PROCESSES} or more, nor none");
        number.map(ProcessBudget::PerSlot).ok_or_else(wrong)
    }
}

/// What an administrator grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// For all tasks together.
    pub memory: MemoryBudget,
    /// For each task.
    pub processes: ProcessBudget,
}

/// What a group may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Its part of the CPU while others want it too, in quarters of a slot.
    pub cpu: u64,
}

impl Budget {
    /// Whether there is anything to limit.
    pub fn is_unlimited(&self) -> bool {
        self.memory == MemoryBudget::Unlimited && self.processes == ProcessBudget::Unlimited
    }

    /// Of all tasks of an agent together, on a machine with so many bytes of memory.
    pub fn of_all(&self, machine: u64, offered: usize) -> Limits {
        let cpu = parts(offered);
        Limits { memory: self.memory.of(machine), processes: None, cpu }
    }

    /// Of a task that has so many of the slots that its agent offers.
    pub fn of_task(&self, machine: u64, offered: usize, slots: usize) -> Limits {
        let memory = self.memory.of(machine).map(|all| {
            let fair = u128::from(all) * u128::from(parts(slots)) / u128::from(parts(offered.max(1)));
            u64::try_from(fair).unwrap_or(all).max(LEAST_MEMORY).min(all)
        });
        let processes = match self.processes {
            ProcessBudget::Unlimited => None,
            ProcessBudget::PerSlot(number) => Some(number.saturating_mul(slots.max(1) as u64)),
        };
        Limits { memory, processes, cpu: parts(slots) }
    }
}

fn parts(slots: usize) -> u64 {
    (slots as u64).saturating_mul(PARTS_OF_A_SLOT).max(1)
}

/// A file of a group and what to write there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Setting {
    pub controller: Controller,
    pub file: &'static str,
    pub value: String,
    /// Not every system has it, and the others need it not.
    pub optional: bool,
}

/// What to write into the files of a group, in this order.
pub fn settings(version: Version, limits: &Limits) -> Vec<Setting> {
    let setting = |controller, file, value: String| Setting { controller, file, value, optional: false };
    let optional = |controller, file, value: String| Setting { controller, file, value, optional: true };
    let number = |limit: Option<u64>, none: &str| limit.map_or_else(|| none.to_owned(), |limit| limit.to_string());
    let processes = setting(Controller::Pids, "pids.max", number(limits.processes, "max"));
    match version {
        Version::V1 => vec![
            // The sum of memory and swap is never less than memory alone, so it is lifted while that changes.
            optional(Controller::Memory, "memory.memsw.limit_in_bytes", "-1".to_owned()),
            setting(Controller::Memory, "memory.limit_in_bytes", number(limits.memory, "-1")),
            optional(Controller::Memory, "memory.memsw.limit_in_bytes", number(limits.memory, "-1")),
            processes,
            setting(Controller::Cpu, "cpu.shares", within(limits.cpu * 1024 / PARTS_OF_A_SLOT, &SHARES)),
        ],
        Version::V2 => vec![
            setting(Controller::Memory, "memory.max", number(limits.memory, "max")),
            optional(Controller::Memory, "memory.swap.max", limits.memory.map_or("max", |_| "0").to_owned()),
            processes,
            setting(Controller::Cpu, "cpu.weight", within(limits.cpu * 100 / PARTS_OF_A_SLOT, &WEIGHTS)),
        ],
    }
}

fn within(value: u64, bounds: &std::ops::RangeInclusive<u64>) -> String {
    value.clamp(*bounds.start(), *bounds.end()).to_string()
}

/// An amount of memory as people say it: `512 MiB`, `1.5 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.0 as f64 / f64::from(1 << 20);
        if mebibytes < 1024.0 {
            return write!(formatter, "{mebibytes:.0} MiB");
        }
        let text = format!("{:.1}", mebibytes / 1024.0);
        write!(formatter, "{} GiB", text.strip_suffix(".0").unwrap_or(&text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn budget(memory: &str, processes: &str) -> Budget {
        Budget { memory: memory.parse().unwrap(), processes: processes.parse().unwrap() }
    }

    #[test]
    fn memory_is_divided_by_slots() {
        let (machine, budget) = (128 * GIB, budget("64GiB", "4096"));
        let gib = |slots| budget.of_task(machine, 8, slots).memory.unwrap() as f64 / GIB as f64;
        assert_eq!([gib(8), gib(4), gib(1), gib(0)], [64.0, 32.0, 8.0, 2.0]);
        assert_eq!(budget.of_all(machine, 8).memory, Some(64 * GIB));
        let processes = |slots| budget.of_task(machine, 8, slots).processes;
        assert_eq!([processes(2), processes(0)], [Some(8192), Some(4096)]);
    }

    #[test]
    fn a_task_gets_enough_to_start_and_never_more_than_there_is() {
        let percent = budget("50%", "none");
        assert_eq!(percent.of_task(16 * GIB, 16, 1).memory, Some(LEAST_MEMORY));
        assert_eq!(percent.of_task(GIB, 16, 1).memory.unwrap(), GIB / 2);
        assert_eq!(budget("64GiB", "none").of_task(8 * GIB, 1, 1).memory, Some(8 * GIB));
        assert_eq!(percent.of_task(16 * GIB, 0, 0).memory, Some(LEAST_MEMORY));
        let unlimited = budget("none", "none");
        assert!(unlimited.is_unlimited());
        assert_eq!(unlimited.of_task(GIB, 4, 1), Limits { memory: None, processes: None, cpu: 4 });
    }

    #[test]
    fn files_of_both_versions_get_the_same_limits() {
        let limits = Limits { memory: Some(4096), processes: Some(64), cpu: 8 };
        let shown = |version, limits| {
            let settings = settings(version, limits);
            settings.iter().map(|setting| format!("{}={}", setting.file, setting.value)).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(Version::V1, &limits),
            [
                "memory.memsw.limit_in_bytes=-1",
                "memory.limit_in_bytes=4096",
                "memory.memsw.limit_in_bytes=4096",
                "pids.max=64",
                "cpu.shares=2048"
            ]
        );
        assert_eq!(
            shown(Version::V2, &limits),
            ["memory.max=4096", "memory.swap.max=0", "pids.max=64", "cpu.weight=200"]
        );
        let none = Limits { memory: None, processes: None, cpu: 1 };
        assert_eq!(
            shown(Version::V2, &none),
            ["memory.max=max", "memory.swap.max=max", "pids.max=max", "cpu.weight=25"]
        );
        assert_eq!(shown(Version::V1, &none)[3..], ["pids.max=max", "cpu.shares=256"]);
    }

    #[test]
    fn amounts_are_read_as_people_write_them() {
        let cases = [
            ("none", Some(MemoryBudget::Unlimited)),
            ("80%", Some(MemoryBudget::Percent(80))),
            ("64GiB", Some(MemoryBudget::Bytes(64 << 30))),
            ("1.5g", Some(MemoryBudget::Bytes(3 << 29))),
            ("0%", None),
            ("101%", None),
            ("0", None),
            ("much", None),
            ("-1", None),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
        assert_eq!("64".parse(), Ok(ProcessBudget::PerSlot(64)));
        assert!("3".parse::<ProcessBudget>().is_err() && "many".parse::<ProcessBudget>().is_err());
        assert_eq!(
            [Bytes(512 << 20), Bytes(GIB), Bytes(3 << 29)].map(|bytes| bytes.to_string()),
            ["512 MiB", "1 GiB", "1.5 GiB"]
        );
    }

    proptest! {
        #[test]
        fn tasks_that_hold_all_slots_hold_no_more_than_all_memory(offered in 1..64_usize, machine in 200 * GIB..4000 * GIB) {
            let budget = budget("95%", "none");
            let each = budget.of_task(machine, offered, 1).memory.unwrap();
            prop_assert!(each * offered as u64 <= budget.of_all(machine, offered).memory.unwrap());
        }
    }
}
