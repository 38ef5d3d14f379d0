//! Which CPUs are near a worker's GPU (`--numa-binding`).
//!
//! [`Topology::read`] takes sysfs down once; [`cpus_for`] then chooses, as a pure function, the CPUs that torch 2.15 would
//! choose (`torch/numa/binding.py`). Whoever starts the worker sets its affinity.
//!
//! One difference, where torch ends with an error: NUMA nodes without an allowed CPU (memory-only nodes, a narrow
//! affinity mask) are left out when the nodes of a socket are gathered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use crate::machine::nvidia::Gpu;

/// Highest CPU or node number believed in a sysfs list.
const HIGHEST_NUMBER: usize = 1 << 16;

/// The value of `--numa-binding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumaBinding {
    /// All CPUs of the GPU's NUMA node.
    Node,
    /// All CPUs of all NUMA nodes of the GPU's socket.
    Socket,
    /// An equal share of the physical cores of the GPU's NUMA node, overlapping with no other GPU's.
    Exclusive,
    /// One group of cores that share a last-level cache, on the GPU's NUMA node.
    CoreComplex,
}

/// Why no CPUs could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NumaError {
    /// Not one of the four modes.
    #[error("unknown --numa-binding value {0:?}\nhint: use node, socket, exclusive or core-complex")]
    UnknownBinding(String),
    /// There is nothing to be near to.
    #[error(
        "--numa-binding needs a GPU for local rank {device_index}, but {gpus} are visible\nhint: leave out --numa-binding, or start at most one worker per visible GPU"
    )]
    NoGpu {
        /// The worker's local rank.
        device_index: usize,
        /// How many GPUs this node shows.
        gpus: usize,
    },
    /// sysfs does not know the GPU.
    #[error(
        "the NUMA node of GPU {0} is not in sysfs\nhint: leave out --numa-binding; some containers hide the PCI devices"
    )]
    UnknownGpu(String),
    /// The node has no CPU this process may use.
    #[error(
        "no CPU of NUMA node {node} may be used by this process\nhint: leave out --numa-binding, or widen the CPU affinity (taskset, cgroup) of `instep run`"
    )]
    NoAllowedCpu {
        /// The GPU's NUMA node.
        node: usize,
    },
    /// Exclusive shares would be empty.
    #[error(
        "NUMA node {node} has {cores} physical cores for {gpus} GPUs: --numa-binding=exclusive needs one each\nhint: use --numa-binding=node"
    )]
    TooFewCores {
        /// The GPUs' NUMA node.
        node: usize,
        /// Physical cores with an allowed CPU.
        cores: usize,
        /// GPUs on the node.
        gpus: usize,
    },
    /// sysfs leaves out what the mode needs.
    #[error("sysfs does not tell the {what} of CPU {cpu}\nhint: use --numa-binding=node, which does not need it")]
    UnknownCpu {
        /// What is missing.
        what: &'static str,
        /// Which CPU it is missing for.
        cpu: usize,
    },
}

impl FromStr for NumaBinding {
    type Err = NumaError;

    fn from_str(text: &str) -> Result<Self, NumaError> {
        match text {
            "node" => Ok(Self::Node),
            "socket" => Ok(Self::Socket),
            "exclusive" => Ok(Self::Exclusive),
            "core-complex" => Ok(Self::CoreComplex),
            other => Err(NumaError::UnknownBinding(other.to_owned())),
        }
    }
}

impl fmt::Display for NumaBinding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Node => "node",
            Self::Socket => "socket",
            Self::Exclusive => "exclusive",
            Self::CoreComplex => "core-complex",
        })
    }
}

/// The machine's NUMA nodes, CPUs and PCI devices. What sysfs does not tell is absent and matters only when asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: BTreeMap<usize, BTreeSet<usize>>,
    cpus: BTreeMap<usize, Cpu>,
    node_of_pci_device: BTreeMap<String, usize>,
}

