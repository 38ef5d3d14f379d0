//! The NVIDIA GPUs of this machine, asked of the driver's management library (NVML).
//!
//! [`find`] asks for the driver and all its GPUs; [`visible_gpus`] lists those that CUDA shows, in the order in which it
//! numbers them, with the rules by which torch 2.15 (`torch/cuda/__init__.py`) reads `CUDA_VISIBLE_DEVICES`.
//!
//! Two things NVML does not know, here as in torch: a torch built without CUDA still sees the GPUs counted, and the order
//! is that of the PCI bus, which differs from CUDA's only where a machine mixes GPU models and `CUDA_DEVICE_ORDER` is not
//! `PCI_BUS_ID`.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// One NVIDIA GPU. Its CUDA index is its position in [`visible_gpus`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Index as `nvidia-smi` shows it, whatever `CUDA_VISIBLE_DEVICES` says.
    pub index: usize,
    /// As sysfs writes it: `0000:dc:00.0`.
    pub pci_address: String,
    /// `GPU-…`, or `MIG-…` where a MIG instance was selected.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Names of the GPU's MIG instances.
    pub mig_uuids: Vec<String>,
}

/// The NVIDIA driver of this machine and all its GPUs, in PCI order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvidia {
    /// Driver version, as in `580.65.06`.
    pub driver: String,
    /// Newest CUDA version the driver runs, as in `13.0`.
    pub cuda: String,
    /// Every GPU that the driver shows to this process.
    pub gpus: Vec<Gpu>,
}

/// Why NVML does not answer.
#[derive(Debug, thiserror::Error)]
pub enum NvidiaError {
    /// There is no NVIDIA driver on this machine or in this container.
    #[error("the NVIDIA driver's library libnvidia-ml.so.1 is not installed")]
    NoLibrary,
    /// The library is there but the driver does not work.
    #[error("the NVIDIA driver does not answer: {0}")]
    Failed(NvmlError),
}

/// Asks NVML for the driver and its GPUs.
pub fn find() -> Result<Nvidia, NvidiaError> {
    let nvml = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init().map_err(|error| match error {
        NvmlError::LibloadingError(_) => NvidiaError::NoLibrary,
        error => NvidiaError::Failed(error),
    })?;
    survey(&nvml).map_err(NvidiaError::Failed)
}

fn survey(nvml: &Nvml) -> Result<Nvidia, NvmlError> {
    let cuda = nvml.sys_cuda_driver_version()?;
    let mut gpus = Vec::new();
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        let address = device.pci_info()?;
        let mut mig_uuids = Vec::new();
        if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
            // Slots without an instance answer "not found".
            for slot in 0..device.mig_device_count().unwrap_or(0) {
                mig_uuids.extend(device.mig_device_by_index(slot).and_then(|instance| instance.uuid()));
            }
        }
        gpus.push(Gpu {
            index: index as usize,
            pci_address: format!("{:04x}:{:02x}:{:02x}.0", address.domain, address.bus, address.device),
            uuid: device.uuid()?,
            name: device.name()?,
            mig_uuids,
        });
    }
    Ok(Nvidia { driver: nvml.sys_driver_version()?, cuda: format!("{}.{}", cuda / 1000, cuda % 1000 / 10), gpus })
}

/// The GPUs that CUDA shows to a process started now, in CUDA's order.
pub(crate) fn find_visible_gpus() -> Result<Vec<Gpu>, NvidiaError> {
    let variable = std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned());
    Ok(filter_visible(&find()?.gpus, variable.as_deref()))
}

/// The same; empty where NVML does not answer.
pub fn visible_gpus() -> Vec<Gpu> {
    find_visible_gpus().unwrap_or_default()
}

/// Applies `CUDA_VISIBLE_DEVICES` as torch 2.15 reads it.
///
/// The first entry decides whether the list holds indices, GPU UUIDs or MIG names. The list ends before the first entry
/// that is invalid or of another kind; a duplicate makes it empty. UUIDs may be cut short as long as they are unambiguous.
/// Of several MIG instances CUDA shows a process only the first.
pub fn filter_visible(all: &[Gpu], variable: Option<&str>) -> Vec<Gpu> {
    let Some(variable) = variable else {
        return all.to_vec();
    };
    if variable.starts_with("MIG-") {
        let entries = entries_with_prefix(variable, "MIG-").unwrap_or_default();
        return entries.first().and_then(|entry| mig_instance(all, entry)).into_iter().collect();
    }
    let wanted = if variable.starts_with("GPU-") {
        entries_with_prefix(variable, "GPU-").and_then(|entries| positions_of_uuids(all, &entries))
    } else {
        indices(variable)
    };
    wanted.unwrap_or_default().into_iter().map_while(|position| all.get(position).cloned()).collect()
}

/// Leading entries with the prefix; `None` for a duplicate.
fn entries_with_prefix<'a>(variable: &'a str, prefix: &str) -> Option<Vec<&'a str>> {
    let mut entries = Vec::new();
    for entry in variable.split(',') {
        if entries.contains(&entry) {
            return None;
        }
        if !entry.starts_with(prefix) {
            break;
        }
        entries.push(entry);
    }
    Some(entries)
}

