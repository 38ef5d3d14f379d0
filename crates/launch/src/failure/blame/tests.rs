//! Texts as torch 2.15 and the backend instep print them.

use super::{Blame, BlameKind, exceptions, of_abort, of_exceptions, of_text};
use proptest::prelude::{any, proptest};

const GLOO: &str = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp";

fn blame(kind: BlameKind, ranks: &[usize], operation: Option<&str>) -> Option<Blame> {
    Some(Blame { kind, ranks: ranks.to_vec(), operation: operation.map(str::to_owned) })
}

#[test]
fn texts_that_are_consequences_say_of_whom_as_far_as_they_know() {
    let (lost, late, other) = (BlameKind::Lost, BlameKind::Late, BlameKind::Disagreement);
    let closed =
        format!("{GLOO}/pair.cc:561] Connection closed by peer [127.0.0.1]:12206. This is typically caused by");
    let reset =
        format!("{GLOO}/pair.cc:545] Read error [127.0.0.1]:55999: Connection reset by peer. This is typically");
    let waited = format!("{GLOO}/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete");
    let cases: &[(&str, Option<Blame>)] = &[
        (
            "instep.errors.PeerLost: lost rank 1 on node-b during all_reduce(9 × float32, sum) (operation 5): its process \
             ended, noticed by rank 2 hint: its own output has the cause",
            blame(lost, &[1], Some("all_reduce")),
        ),
        (
            "RuntimeError: lost rank 1 on n during barrier (operation 5): it left the group, noticed by rank 0 (group 'tp': \
             ranks 4, 6, 8 of the job)",
            blame(lost, &[6], Some("barrier")),
        ),
        (
            "instep.errors.CollectiveTimeout: all_reduce(1 × float32, sum) (operation 5) timed out after 2s on rank 0: rank 1 had \
             not started it",
            blame(late, &[1], Some("all_reduce")),
        ),
        (
            "instep.errors.CollectiveTimeout: barrier (operation 0) timed out after 2s on rank 3: ranks 1, 2 had not started it",
            blame(late, &[1, 2], Some("barrier")),
        ),
        (
            "instep.errors.CollectiveTimeout: receive(8 bytes from rank 2, tag 0) (message 0) timed out after 2s on rank 0: rank 2 \
             had not sent it",
            blame(late, &[2], Some("receive")),
        ),
        (
            "instep.errors.CollectiveTimeout: barrier (operation 0) timed out after 2s on rank 3: every rank had started it, not all \
             had finished",
            blame(late, &[], Some("barrier")),
        ),
        (
            "instep.errors.Mismatch: rank 0 called all_reduce(9 × float32, sum) but rank 1 called broadcast(10 × float32, \
             from rank 0) as operation 5 of the group",
            blame(other, &[0, 1], None),
        ),
        ("instep.errors.Aborted: the group was aborted by rank 2", blame(lost, &[2], None)),
        (
            "instep.errors.ConnectFailed: rank 0 waited 5 s for ranks 1, 2 of 3 to join the group hint: look",
            blame(late, &[1, 2], None),
        ),
        (
            "instep.errors.ConnectFailed: could not connect the group within 5s: rank 1 did not arrive",
            blame(late, &[1], None),
        ),
        (&closed, blame(lost, &[], None)),
        (&reset, blame(lost, &[], None)),
        (&waited, blame(late, &[], None)),
        (
            "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms Original exception: [gloo/x] Timed out",
            blame(late, &[1], Some("monitored_barrier")),
        ),
        (
            "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from \
             rank 0. Please check rank 0 logs for faulty rank.",
            blame(lost, &[0], Some("monitored_barrier")),
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 2/3 clients joined.",
            blame(late, &[], None),
        ),
        (
            "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/0",
            blame(late, &[], None),
        ),
        ("torch.distributed.DistNetworkError: Connection reset by peer", blame(lost, &[], None)),
        (
            "torch.distributed.DistBackendError: NCCL error in: /p/NCCLUtils.cpp:328, remote process exited or there was a network \
             error, NCCL version 2.29.2 ncclRemoteError: A call failed possibly due to a network error or a remote process \
             exiting prematurely.",
            blame(lost, &[], None),
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: CollectiveFingerPrint(\
             ...), but Rank 0 is running collective: CollectiveFingerPrint(...)",
            blame(other, &[3, 0], None),
        ),
        (
            "RuntimeError: DDP expects same model across all ranks, but Rank 3 has 10 params, while rank 0 has inconsistent 8 params.",
            blame(other, &[3, 0], None),
        ),
        // The worker's own business, however much it sounds like another's.
        ("ValueError: boom", None),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", None),
        ("BrokenPipeError: [Errno 32] Broken pipe", None),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='data', port=443): Max retries, timed out",
            None,
        ),
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.", None),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", None),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address.",
            None,
        ),
        ("KeyError: 'lost rank 3'", None),
    ];
    for (text, expected) in cases {
        assert_eq!(of_text(text, 3), *expected, "{text}");
    }
    let own = "PeerLost: lost rank 3 on n during barrier (operation 5): its process ended, noticed by rank 0";
    assert_eq!(of_text(own, 3), None, "a rank is no consequence of itself");
}

