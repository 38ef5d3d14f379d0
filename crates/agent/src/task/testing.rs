//! An order and a view for tests.

use instep_api::link::{Device, DeviceKind, Entrypoint, RunAs, Share, Start};
use instep_api::secrets::GivenSecrets;
use instep_api::wire::Timestamp;

use super::view::View;
use crate::order::{Machine, TaskOrder};

/// Two graphics processors at a master that is not there.
pub fn order() -> TaskOrder {
    let device =
        |id: u32, uuid: &str| Device { id, kind: DeviceKind::Cuda, brand: "Test".to_owned(), uuid: uuid.to_owned() };
    TaskOrder {
        start: Start {
            share: Share { allocation: "7.u.1".to_owned(), resources: "r".to_owned() },
            task: "7.u".to_owned(),
            devices: vec![0, 1],
            container: "c0ffee00-1".to_owned(),
            environment: [("DET_TASK_TYPE".to_owned(), "TRIAL".to_owned())].into(),
            user_environment: Vec::new(),
            secrets: GivenSecrets::default(),
            entrypoint: Entrypoint::Shell("true".to_owned()),
            token: "token".to_owned(),
            context: false,
            rendezvous: false,
            run_as: None,
            run_group: None,
            shared_memory_bytes: None,
            mounts: Vec::new(),
            paths: Vec::new(),
            service: None,
            ssh_keys: None,
            job_token: None,
            notes: Vec::new(),
            decided_at: Timestamp(0),
        },
        machine: Machine {
            agent: "agent-0".to_owned(),
            master: "http://10.0.0.1:8080".to_owned(),
            masters: String::new(),
            certificates: None,
            master_id: "m".to_owned(),
            cluster_id: "c".to_owned(),
            devices: vec![device(0, "GPU-a"), device(1, "GPU-b")],
            python: "/opt/python/bin/python3".into(),
            binary: "/opt/instep".into(),
            window_seconds: 25,
            default_user: RunAs::unnamed(65534, 65534),
            allowed_mounts: Vec::new(),
        },
        cgroup: None,
    }
}

/// One in a namespace.
pub fn view() -> View {
    View { run: "/run/determined".into(), tmp: "/tmp".into(), programs: "/share/programs".into(), shim: None }
}
