//! What command lines mean: torchrun's default resolution, and what is refused with which hint.

use std::ffi::OsString;
use std::time::Duration;

use instep_launch::plan::{self, Plan, RendezvousMode, SpareKind};
use instep_launch::{PlanError, Request};

/// Nothing but a script, as the command line fills it in.
fn request() -> Request {
    Request {
        role: "default".to_owned(),
        redirects: "0".to_owned(),
        tee: "0".to_owned(),
        signals_to_handle: "SIGTERM,SIGINT".to_owned(),
        event_log_handler: "null".to_owned(),
        script: "train.py".into(),
        ..Request::default()
    }
}

fn environment(name: &str) -> Option<OsString> {
    (name == "PYTHON_EXEC").then(|| "/bin/sh".into())
}

fn resolve(change: impl FnOnce(&mut Request)) -> Result<Plan, PlanError> {
    let mut request = request();
    change(&mut request);
    plan::resolve(request, environment)
}

#[test]
fn a_single_node_needs_no_port() {
    type Change = fn(&mut Request);
    let alone: [Change; 5] = [
        |_| {},
        |request| request.standalone = true,
        |request| {
            request.standalone = true;
            request.nnodes = Some("1:4".to_owned());
            request.rdzv_endpoint = "elsewhere:29400".to_owned();
        },
        |request| request.rdzv_backend = Some("c10d".to_owned()),
        |request| request.master_addr = Some("10.0.0.1".to_owned()),
    ];
    for change in alone {
        let plan = resolve(change).expect("valid");
        assert_eq!((plan.rendezvous, plan.terms.max_nodes), (RendezvousMode::Standalone, 1));
    }
}

#[test]
fn a_given_port_is_taken_literally() {
    let plan = resolve(|request| request.master_port = Some(29400)).expect("valid");
    assert_eq!(plan.rendezvous, RendezvousMode::Static { host: "127.0.0.1".to_owned(), port: 29400 });
    assert_eq!(plan.job.run_id, "none");
    let plan = resolve(|request| request.nnodes = Some("2".to_owned())).expect("valid");
    assert_eq!(plan.rendezvous, RendezvousMode::Static { host: "127.0.0.1".to_owned(), port: 29500 });
    assert_eq!(plan.connect_timeout, Duration::from_secs(900));
}

#[test]
fn several_nodes_join_at_the_endpoint() {
    let plan = resolve(|request| {
        request.nnodes = Some("2".to_owned());
        request.rdzv_backend = Some("c10d".to_owned());
        request.rdzv_endpoint = "[fd00::1]".to_owned();
        request.rdzv_id = Some("456".to_owned());
        request.rdzv_conf = "join_timeout=5, is_host=no".to_owned();
    })
    .expect("valid");
    assert_eq!(plan.rendezvous, RendezvousMode::C10d { host: "fd00::1".to_owned(), port: 29400, is_host: Some(false) });
    assert_eq!((plan.job.run_id.as_str(), plan.terms.join_timeout), ("456", Duration::from_secs(5)));
}

#[test]
fn timeouts_of_the_other_rendezvous_cause_a_warning() {
    for (backend, given, hint) in
        [("c10d", "timeout=5", "use join_timeout and read_timeout"), ("static", "join_timeout=5", "use timeout")]
    {
        let plan = resolve(|request| {
            request.nnodes = Some("2".to_owned());
            request.rdzv_backend = Some(backend.to_owned());
            request.rdzv_endpoint = "127.0.0.1:29400".to_owned();
            request.rdzv_conf = given.to_owned();
        });
        let key = given.trim_end_matches("=5");
        let warning = format!("--rdzv-conf {key} has no effect with --rdzv-backend {backend}: {hint}");
        assert!(plan.expect("valid").warnings.contains(&warning));
    }
}

#[test]
fn the_command_is_what_torchrun_would_run() {
    let words = |plan: Plan| plan.command.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let plan = resolve(|request| request.script_arguments = vec!["--x".into()]).expect("valid");
    assert_eq!(words(plan), ["/bin/sh", "-u", "train.py", "--x"]);
    let plan = resolve(|request| request.module = true).expect("valid");
    assert_eq!(words(plan), ["/bin/sh", "-u", "-m", "train.py"]);
    let plan = resolve(|request| request.no_python = true).expect("valid");
    assert_eq!(words(plan), ["train.py"]);
    let plan = resolve(|request| request.pass_local_rank = true).expect("valid");
    assert_eq!(words(plan), ["/bin/sh", "-u", "train.py", "--local-rank=${local_rank}"]);
}

