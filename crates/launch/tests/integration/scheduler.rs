//! What is found in a scheduler's variables: environments in, plans out.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::time::Duration;

use instep_launch::plan::scheduler::{SlurmStart, describe, start_through_srun};
use instep_launch::plan::{self, Plan, RendezvousMode};
use instep_launch::{PlanError, Request};

type Change = fn(&mut Request);

/// An environment as `env` prints it: `A=1 B=2`.
#[derive(Clone)]
struct Environment(BTreeMap<String, String>);

impl Environment {
    /// These variables in the place of those of the same name; `A=` removes one.
    fn with(&self, changes: &str) -> Environment {
        let mut variables = self.0.clone();
        for (name, value) in changes.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            match value {
                "" => variables.remove(name),
                value => variables.insert(name.to_owned(), value.to_owned()),
            };
        }
        Environment(variables)
    }

    fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }
}

fn nothing() -> Environment {
    Environment(BTreeMap::from([("PYTHON_EXEC".to_owned(), "/bin/sh".to_owned())]))
}

/// What Slurm 22.05 sets in the batch script of `sbatch --nodes=4 --gpus-per-node=8`.
fn batch() -> Environment {
    nothing().with(
        "SLURM_JOB_ID=1234567 SLURM_JOBID=1234567 SLURM_JOB_NODELIST=n[1-4] SLURM_NODELIST=n[1-4] SLURM_JOB_NUM_NODES=4 \
         SLURM_NNODES=4 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=1(x4) SLURMD_NODENAME=n1 \
         SLURM_GPUS_ON_NODE=8",
    )
}

/// What it sets in the third task of `srun` there.
fn step() -> Environment {
    batch().with(
        "SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NODELIST=n[1-4] SLURM_STEP_NUM_NODES=4 SLURM_STEP_NUM_TASKS=4 \
         SLURM_STEP_TASKS_PER_NODE=1(x4) SLURM_NODEID=2 SLURM_PROCID=2 SLURMD_NODENAME=n3",
    )
}

/// A pod of the template in examples/kubernetes.
fn pod(index: usize) -> Environment {
    nothing().with(&format!("JOB_COMPLETION_INDEX={index} PET_NNODES=4 PET_RDZV_ENDPOINT=train-0.train:29400"))
}

fn request(change: impl FnOnce(&mut Request)) -> Request {
    let mut request = Request {
        role: "default".to_owned(),
        redirects: "0".to_owned(),
        tee: "0".to_owned(),
        event_log_handler: "null".to_owned(),
        script: "train.py".into(),
        ..Request::default()
    };
    change(&mut request);
    request
}

fn resolve(environment: &Environment, change: impl FnOnce(&mut Request)) -> Result<Plan, PlanError> {
    let mut request = request(|_| {});
    // As the command line does.
    request.nnodes = environment.get("PET_NNODES");
    request.rdzv_endpoint = environment.get("PET_RDZV_ENDPOINT").unwrap_or_default();
    change(&mut request);
    plan::resolve(request, |name| environment.get(name).map(OsString::from))
}

fn start(environment: &Environment, change: impl FnOnce(&mut Request)) -> Result<Option<SlurmStart>, PlanError> {
    start_through_srun(&request(change), |name| environment.get(name))
}

fn meets_at(host: &str, port: u16, is_host: Option<bool>) -> RendezvousMode {
    RendezvousMode::C10d { host: host.to_owned(), port, is_host }
}