fn of_lines(text: &str) -> (Vec<String>, Option<Blame>) {
    let chain = exceptions(text.lines());
    let blame = of_exceptions(&chain, 0);
    (chain.into_iter().map(|exception| exception.line).collect(), blame)
}

#[test]
fn the_last_traceback_counts_and_its_first_exception_decides() {
    let lost =
        "instep.errors.PeerLost: lost rank 1 on n during barrier (operation 5): its process ended, noticed by rank 0";
    let frames = "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    f()\n    ^^^\n";
    let chained = "\nDuring handling of the above exception, another exception occurred:\n\n";
    let named = blame(BlameKind::Lost, &[1], Some("barrier"));

    let (lines, found) = of_lines(&format!("{frames}{lost}\nhint: look\nbye\n"));
    assert_eq!((lines, found), (vec![lost.to_owned()], named.clone()));
    let (lines, found) = of_lines(&format!("{frames}{lost}\n{chained}{frames}OSError: cannot save\n"));
    assert_eq!((lines.len(), found), (2, named), "an error while cleaning up changes nothing");
    let (lines, found) = of_lines(&format!("{frames}ValueError: boom\n{chained}{frames}{lost}\n"));
    assert_eq!((lines.len(), found), (2, None), "it failed by itself, and then lost the others");
    let (lines, found) = of_lines(&format!("{frames}{lost}\nrecovered\nstep 7\n{frames}ValueError: boom\n"));
    assert_eq!((lines, found), (vec!["ValueError: boom".to_owned()], None), "an earlier traceback is history");
    assert_eq!(of_lines("no traceback\n"), (Vec::new(), None));

    let shown =
        format!("{frames}ValueError: boom\n[rank0]:[W1116 22:00:00.1 TCPStore.cpp:1] recvValue failed on SocketImpl\n");
    assert_eq!(of_lines(&shown).1, None, "what torch logs at the end is not the exception");
    let ranked: String = format!("{frames}{lost}\n").lines().map(|line| format!("[rank0]: {line}\n")).collect();
    assert_eq!(of_lines(&ranked).0, [lost]);
    let store = "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /a";
    let failed = "instep.errors.ConnectFailed: rank 0 waited 5 s for rank 1 of 2 to join the group";
    let direct = "\nThe above exception was the direct cause of the following exception:\n\n";
    let (_, found) = of_lines(&format!("{frames}{store}\n{direct}{frames}{failed}\n"));
    assert_eq!(found, blame(BlameKind::Late, &[1], None), "the exception that names a rank is the one to believe");
}

#[test]
fn an_abort_is_a_consequence_if_the_lines_before_it_say_so() {
    let of = |text: &str| of_abort(&text.lines().map(str::to_owned).collect::<Vec<_>>(), 0);
    let enforced = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at \
                    /p/third_party/gloo/gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes. 668 vs 8.";
    assert_eq!(of(enforced), blame(BlameKind::Disagreement, &[], None));
    let watchdog = "[rank0]:[E1116 22:00:00.1 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout: \
                    WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=5000) ran for 5012 milliseconds before timing out.";
    assert_eq!(of(watchdog), blame(BlameKind::Late, &[], None));
    assert_eq!(of("Assertion `x > 0' failed."), None);
}

proptest! {
    #[test]
    fn any_text_is_survived(text in any::<String>(), number in any::<usize>()) {
        let _ = of_text(&text, 0);
        let _ = of_text(&format!("lost rank {number}{text} on x during {text} ranks {number}, {number} of the job)"), 1);
        let _ = of_lines(&format!("Traceback (most recent call last):\n{text}"));
    }
}

#[test]
fn a_traceback_is_found_behind_a_progress_bar_and_around_lines_of_a_log() {
    let lines = [
        " 40%|####      | 4/10 [00:01<00:02,  2.5it/s][rank0]: Traceback (most recent call last):",
        "[rank0]:   File \"train.py\", line 3, in <module>",
        "[W1116 22:00:00.000000 socket.cpp:464] a thread of torch logs",
        "[rank0]: ValueError: no",
    ];
    let found: Vec<String> = exceptions(lines).into_iter().map(|exception| exception.line).collect();
    assert_eq!(found, ["ValueError: no"]);
}