#[test]
fn several_workers_share_the_cores() {
    let plan = resolve(|request| request.nproc_per_node = Some("4".to_owned())).expect("valid");
    assert_eq!((plan.job.workers, plan.job.default_threads), (4, Some(1)));
    assert!(plan.warnings[0].contains("OMP_NUM_THREADS"), "{:?}", plan.warnings);
    assert_eq!(resolve(|_| {}).expect("valid").job.default_threads, None);
}

#[test]
fn what_only_python_can_do_is_accepted_with_a_warning() {
    let plan = resolve(|request| {
        request.logs_specs = Some("mine".to_owned());
        request.event_log_handler = "console".to_owned();
        request.run_path = true;
        request.rdzv_conf = "colour=blue".to_owned();
        request.signals_to_handle = "SIGTERM,SIGWHAT,SIGKILL".to_owned();
    })
    .expect("valid");
    for word in ["--logs-specs", "--event-log-handler", "--run-path", "colour", "SIGWHAT", "SIGKILL"] {
        assert!(plan.warnings.iter().any(|warning| warning.contains(word)), "{word} in {:?}", plan.warnings);
    }
}

#[test]
fn a_filter_that_hides_all_output_is_noticed() {
    let warned = |filter: &str| {
        let plan = resolve(|request| {
            request.nproc_per_node = Some("2".to_owned());
            request.local_ranks_filter = filter.to_owned();
        });
        plan.expect("valid")
            .warnings
            .iter()
            .any(|warning| warning.contains("hides all output: the local ranks here are 0 to 1"))
    };
    assert!(warned("7") && warned("2,3"));
    assert!(!warned("1") && !warned("1,7") && !warned(""));
}

#[test]
fn options_that_stand_behind_the_script_are_named() {
    let warned = |word: &str, no_python: bool| {
        let plan = resolve(|request| {
            request.script_arguments = vec!["--lr".into(), "--log-dir=runs".into(), word.into()];
            request.no_python = no_python;
        });
        plan.expect("valid").warnings.iter().any(|warning| warning.contains("stands behind the script"))
    };
    assert!(warned("--nproc-per-node", false) && warned("--nproc_per_node=2", false) && warned("--nnodes=2", false));
    assert!(!warned("--nproc", false) && !warned("nnodes", false) && !warned("--nnodes", true));
}

#[test]
fn nodes_that_were_told_no_endpoint_are_told_where_they_meet() {
    let warned = |endpoint: &str| {
        let plan = resolve(|request| {
            request.nnodes = Some("2".to_owned());
            request.rdzv_backend = Some("c10d".to_owned());
            request.rdzv_endpoint = endpoint.to_owned();
        });
        plan.expect("valid").warnings.iter().any(|warning| warning.contains("the nodes meet at localhost:29400"))
    };
    assert!(warned("") && !warned("localhost:29400"));
    let warned = |port: Option<u16>, host: &str| {
        let plan = resolve(|request| {
            request.nnodes = Some("2".to_owned());
            request.master_port = port;
            request.master_addr = Some(host.to_owned());
        });
        plan.expect("valid").warnings.iter().any(|warning| warning.contains("the nodes meet at 127.0.0.1:29500"))
    };
    assert!(warned(None, "127.0.0.1") && !warned(Some(29500), "127.0.0.1") && !warned(None, "node1"));
}

#[test]
fn wrong_command_lines_are_refused_with_a_hint() {
    type Change = fn(&mut Request);
    let cases: [(Change, &str); 17] = [
        (|request| request.nnodes = Some("2:1".to_owned()), "minimum is larger"),
        (|request| request.nnodes = Some("0".to_owned()), "at least one node"),
        (|request| request.nnodes = Some("two".to_owned()), "not a number of nodes"),
        (|request| request.nproc_per_node = Some("0".to_owned()), "nproc-per-node"),
        (|request| request.max_restarts = -1, "--max-restarts -1"),
        (|request| request.node_rank = Some(-1), "--node-rank -1"),
        (|request| request.shutdown_timeout = Some(-1), "--shutdown-timeout -1"),
        (|request| request.rdzv_backend = Some("etcd".to_owned()), "etcd"),
        (|request| request.rdzv_backend = Some("mine".to_owned()), "\"mine\" is not known"),
        (|request| request.rdzv_endpoint = "host".to_owned(), "has no port"),
        (|request| request.rdzv_endpoint = "host:x".to_owned(), "port"),
        (|request| request.rdzv_conf = "a".to_owned(), "--rdzv-conf"),
        (|request| request.redirects = "5".to_owned(), "--redirects"),
        (|request| request.local_ranks_filter = "a".to_owned(), "--local-ranks-filter"),
        (
            |request| {
                request.no_python = true;
                request.module = true;
            },
            "contradict",
        ),
        (
            |request| {
                request.nnodes = Some("2".to_owned());
                request.node_rank = Some(2);
            },
            "--node-rank 2 does not exist",
        ),
        (
            |request| {
                request.standalone = true;
                request.nnodes = Some("2".to_owned());
            },
            "--standalone runs on one node",
        ),
    ];
    for (change, part) in cases {
        let refused = resolve(change).expect_err(part);
        assert!(refused.message.contains(part), "{part} in {}", refused.message);
        assert!(!refused.hint.is_empty(), "{}", refused.message);
    }
}