/// Groups are named by their lowest CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Cpu {
    socket: Option<usize>,
    physical_core: Option<usize>,
    last_level_cache: Option<usize>,
}

impl Topology {
    /// Reads the tree under `sysfs`, which is `/sys` outside tests.
    pub fn read(sysfs: &Path) -> Self {
        let system = sysfs.join("devices/system");
        let nodes = numbered_entries(&system.join("node"), "node")
            .filter_map(|(node, path)| Some((node, parse_cpu_list(&read(&path.join("cpulist"))?)?)))
            .collect();
        let cpus = numbered_entries(&system.join("cpu"), "cpu")
            .map(|(cpu, path)| {
                let siblings = read(&path.join("topology/thread_siblings_list"));
                let described = Cpu {
                    socket: read(&path.join("topology/physical_package_id")).and_then(|text| text.parse().ok()),
                    physical_core: siblings.and_then(|text| parse_cpu_list(&text)?.first().copied()),
                    last_level_cache: last_level_cache(&path.join("cache")),
                };
                (cpu, described)
            })
            .collect();
        let node_of_pci_device = entries(&sysfs.join("bus/pci/devices"))
            .filter_map(|(address, path)| {
                let node = read(&path.join("numa_node"))?.parse::<i64>().ok()?;
                // Machines with a single node often say -1.
                Some((address, usize::try_from(node).unwrap_or(0)))
            })
            .collect();
        Self { nodes, cpus, node_of_pci_device }
    }

    fn node_of(&self, gpu: &Gpu) -> Result<usize, NumaError> {
        let node = self.node_of_pci_device.get(&gpu.pci_address);
        node.copied().ok_or_else(|| NumaError::UnknownGpu(gpu.pci_address.clone()))
    }

    fn allowed_on(&self, node: usize, allowed: &BTreeSet<usize>) -> BTreeSet<usize> {
        self.nodes.get(&node).map(|cpus| cpus & allowed).unwrap_or_default()
    }

    fn describe<T>(&self, cpu: usize, what: &'static str, choose: impl Fn(&Cpu) -> Option<T>) -> Result<T, NumaError> {
        self.cpus.get(&cpu).and_then(choose).ok_or(NumaError::UnknownCpu { what, cpu })
    }
}

/// The CPUs for the worker with local rank `device_index`. `gpus` are this node's visible GPUs in CUDA order, `allowed` the
/// launcher's own affinity mask. Never empty.
pub fn cpus_for(
    binding: NumaBinding,
    device_index: usize,
    gpus: &[Gpu],
    topology: &Topology,
    allowed: &BTreeSet<usize>,
) -> Result<BTreeSet<usize>, NumaError> {
    let gpu = gpus.get(device_index).ok_or(NumaError::NoGpu { device_index, gpus: gpus.len() })?;
    let node = topology.node_of(gpu)?;
    let cpus = topology.allowed_on(node, allowed);
    let Some(&first) = cpus.first() else {
        return Err(NumaError::NoAllowedCpu { node });
    };
    match binding {
        NumaBinding::Node => Ok(cpus),
        NumaBinding::Socket => cpus_of_socket(first, topology, allowed),
        NumaBinding::Exclusive => {
            let (position, sharers) = position_on_node(device_index, node, gpus, topology)?;
            let cores = group_by(&cpus, |cpu| topology.describe(cpu, "physical core", |cpu| cpu.physical_core))?;
            if cores.len() < sharers {
                return Err(NumaError::TooFewCores { node, cores: cores.len(), gpus: sharers });
            }
            // The first GPUs get one core more where they do not divide evenly.
            let (share, remainder) = (cores.len() / sharers, cores.len() % sharers);
            let start = position * share + position.min(remainder);
            let length = share + usize::from(position < remainder);
            Ok(cores.into_values().skip(start).take(length).flatten().collect())
        }
        NumaBinding::CoreComplex => {
            let (position, _) = position_on_node(device_index, node, gpus, topology)?;
            let caches = group_by(&cpus, |cpu| topology.describe(cpu, "last-level cache", |cpu| cpu.last_level_cache))?;
            // Caches with the most usable CPUs first; the sort is stable, so that ties stay in CPU order.
            let mut complexes: Vec<_> = caches.into_values().collect();
            complexes.sort_by_key(|complex| std::cmp::Reverse(complex.len()));
            let chosen = position % complexes.len();
            Ok(complexes.swap_remove(chosen))
        }
    }
}