#[test]
fn a_step_of_slurm_needs_no_rendezvous_option() {
    let plan = resolve(&step(), |_| {}).expect("valid");
    let RendezvousMode::C10d { host, port, is_host } = plan.rendezvous else { panic!("{:?}", plan.rendezvous) };
    assert_eq!((host.as_str(), is_host), ("n1", Some(false)));
    assert!((17_000..29_000).contains(&port), "{port}");
    assert_eq!((plan.terms.min_nodes, plan.terms.max_nodes, plan.node_rank), (4, 4, 2));
    assert_eq!((plan.job.run_id.as_str(), plan.job.workers), ("1234567.0", 1));
    assert_eq!(plan.connect_timeout, Duration::from_secs(600));
    let scheduler = plan.scheduler.expect("a scheduler");
    assert_eq!(scheduler.name, "step 0 of Slurm job 1234567");
    let found: Vec<String> =
        scheduler.findings.iter().map(|found| format!("{}={} {}", found.what, found.value, found.from)).collect();
    for expected in
        ["job=1234567 SLURM_JOB_ID", "step=0 SLURM_STEP_ID", "nodes=4 SLURM_STEP_NODELIST", "node rank=2 SLURM_NODEID"]
    {
        assert!(found.iter().any(|found| found == expected), "{expected} in {found:?}");
    }

    let first = resolve(&step().with("SLURM_NODEID=0"), |_| {}).expect("valid");
    assert_eq!((first.rendezvous, first.node_rank), (meets_at("n1", port, Some(true)), 0));
    // Older versions say it by other names, and not how many tasks there are.
    let old = step().with("SLURM_STEP_ID= SLURM_JOB_ID= SLURM_STEP_NODELIST= SLURM_STEP_TASKS_PER_NODE=");
    assert_eq!(resolve(&old, |_| {}).expect("valid").rendezvous, meets_at("n1", port, Some(false)));
}

#[test]
fn what_is_left_behind_by_a_restart_of_the_job_does_not_join_it() {
    let plan = resolve(&step().with("SLURM_RESTART_COUNT=2"), |_| {}).expect("valid");
    assert_eq!(plan.job.run_id, "1234567.0-restart2");
}

#[test]
fn a_range_of_nodes_is_elastic() {
    let plan = resolve(&step(), |request| request.nnodes = Some("2:4".to_owned())).expect("valid");
    assert!(plan.terms.elastic());
    assert_eq!((plan.terms.min_nodes, plan.terms.max_nodes, plan.node_rank), (2, 4, 2));
    let fewer = resolve(&step(), |request| request.nnodes = Some("3".to_owned())).expect("valid");
    assert_eq!((fewer.terms.max_nodes, fewer.node_rank), (3, 2));
}

#[test]
fn what_the_user_says_of_the_rendezvous_is_all_of_it() {
    let explicit: [Change; 7] = [
        |request| request.standalone = true,
        |request| request.nnodes = Some("1".to_owned()),
        |request| request.node_rank = Some(0),
        |request| request.master_addr = Some("10.0.0.1".to_owned()),
        |request| request.master_port = Some(29500),
        |request| request.rdzv_endpoint = "10.0.0.1:29400".to_owned(),
        |request| request.rdzv_backend = Some("static".to_owned()),
    ];
    for (number, change) in explicit.iter().enumerate() {
        for environment in
            [step(), batch(), step().with("SLURM_STEP_TASKS_PER_NODE=4(x4)"), step().with("SLURM_NODEID=x")]
        {
            let plan = resolve(&environment, change).unwrap_or_else(|error| panic!("case {number}: {error:?}"));
            let without = resolve(&nothing(), change).expect("valid");
            assert_eq!((plan.rendezvous, plan.terms), (without.rendezvous, without.terms), "case {number}");
            assert_eq!(start(&environment, change), Ok(None), "case {number}");
        }
    }
    let named = resolve(&step(), |request| {
        request.rdzv_id = Some("mine".to_owned());
        request.rdzv_backend = Some("c10d".to_owned());
        request.rdzv_conf = "read_timeout=5".to_owned();
    });
    let named = named.expect("valid");
    assert_eq!((named.job.run_id.as_str(), named.node_rank), ("mine", 2));
    assert_eq!(named.connect_timeout, Duration::from_secs(5));
}