#[test]
fn lost_ranks_are_replaced_where_the_user_asks_for_it() {
    let plan = resolve(|_| {}).expect("valid");
    assert_eq!((plan.terms.step_recovery, plan.spares), (false, SpareKind::EachRank));
    let plan = resolve(|request| request.recover = "step".to_owned()).expect("valid");
    assert_eq!((plan.terms.step_recovery, plan.spares), (true, SpareKind::Shared(1)));
    assert_eq!(plan.preload, ["instep.elastic", "torch._dynamo"]);
    let cold = resolve(|request| {
        request.recover = "step".to_owned();
        request.spares = Some("0".to_owned());
    });
    assert_eq!(cold.expect("valid").preload, Vec::<String>::new());
    let other_modules = resolve(|request| {
        request.recover = "step".to_owned();
        request.spares = Some("2".to_owned());
        request.preload = Some("jax".to_owned());
    });
    let plan = other_modules.expect("valid");
    assert_eq!((plan.spares, plan.preload, plan.warnings), (SpareKind::Shared(2), vec!["jax".to_owned()], Vec::new()));
    let legacy = resolve(|request| {
        request.recover = "step".to_owned();
        request.pass_local_rank = true;
    });
    let plan = legacy.expect("valid");
    assert_eq!(plan.spares, SpareKind::Shared(0));
    assert!(plan.warnings[0].starts_with("no spares are kept: the command line names ${local_rank}"));
    let hot = resolve(|request| {
        request.recover = "step".to_owned();
        request.spares = Some("hot".to_owned());
        request.pass_local_rank = true;
    });
    let plan = hot.expect("a spare of its own fits every rank");
    assert_eq!((plan.spares, plan.warnings), (SpareKind::Hot, Vec::new()));
    assert_eq!(plan.preload, ["instep.elastic", "torch._dynamo"]);
}

#[test]
fn recovery_over_several_nodes_notices_silence_and_keeps_the_order_of_sums() {
    for backend in ["static", "c10d"] {
        let several = |request: &mut Request| {
            request.recover = "step".to_owned();
            request.nnodes = Some("3".to_owned());
            request.rdzv_backend = Some(backend.to_owned());
            request.rdzv_endpoint = "a:29400".to_owned();
        };
        let plan = resolve(several).expect("valid");
        let heartbeat = plan.heartbeat.expect("also where ranks are given");
        assert!(heartbeat.coordinator_window() + heartbeat.interval <= Duration::from_secs(5), "{heartbeat:?}");
        assert!(
            plan.warnings.iter().any(|warning| warning.starts_with("INSTEP_ORDER=canonical")),
            "{:?}",
            plan.warnings
        );
        let late = resolve(|request| {
            several(request);
            request.rdzv_conf = "keep_alive_interval=5,keep_alive_max_attempt=3".to_owned();
        });
        assert!(late.expect_err("too late").message.contains("would be noticed after 30 s"));
        let without_python = resolve(|request| {
            several(request);
            request.no_python = true;
            request.spares = Some("2".to_owned());
        });
        let plan = without_python.expect("room for ranks of lost nodes");
        assert_eq!((plan.spares, plan.preload), (SpareKind::Shared(2), Vec::new()));
    }
    let plan = resolve(|request| request.recover = "step".to_owned()).expect("valid");
    assert!(plan.heartbeat.is_none() && !plan.warnings.iter().any(|warning| warning.contains("INSTEP_ORDER")));
}