/// Allowed CPUs of every NUMA node whose first allowed CPU sits on the same socket as `cpu`.
fn cpus_of_socket(cpu: usize, topology: &Topology, allowed: &BTreeSet<usize>) -> Result<BTreeSet<usize>, NumaError> {
    let socket_of = |cpu| topology.describe(cpu, "socket", |cpu| cpu.socket);
    let socket = socket_of(cpu)?;
    let mut cpus = BTreeSet::new();
    for &node in topology.nodes.keys() {
        let on_node = topology.allowed_on(node, allowed);
        if let Some(&first) = on_node.first()
            && socket_of(first)? == socket
        {
            cpus.extend(on_node);
        }
    }
    Ok(cpus)
}

/// Which of the GPUs on its NUMA node this one is, and how many there are.
fn position_on_node(
    device_index: usize,
    node: usize,
    gpus: &[Gpu],
    topology: &Topology,
) -> Result<(usize, usize), NumaError> {
    let (mut position, mut sharers) = (0, 0);
    for (index, gpu) in gpus.iter().enumerate() {
        if topology.node_of(gpu)? == node {
            position += usize::from(index < device_index);
            sharers += 1;
        }
    }
    Ok((position, sharers))
}

fn group_by(
    cpus: &BTreeSet<usize>,
    group_of: impl Fn(usize) -> Result<usize, NumaError>,
) -> Result<BTreeMap<usize, BTreeSet<usize>>, NumaError> {
    let mut groups: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for &cpu in cpus {
        groups.entry(group_of(cpu)?).or_default().insert(cpu);
    }
    Ok(groups)
}

/// The lowest CPU that shares the highest-level data cache described in this folder.
fn last_level_cache(folder: &Path) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None;
    for (_, path) in numbered_entries(folder, "index") {
        let kind = read(&path.join("type"));
        if !matches!(kind.as_deref(), Some("Unified" | "Data")) {
            continue;
        }
        let level = read(&path.join("level")).and_then(|text| text.parse().ok());
        let shared = read(&path.join("shared_cpu_list")).and_then(|text| parse_cpu_list(&text)?.first().copied());
        if let (Some(level), Some(first)) = (level, shared)
            && best.is_none_or(|(highest, _)| level > highest)
        {
            best = Some((level, first));
        }
    }
    best.map(|(_, first)| first)
}

fn entries(folder: &Path) -> impl Iterator<Item = (String, std::path::PathBuf)> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    found.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