#[test]
fn ranks_of_a_launcher_and_of_mpirun_are_not_placed_by_slurm() {
    for parent in ["TORCHELASTIC_RUN_ID=7", "OMPI_COMM_WORLD_SIZE=4"] {
        let plan = resolve(&step().with(parent), |_| {}).expect("valid");
        assert_eq!((plan.rendezvous, plan.scheduler), (RendezvousMode::Standalone, None));
        assert_eq!(start(&batch().with(parent), |_| {}), Ok(None));
    }
}

#[test]
fn one_node_runs_as_it_does_anywhere() {
    let one = "SLURM_JOB_NODELIST=n1 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=1";
    let plan = resolve(&step().with(one), |_| {}).expect("valid");
    assert_eq!((plan.rendezvous, plan.node_rank), (RendezvousMode::Standalone, 0));
    assert_eq!(start(&batch().with("SLURM_JOB_NODELIST=n1"), |_| {}), Ok(None));
    assert_eq!(start(&nothing(), |_| {}), Ok(None));
    assert_eq!(resolve(&nothing(), |_| {}).expect("valid").scheduler, None);
}

#[test]
fn a_batch_script_and_a_shell_of_salloc_start_on_all_nodes_through_srun() {
    let srun = |nodes: usize| {
        format!("srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none --export=ALL")
    };
    let command = |environment: &Environment, change: Change| {
        let start = start(environment, change).expect("valid").expect("several nodes");
        (start.nodes, start.command.join(" "))
    };
    assert_eq!(command(&batch(), |_| {}), (4, srun(4)));
    assert_eq!(command(&batch(), |request| request.nnodes = Some("2".to_owned())), (2, srun(2)));
    let elastic = format!("{} --no-kill --kill-on-bad-exit=0 --wait=0", srun(4));
    assert_eq!(command(&batch(), |request| request.nnodes = Some("2:8".to_owned())), (4, elastic));
    let per_task = format!("{} --gpus-per-node=8", srun(4));
    assert_eq!(command(&batch().with("SLURM_GPUS_PER_TASK=1"), |_| {}), (4, per_task));
    let unbound = format!("{} --gpu-bind=none", srun(4));
    assert_eq!(command(&batch().with("SLURM_GPU_BIND=single:1"), |_| {}), (4, unbound));
    // A shell of salloc runs where it was called, also when the node is one.
    let shell = batch().with("SLURMD_NODENAME= SLURM_NODEID= SLURM_JOB_NODELIST=n7");
    assert_eq!(command(&shell, |_| {}), (1, srun(1)));
    // The number of salloc's own step on the first node, and of the batch script in some versions.
    for special in ["4294967290", "4294967291"] {
        assert_eq!(command(&batch().with(&format!("SLURM_STEP_ID={special}")), |_| {}), (4, srun(4)));
    }
    assert_eq!(start(&step(), |_| {}), Ok(None), "no step starts another");
}

