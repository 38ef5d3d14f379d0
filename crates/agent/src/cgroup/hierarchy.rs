//! Where a process is among the control groups, from what `/proc` says of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Controller, Version};

/// The folders of a process's own groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Of which kind they are.
    pub version: Version,
    /// One for each controller; in version 2 all the same.
    pub own: BTreeMap<Controller, PathBuf>,
    /// The topmost folder that can be seen, in version 2: limits of the groups in between hold too.
    pub top: Option<PathBuf>,
}

impl Hierarchy {
    /// From `/proc/self/mountinfo` and `/proc/self/cgroup`. Version 1 counts where any of its trees is mounted, since a
    /// controller is in one tree only. `None` where there is nothing to be found.
    pub fn locate(mountinfo: &str, membership: &str) -> Option<Hierarchy> {
        let mounts: Vec<Mount<'_>> = mountinfo.lines().filter_map(Mount::read).collect();
        let in_version_1 = |controller: Controller| {
            let mount = mounts.iter().find(|mount| mount.kind == "cgroup" && mount.has(controller))?;
            let path = group_path(membership, |names| names.split(',').any(|name| name == controller.name()))?;
            Some((controller, mount.folder(path)?))
        };
        let own: BTreeMap<Controller, PathBuf> = Controller::ALL.into_iter().filter_map(in_version_1).collect();
        if !own.is_empty() {
            return Some(Hierarchy { version: Version::V1, own, top: None });
        }
        let mount = mounts.iter().find(|mount| mount.kind == "cgroup2")?;
        let folder = mount.folder(group_path(membership, str::is_empty)?)?;
        let own = Controller::ALL.into_iter().map(|controller| (controller, folder.clone())).collect();
        Some(Hierarchy { version: Version::V2, own, top: Some(mount.point.into()) })
    }
}

/// A line of `mountinfo`: `ID PARENT DEVICE ROOT POINT OPTIONS … - KIND SOURCE SUPER_OPTIONS`.
struct Mount<'a> {
    /// Which part of the tree is mounted.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn read(line: &'a str) -> Option<Mount<'a>> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        Some(Mount { root: before.next()?, point: before.next()?, kind: after.next()?, options: after.nth(1)? })
    }

    fn has(&self, controller: Controller) -> bool {
        self.options.split(',').any(|option| option == controller.name())
    }

    /// Where a group can be seen; one outside of what is mounted cannot.
    fn folder(&self, group: &str) -> Option<PathBuf> {
        let rest = Path::new(group).strip_prefix(self.root).ok()?;
        let plain = rest.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        plain.then(|| if rest.as_os_str().is_empty() { self.point.into() } else { Path::new(self.point).join(rest) })
    }
}

/// The path in a line of `/proc/PID/cgroup`: `NUMBER:CONTROLLERS:PATH`.
fn group_path(membership: &str, of: impl Fn(&str) -> bool) -> Option<&str> {
    membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        of(names).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    const V1: &str = "\
30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/abc /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn each_controller_of_version_1_has_its_own_tree() {
        let membership = "5:memory:/a/b\n4:cpu,cpuacct:/\n3:pids:/docker/abc/x\n0::/\n";
        let found = Hierarchy::locate(V1, membership).unwrap();
        let expected = [
            (Controller::Memory, "/sys/fs/cgroup/memory/a/b"),
            (Controller::Cpu, "/sys/fs/cgroup/cpu,cpuacct"),
            (Controller::Pids, "/sys/fs/cgroup/pids/x"),
        ];
        assert_eq!(found.own, expected.map(|(controller, path)| (controller, path.into())).into());
        assert_eq!(found.version, Version::V1);
    }

    #[test]
    fn version_2_has_one_tree() {
        let found = Hierarchy::locate(V2, "0::/system.slice/instep-agent.service\n").unwrap();
        assert_eq!(found.version, Version::V2);
        assert!(found.own.values().all(|path| path == Path::new("/sys/fs/cgroup/system.slice/instep-agent.service")));
        assert_eq!(found.own.len(), 3);
    }

    #[test]
    fn groups_that_cannot_be_seen_are_not_used() {
        assert_eq!(Hierarchy::locate(V2, "0::/../../elsewhere\n"), None);
        assert_eq!(Hierarchy::locate("", "0::/\n"), None);
        let outside = "5:memory:/\n4:cpu,cpuacct:/\n3:pids:/docker/other\n0::/\n";
        assert_eq!(
            Hierarchy::locate(V1, outside).unwrap().own.keys().copied().collect::<Vec<_>>(),
            [Controller::Memory, Controller::Cpu]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(mounts in any::<String>(), membership in any::<String>()) {
            let _ = Hierarchy::locate(&mounts, &membership);
        }
    }
}