#[test]
fn jobs_whose_ranks_cannot_be_replaced_are_refused_with_a_hint() {
    type Change = fn(&mut Request);
    let cases: [(Change, &str, &str); 5] = [
        (|request| request.recover = "always".to_owned(), "neither round nor step", "step replaces that one"),
        (
            |request| request.spares = Some("2".to_owned()),
            "--spares 2 has no effect without --recover step",
            "add --recover step",
        ),
        (
            |request| {
                request.recover = "step".to_owned();
                request.spares = Some("-1".to_owned());
            },
            "--spares \"-1\" is neither a number of processes nor hot",
            "0 starts replacements cold",
        ),
        (
            |request| {
                request.recover = "step".to_owned();
                request.nnodes = Some("1:4".to_owned());
                request.rdzv_backend = Some("static".to_owned());
            },
            "with a range of nodes (--nnodes 1:4) needs the c10d rendezvous",
            "--nnodes 4",
        ),
        (
            |request| {
                request.recover = "step".to_owned();
                request.no_python = true;
                request.spares = Some("1".to_owned());
            },
            "--spares and --no-python contradict each other",
            "leave one of them out",
        ),
    ];
    for (change, message, hint) in cases {
        let error = resolve(change).expect_err(message);
        assert!(error.message.contains(message) && error.hint.contains(hint), "{error:?}");
    }
}

#[test]
fn recovery_needs_the_store_of_the_launcher() {
    let mut request = request();
    request.recover = "step".to_owned();
    request.rdzv_backend = Some("c10d".to_owned());
    let served_by_rank_0 = |name: &str| match name {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" => Some("1".into()),
        other => environment(other),
    };
    let error = plan::resolve(request, served_by_rank_0).expect_err("refused");
    assert!(error.message.contains("needs the launcher's store") && error.hint.starts_with("unset "), "{error:?}");
}

#[test]
fn names_that_other_nodes_would_read_differently_are_refused() {
    for (name, shown) in [("456\r", r#""456\r""#), ("a\u{202e}b", r#""a\u{202e}b""#), ("tab\t", r#""tab\t""#)] {
        let id = |request: &mut Request| {
            request.nnodes = Some("2".to_owned());
            request.rdzv_id = Some(name.to_owned());
        };
        let error = resolve(id).expect_err("refused");
        assert!(error.message.starts_with(&format!("--rdzv-id {shown} has a character")), "{error:?}");
        assert!(error.hint.contains("line ends of Windows"), "{error:?}");
        let role = |request: &mut Request| {
            request.nnodes = Some("2".to_owned());
            request.role = name.to_owned();
        };
        assert!(resolve(role).expect_err("refused").message.starts_with(&format!("--role {shown} has a character")));
    }
    let plan = resolve(|request| {
        request.nnodes = Some("2".to_owned());
        request.rdzv_id = Some("job ü 火 7".to_owned());
    });
    assert_eq!(plan.expect("valid").job.run_id, "job ü 火 7");
}

#[test]
fn the_token_is_read_only_where_nodes_meet() {
    let missing = |request: &mut Request| request.job_token_file = Some("/no/such/file".into());
    assert!(resolve(missing).expect("one node").token.is_none());
    let error = resolve(|request| {
        missing(request);
        request.nnodes = Some("2".to_owned());
    });
    assert!(error.expect_err("two nodes").message.starts_with("cannot read the job's token from /no/such/file"));
}

#[test]
fn the_token_may_be_in_a_variable_and_a_file_comes_first() {
    let digits = "ab".repeat(32);
    let resolve = |value: &str, change: fn(&mut Request)| {
        let mut request = request();
        request.nnodes = Some("2".to_owned());
        change(&mut request);
        plan::resolve(request, |name| match name {
            "INSTEP_JOB_TOKEN" => Some(value.into()),
            other => environment(other),
        })
    };
    assert!(resolve(&digits, |_| {}).expect("a token").token.is_some());
    assert!(resolve("", |_| {}).expect("switched off").token.is_none());
    let error = resolve("password", |_| {}).expect_err("no token");
    assert_eq!(error.message, "INSTEP_JOB_TOKEN does not hold a job's token");
    let error =
        resolve(&digits, |request| request.job_token_file = Some("/no/such/file".into())).expect_err("the file");
    assert!(error.message.contains("/no/such/file"), "{}", error.message);
    let alone = |request: &mut Request| request.nnodes = Some("1".to_owned());
    assert!(resolve("password", alone).expect("one node").token.is_none());
}