#[test]
fn misuse_is_refused_with_a_way_out() {
    let cases: [(Environment, Change, &str, &str); 11] = [
        (
            step().with("SLURM_STEP_TASKS_PER_NODE=4(x4)"),
            |_| {},
            "4 tasks of step 0 of Slurm job 1234567",
            "srun --ntasks-per-node=1",
        ),
        // All nodes say the same, also those with one task.
        (step().with("SLURM_STEP_TASKS_PER_NODE=2,1(x3)"), |_| {}, "2 tasks of step 0", "srun --ntasks-per-node=1"),
        (
            nothing().with("SLURM_JOB_ID=7"),
            |request| request.nnodes = Some("2".to_owned()),
            "SLURM_JOB_NODELIST or SLURM_NODELIST is not set",
            "srun",
        ),
        (
            step(),
            |request| request.nnodes = Some("8".to_owned()),
            "--nnodes 8, but step 0 of Slurm job 1234567 has 4 nodes",
            "sbatch --nodes=8",
        ),
        (
            step().with("SLURM_NODEID=4"),
            |_| {},
            "contradict each other: SLURM_STEP_NODELIST names 4 nodes, SLURM_NODEID=4",
            "srun",
        ),
        (step().with("SLURM_STEP_NUM_NODES=3"), |_| {}, "SLURM_STEP_NUM_NODES=3", "--rdzv-endpoint"),
        (step().with("SLURM_NODEID="), |_| {}, "SLURM_NODEID is not set", "srun"),
        (step().with("SLURM_NODEID=two"), |_| {}, "SLURM_NODEID=\"two\" is not a number", "srun"),
        (step().with("SLURM_STEP_NODELIST=n[1-"), |_| {}, "is not a list of hosts: its brackets do not match", "srun"),
        (step().with("SLURM_HET_SIZE=2"), |_| {}, "heterogeneous", "--rdzv-endpoint"),
        (pod(1).with("PET_RDZV_ENDPOINT="), |_| {}, "nothing says where the first pod is", "PET_RDZV_ENDPOINT="),
    ];
    for (environment, change, message, hint) in cases {
        let error = resolve(&environment, change).expect_err(message);
        assert!(error.message.contains(message), "{message:?} in {error:?}");
        assert!(error.hint.contains(hint), "{hint:?} in {error:?}");
    }
    let more = start(&batch(), |request| request.nnodes = Some("5:8".to_owned())).expect_err("too many");
    assert!(more.message.contains("--nnodes 5:8, but Slurm job 1234567 has 4 nodes"), "{more:?}");
    let parts = start(&batch().with("SLURM_HET_SIZE=2"), |_| {}).expect_err("several components");
    assert!(parts.message.contains("Slurm job 1234567 is heterogeneous"), "{parts:?}");
}

#[test]
fn what_is_probably_not_meant_gets_a_warning() {
    let warned = |environment: &Environment, change: Change, wanted: &str| {
        let plan = resolve(environment, change).expect("valid");
        assert!(plan.warnings.iter().any(|warning| warning.contains(wanted)), "{wanted:?} in {:?}", plan.warnings);
    };
    warned(&step(), |_| {}, "has 8 GPUs (SLURM_GPUS_ON_NODE); --nproc-per-node gpu");
    warned(&step(), |request| request.standalone = true, "each of the 4 nodes of step 0 of Slurm job 1234567");
    warned(&batch(), |request| request.standalone = true, "runs on this node alone, and Slurm job 1234567 has 4");
    let terminal = "waiting for instep run on the 4 nodes of step 0 of Slurm job 1234567; in a shell of srun --pty";
    warned(&step().with("SLURM_PTY_PORT=40000 SLURM_NODEID=0"), |_| {}, terminal);
    // A container that was handed the number of the job alone, and one node of a job with several components.
    let lone = nothing().with("SLURM_JOB_ID=7");
    warned(&lone, |_| {}, "SLURM_JOB_ID is set, but not SLURM_JOB_NODELIST: this node runs alone");
    assert_eq!(resolve(&lone, |_| {}).expect("valid").rendezvous, RendezvousMode::Standalone);
    assert_eq!(start(&lone, |_| {}), Ok(None));
    let one = "SLURM_HET_SIZE=2 SLURM_JOB_NODELIST=n1 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0 \
               SLURM_STEP_TASKS_PER_NODE=1";
    for environment in [step().with(one), batch().with(one)] {
        warned(&environment, |_| {}, "is heterogeneous (SLURM_HET_SIZE), and this node runs alone");
        assert_eq!(start(&environment, |_| {}), Ok(None));
    }
    let eight = resolve(&step(), |request| request.nproc_per_node = Some("8".to_owned())).expect("valid");
    assert!(!eight.warnings.iter().any(|warning| warning.contains("GPUs")), "{:?}", eight.warnings);
}