/// Positions of the GPUs that the (possibly shortened) UUIDs name; `None` for a duplicate.
fn positions_of_uuids(all: &[Gpu], entries: &[&str]) -> Option<Vec<usize>> {
    let mut positions = Vec::new();
    for entry in entries {
        let mut matches = all.iter().enumerate().filter(|(_, gpu)| gpu.uuid.starts_with(entry));
        let (Some((position, _)), None) = (matches.next(), matches.next()) else {
            break;
        };
        if positions.contains(&position) {
            return None;
        }
        positions.push(position);
    }
    Some(positions)
}

/// Leading entries that are indices; `None` for a duplicate. Text behind the digits is ignored: `1gpu2` is 1.
fn indices(variable: &str) -> Option<Vec<usize>> {
    let mut indices = Vec::new();
    for entry in variable.split(',') {
        let entry = entry.trim();
        let entry = entry.strip_prefix('+').unwrap_or(entry);
        let digits = entry.len() - entry.trim_start_matches(|character: char| character.is_ascii_digit()).len();
        let Ok(index) = entry[..digits].parse::<usize>() else {
            break;
        };
        if indices.contains(&index) {
            return None;
        }
        indices.push(index);
    }
    Some(indices)
}

/// The GPU that holds the instance, named by the instance. Both spellings are known: `MIG-<uuid>` and, from drivers before
/// 470, `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
fn mig_instance(all: &[Gpu], entry: &str) -> Option<Gpu> {
    let parent = entry.strip_prefix("MIG-").filter(|rest| rest.starts_with("GPU-"));
    let parent = parent.map(|rest| rest.split('/').next().unwrap_or(rest));
    all.iter()
        .find(|gpu| match parent {
            Some(parent) => gpu.uuid == parent && !gpu.mig_uuids.is_empty(),
            None => gpu.mig_uuids.iter().any(|uuid| uuid == entry),
        })
        .map(|gpu| Gpu { uuid: entry.to_owned(), ..gpu.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: usize, uuid: &str) -> Gpu {
        Gpu {
            index,
            pci_address: format!("0000:{index:02x}:00.0"),
            uuid: uuid.to_owned(),
            name: "Test GPU".to_owned(),
            mig_uuids: Vec::new(),
        }
    }

    #[test]
    fn cuda_visible_devices_as_torch_reads_it() {
        let all = [gpu(0, "GPU-aa11"), gpu(1, "GPU-ab22"), gpu(2, "GPU-b333"), gpu(3, "GPU-c444")];
        let cases: [(Option<&str>, &[usize]); 30] = [
            (None, &[0, 1, 2, 3]),
            (Some(""), &[]),
            (Some("-1"), &[]),
            (Some("0"), &[0]),
            (Some("+1"), &[1]),
            (Some("+"), &[]),
            (Some("3,1"), &[3, 1]),
            (Some(" 2 , 0 "), &[2, 0]),
            (Some("0,-1,1"), &[0]),
            (Some("0,,1"), &[0]),
            (Some("0,x,1"), &[0]),
            (Some("0,9,1"), &[0]),
            (Some("9"), &[]),
            (Some("1gpu2,2ampere"), &[1, 2]),
            (Some("0x1"), &[0]),
            (Some("1,1"), &[]),
            (Some("0,9,0"), &[]),
            (Some("0,-1,0"), &[0]),
            (Some("99999999999999999999"), &[]),
            (Some("GPU-b333,GPU-aa11"), &[2, 0]),
            (Some("GPU-b,GPU-aa"), &[2, 0]),
            (Some("GPU-a"), &[]),
            (Some("GPU-c,GPU-a,GPU-b"), &[3]),
            (Some("GPU-c,GPU-c"), &[]),
            (Some("GPU-c,GPU-c4"), &[]),
            (Some("GPU-zz"), &[]),
            (Some("GPU-c,0"), &[3]),
            (Some("GPU-c, GPU-b"), &[3]),
            (Some("0,GPU-c"), &[0]),
            (Some("NoDevFiles"), &[]),
        ];
        for (variable, wanted) in cases {
            let visible: Vec<usize> = filter_visible(&all, variable).iter().map(|gpu| gpu.index).collect();
            assert_eq!(visible, wanted, "CUDA_VISIBLE_DEVICES={variable:?}");
        }
    }

    #[test]
    fn one_mig_instance_is_visible() {
        let mut split = gpu(1, "GPU-bb");
        split.mig_uuids = vec!["MIG-1111".to_owned(), "MIG-2222".to_owned()];
        let all = [gpu(0, "GPU-aa"), split];
        for (variable, wanted) in [
            ("MIG-2222", Some("MIG-2222")),
            ("MIG-2222,MIG-1111", Some("MIG-2222")),
            ("MIG-1111,0", Some("MIG-1111")),
            ("MIG-GPU-bb/1/0", Some("MIG-GPU-bb/1/0")),
            ("MIG-GPU-aa/1/0", None),
            ("MIG-3333,MIG-1111", None),
            ("MIG-1111,MIG-1111", None),
        ] {
            let visible = filter_visible(&all, Some(variable));
            assert_eq!(visible.first().map(|gpu| gpu.uuid.as_str()), wanted, "{variable}");
            assert!(visible.len() <= 1);
            assert!(visible.iter().all(|gpu| gpu.index == 1));
        }
    }
}