/// Entries such as `node0`, `node1`, with their numbers.
fn numbered_entries(folder: &Path, prefix: &str) -> impl Iterator<Item = (usize, std::path::PathBuf)> {
    entries(folder).filter_map(move |(name, path)| {
        let number = name.strip_prefix(prefix)?;
        number.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
        Some((number.parse().ok()?, path))
    })
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

/// Reads the kernel's notation for sets of CPUs: `0-2,4`.
pub(crate) fn parse_cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last > HIGHEST_NUMBER {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// CPUs 0-7 are the first threads of eight cores, 8-15 the second; two cores share an L3; two nodes to a socket.
    ///
    ///     socket 0: node 0 (cores 0 1), node 1 (cores 2 3)     socket 1: node 2 (cores 4 5), node 3 (cores 6 7)
    fn fake(sysfs: &Path, numa_nodes: &[i64]) -> (Topology, Vec<Gpu>) {
        for cpu in 0..16 {
            let core = cpu % 8;
            let folder = sysfs.join(format!("devices/system/cpu/cpu{cpu}"));
            write(folder.join("topology/thread_siblings_list"), &format!("{core},{}", core + 8));
            write(folder.join("topology/physical_package_id"), &format!("{}", core / 4));
            let pair = core / 2 * 2;
            for (index, level, kind, shared) in [
                (0, 1, "Data", format!("{core},{}", core + 8)),
                (1, 1, "Instruction", format!("{core},{}", core + 8)),
                (2, 2, "Unified", format!("{core},{}", core + 8)),
                (3, 3, "Unified", format!("{}-{},{}-{}", pair, pair + 1, pair + 8, pair + 9)),
                (4, 4, "Instruction", "0-15".to_owned()),
            ] {
                let cache = folder.join(format!("cache/index{index}"));
                write(cache.join("level"), &level.to_string());
                write(cache.join("type"), kind);
                write(cache.join("shared_cpu_list"), &shared);
            }
        }
        write(sysfs.join("devices/system/cpu/cpufreq/boost"), "1");
        for node in 0..4 {
            let first = node * 2;
            let cpus = format!("{}-{},{}-{}", first, first + 1, first + 8, first + 9);
            write(sysfs.join(format!("devices/system/node/node{node}/cpulist")), &cpus);
        }
        // A memory-only node.
        write(sysfs.join("devices/system/node/node4/cpulist"), "");
        let gpus = numa_nodes.iter().enumerate().map(|(index, node)| {
            let pci_address = format!("0000:{:02x}:00.0", 0xd0 + index);
            write(sysfs.join(format!("bus/pci/devices/{pci_address}/numa_node")), &node.to_string());
            Gpu { index, pci_address, uuid: String::new(), name: String::new(), mig_uuids: Vec::new() }
        });
        let gpus = gpus.collect();
        (Topology::read(sysfs), gpus)
    }

    fn set(text: &str) -> BTreeSet<usize> {
        parse_cpu_list(text).unwrap()
    }

    #[test]
    fn the_cpus_that_torch_chooses() {
        use NumaBinding::{CoreComplex, Exclusive, Node, Socket};
        let folder = tempfile::tempdir().unwrap();
        // GPUs 0 and 2 on node 1, GPU 1 on node 3, GPU 3 unknown (-1, so node 0).
        let (topology, gpus) = fake(folder.path(), &[1, 3, 1, -1]);
        for (binding, device_index, allowed, wanted) in [
            (Node, 0, "0-15", "2-3,10-11"),
            (Node, 1, "0-15", "6-7,14-15"),
            (Node, 3, "0-15", "0-1,8-9"),
            (Node, 0, "0-9", "2-3"),
            (Socket, 0, "0-15", "0-3,8-11"),
            (Socket, 1, "0-15", "4-7,12-15"),
            (Socket, 0, "2-7", "2-3"),
            (Exclusive, 0, "0-15", "2,10"),
            (Exclusive, 2, "0-15", "3,11"),
            (Exclusive, 1, "0-15", "6-7,14-15"),
            (Exclusive, 0, "3,10", "10"),
            (CoreComplex, 0, "0-15", "2-3,10-11"),
            (CoreComplex, 2, "0-15", "2-3,10-11"),
        ] {
            let cpus = cpus_for(binding, device_index, &gpus, &topology, &set(allowed));
            assert_eq!(cpus, Ok(set(wanted)), "{binding} device {device_index} allowed {allowed}");
        }
    }

    /// One node of five cores without threads; L3 groups {0}, {1 2}, {3 4}.
    fn single_node(gpus: usize) -> (Topology, Vec<Gpu>) {
        let cpus = (0..5).map(|cpu| {
            let cache = if cpu == 0 { 0 } else { (cpu - 1) / 2 * 2 + 1 };
            (cpu, Cpu { socket: Some(0), physical_core: Some(cpu), last_level_cache: Some(cache) })
        });
        let gpus: Vec<Gpu> = (0..gpus)
            .map(|index| Gpu {
                index,
                pci_address: format!("gpu{index}"),
                uuid: String::new(),
                name: String::new(),
                mig_uuids: Vec::new(),
            })
            .collect();
        let topology = Topology {
            nodes: [(0, (0..5).collect())].into(),
            cpus: cpus.collect(),
            node_of_pci_device: gpus.iter().map(|gpu| (gpu.pci_address.clone(), 0)).collect(),
        };
        (topology, gpus)
    }

    #[test]
    fn remainders_go_to_the_first_gpus_and_large_complexes_come_first() {
        let all = set("0-4");
        let choose = |binding, count, allowed: &BTreeSet<usize>| -> Vec<BTreeSet<usize>> {
            let (topology, gpus) = single_node(count);
            (0..count).map(|index| cpus_for(binding, index, &gpus, &topology, allowed).unwrap()).collect()
        };
        assert_eq!(choose(NumaBinding::Exclusive, 3, &all), [set("0-1"), set("2-3"), set("4")]);
        assert_eq!(choose(NumaBinding::Exclusive, 2, &all), [set("0-2"), set("3-4")]);
        assert_eq!(choose(NumaBinding::CoreComplex, 4, &all), [set("1-2"), set("3-4"), set("0"), set("1-2")]);
        assert_eq!(choose(NumaBinding::CoreComplex, 3, &set("0-1,3-4")), [set("3-4"), set("0"), set("1")]);
    }

    #[test]
    fn what_cannot_be_chosen_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let (topology, mut gpus) = fake(folder.path(), &[1, 1, 1]);
        let all = set("0-15");
        let fail = |binding, index, gpus: &[Gpu], topology: &Topology, allowed: &BTreeSet<usize>| {
            cpus_for(binding, index, gpus, topology, allowed).unwrap_err()
        };
        let node = NumaBinding::Node;
        assert_eq!(fail(node, 0, &[], &topology, &all), NumaError::NoGpu { device_index: 0, gpus: 0 });
        assert_eq!(fail(node, 3, &gpus, &topology, &all), NumaError::NoGpu { device_index: 3, gpus: 3 });
        assert_eq!(fail(node, 0, &gpus, &topology, &set("0-1")), NumaError::NoAllowedCpu { node: 1 });
        let few = NumaError::TooFewCores { node: 1, cores: 2, gpus: 3 };
        assert_eq!(fail(NumaBinding::Exclusive, 0, &gpus, &topology, &all), few);
        let mut bare = topology.clone();
        bare.cpus.clear();
        for (binding, what) in [
            (NumaBinding::Socket, "socket"),
            (NumaBinding::Exclusive, "physical core"),
            (NumaBinding::CoreComplex, "last-level cache"),
        ] {
            assert_eq!(fail(binding, 0, &gpus, &bare, &all), NumaError::UnknownCpu { what, cpu: 2 });
        }
        gpus[0].pci_address = "0001:00:00.0".to_owned();
        assert_eq!(fail(node, 0, &gpus, &topology, &all), NumaError::UnknownGpu("0001:00:00.0".to_owned()));
    }

    #[test]
    fn numa_bindings_are_parsed_by_name() {
        for name in ["node", "socket", "exclusive", "core-complex"] {
            assert_eq!(name.parse::<NumaBinding>().unwrap().to_string(), name);
        }
        assert!("numa".parse::<NumaBinding>().is_err());
    }

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(parse_cpu_list("0-2,4, 6-7\n"), Some([0, 1, 2, 4, 6, 7].into()));
        assert_eq!(parse_cpu_list(""), Some(BTreeSet::new()));
        assert_eq!(parse_cpu_list("a"), None);
        assert_eq!(parse_cpu_list("0-99999999999"), None);
    }
}