#[test]
fn pods_of_an_indexed_job_know_their_rank() {
    let plan = resolve(&pod(3), |_| {}).expect("valid");
    // The host name of this machine is not that of a pod: who serves is seen by address, as ever.
    assert_eq!(plan.rendezvous, meets_at("train-0.train", 29400, None));
    assert_eq!((plan.node_rank, plan.terms.min_nodes, plan.terms.max_nodes), (3, 4, 4));
    assert_eq!(plan.connect_timeout, Duration::from_secs(600));
    assert!(resolve(&pod(0), |request| request.nnodes = Some("2:4".to_owned())).expect("valid").terms.elastic());

    // Ranks of a pod that runs alone have their store with them, not in the first pod.
    for index in [0, 1] {
        let alone = resolve(&pod(index).with("PET_NNODES="), |_| {}).expect("valid");
        assert_eq!(alone.rendezvous, RendezvousMode::Standalone);
        assert!(alone.warnings.iter().any(|warning| warning.contains("this pod runs alone")), "{:?}", alone.warnings);
    }

    // The static form, whose node ranks torchrun's users copy from the index.
    let fixed = |index| {
        resolve(&pod(index).with("PET_RDZV_ENDPOINT="), |request| {
            request.master_addr = Some("train-0.train".to_owned())
        })
    };
    let plan = fixed(3).expect("valid");
    assert_eq!(plan.rendezvous, RendezvousMode::Static { host: "train-0.train".to_owned(), port: 29500 });
    assert_eq!(plan.node_rank, 3);
    assert!(fixed(4).expect_err("one pod too many").hint.contains("completions and parallelism"));

    let given = resolve(&pod(3), |request| request.node_rank = Some(1)).expect("valid");
    assert_eq!((given.node_rank, given.scheduler), (1, None), "the user has the last word");
    let alone = resolve(&pod(3), |request| request.nnodes = None).expect("valid");
    assert_eq!(alone.node_rank, 0, "pods of a job that says nothing of nodes train alone");
    assert!(alone.warnings.iter().any(|warning| warning.contains("but not PET_NNODES")), "{:?}", alone.warnings);
    let alone = resolve(&pod(3).with("PET_RDZV_ENDPOINT=train-0.train"), |request| request.nnodes = None);
    let alone = alone.expect("a port that no other pod needs");
    assert!(alone.warnings.iter().any(|warning| warning.contains("but not PET_NNODES")), "{:?}", alone.warnings);
    let own = resolve(&pod(3).with("PET_RDZV_ENDPOINT="), |request| request.nnodes = None).expect("valid");
    assert!(own.warnings.is_empty(), "pods with work of their own: {:?}", own.warnings);
    assert!(resolve(&pod(4), |_| {}).expect_err("one pod too many").hint.contains("completions and parallelism"));
}

#[test]
fn the_doctor_says_in_a_sentence_what_would_be_found() {
    let said =
        |environment: &Environment| describe(|name| environment.get(name), "train-2").map(|said| said.expect("valid"));
    assert_eq!(said(&nothing()), None);
    let of_step = said(&step()).expect("a scheduler");
    assert!(of_step.starts_with("step 0 of Slurm job 1234567, node rank 2 of 4; they meet at n1:"), "{of_step}");
    assert_eq!(said(&batch()).expect("found"), "Slurm job 1234567; instep run starts on its nodes (4) through srun");
    assert!(said(&pod(2)).expect("found").contains("node rank 2 (JOB_COMPLETION_INDEX)"));
}

#[test]
fn steps_that_may_share_a_node_meet_at_ports_of_their_own() {
    let port = |job: u64, number: u64| {
        let environment = step().with(&format!("SLURM_JOB_ID={job} SLURM_STEP_ID={number}"));
        match resolve(&environment, |_| {}).expect("valid").rendezvous {
            RendezvousMode::C10d { port, .. } => port,
            other => panic!("{other:?}"),
        }
    };
    for first in [1, 11_980, 4_000_000_000, u64::MAX - 40] {
        let steps = (0..20).flat_map(|job| (0..30).map(move |number| (job, number)));
        let ports: HashSet<u16> = steps.clone().map(|(job, number)| port(first + job, number)).collect();
        assert_eq!(ports.len(), steps.count(), "from job {first}");
    }
}
