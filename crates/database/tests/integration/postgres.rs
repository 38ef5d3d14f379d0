//! What only PostgreSQL does: sessions that end, a lock that several machines see, texts that it does not keep. Without the
//! server of INSTEP_TEST_DATABASE there is nothing to look at.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::made::{
    NOW, address, address_at, block, blocking, change, experiment, new_trial, number, open, opening, report, schema,
    server, text,
};
use instep_database::{
    AdvertisedEndpoint, Candidate, Database, Error, ExperimentFilter, ExperimentSort, Leadership, NewExperiment,
    PostgresAddress,
};
use serde_json::json;

/// Ends the sessions that have a schema's tables open, or that wait for their next statement there.
fn end_sessions(path: &std::path::Path, which: &str) -> i64 {
    number(
        path,
        &format!(
            "SELECT COUNT(*) FROM (SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
             WHERE pid <> pg_backend_pid() AND application_name = 'instep master' AND {which}) AS ended"
        ),
    )
}

/// Picks the session that holds the lock of a master.
const WRITER: &str = "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' \
                      AND objid = hashtext(current_schema())::oid)";

#[test]
fn a_second_master_is_kept_out_by_the_server_until_the_first_has_ended() {
    if server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [here, elsewhere] = ["here", "elsewhere"].map(|name| folder.path().join(name));
    let database = open(&here);
    let open_elsewhere = || blocking(|| Database::open_postgres(&elsewhere, address(&here), &opening()));
    assert!(matches!(open_elsewhere(), Err(Error::InUseElsewhere { holder, .. }) if holder.contains("127.0.0.1")));
    drop(database);
    assert_eq!(open_elsewhere().unwrap().cluster_id(), "cluster");
}

#[test]
fn lost_sessions_come_back_and_nothing_that_was_answered_is_lost() {
    if server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    block(async {
        let trial = new_trial(&database, true).await;
        for step in 1..=5 {
            database.report_metrics(report(trial, 1, "training", step, json!({"a": step}))).await.unwrap();
            assert_eq!(end_sessions(&path, WRITER), 1);
        }
        database.report_metrics(report(trial, 1, "training", 6, json!({"a": 6}))).await.unwrap();
        assert_eq!(database.trial(trial, NOW).await.expect("loopback works").total_batches_processed, 6);
        assert_eq!(number(&path, "SELECT COUNT(*) FROM metric_tail"), 6);
    });
}

/// A way to the server of which one end can be lost without a word to the other.
struct Way {
    port: u16,
    clients: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn to(server: &str) -> Way {
        let (_, place) = server.split_once('@').expect("loopback works");
        let target = place.split('/').next().expect("loopback works").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback works");
        let way = Way { port: listener.local_addr().expect("loopback works").port(), clients: Arc::default() };
        let clients = Arc::clone(&way.clients);
        // The threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(&target).expect("loopback works");
                clients.lock().expect("loopback works").push(client.try_clone().expect("loopback works"));
                let (from_client, to_server) =
                    (client.try_clone().expect("loopback works"), server.try_clone().expect("loopback works"));
                std::thread::spawn(move || pass(from_client, to_server));
                std::thread::spawn(move || pass(server, client));
            }
        });
        way
    }

    /// Loses the connections that there are: for the server they stay.
    fn cut(&self) -> usize {
        let clients = std::mem::take(&mut *self.clients.lock().expect("loopback works"));
        // Some have ended already.
        clients.iter().for_each(|client| drop(client.shutdown(Shutdown::Both)));
        clients.len()
    }
}

/// Passes on what comes, until nothing does; the other end hears nothing of that.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    loop {
        std::thread::park();
    }
}

#[test]
fn a_session_that_the_server_takes_for_alive_does_not_keep_its_own_master_out() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let way = Way::to(&server);
    let (who, place) = server.split_once('@').unwrap();
    let (_, name) = place.split_once('/').unwrap();
    let address = address_at(&format!("{who}@127.0.0.1:{}/{name}", way.port), &path);
    let database = blocking(|| Database::open_postgres(&path, address, &opening())).unwrap();
    block(async {
        let trial = new_trial(&database, true).await;
        assert!(way.cut() >= 5, "the master's connections were there");
        assert_eq!(number(&path, &format!("SELECT COUNT(*) FROM pg_stat_activity WHERE {WRITER}")), 1);
        database.report_metrics(report(trial, 1, "training", 1, json!({"a": 1}))).await.unwrap();
        assert_eq!(database.trial(trial, NOW).await.unwrap().total_batches_processed, 1);
    });
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!("postgres://ann@{}/x?connect_timeout=1", silent.local_addr().unwrap());
    let address = PostgresAddress::parse(&text, None).unwrap();
    let opened = blocking(|| Database::open_postgres(&folder.path().join("a"), address, &opening()));
    match opened.err().unwrap() {
        Error::Refused { why, hint, .. } => assert!(why.contains("does not answer") && hint.contains("stopped")),
        other => panic!("{other}"),
    }
}

#[test]
fn a_server_is_reached_by_its_socket() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let sockets = text(&path, "SELECT current_setting('unix_socket_directories')");
    let port = number(&path, "SELECT current_setting('port')::BIGINT");
    let (who, place) = server.split_once('@').unwrap();
    let (_, name) = place.split_once('/').unwrap();
    let address = address_at(&format!("{who}@{}:{port}/{name}", sockets.replace('/', "%2F")), &path);
    let database = blocking(|| Database::open_postgres(&path, address, &opening())).unwrap();
    assert_eq!(database.cluster_id(), "cluster");
}

#[test]
fn who_lacks_rights_is_told_which() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let (schema, user) = (schema(&path), format!("guest_{}", std::process::id()));
    let (_, place) = server.split_once('@').unwrap();
    let open = || {
        let address = address_at(&format!("postgres://{user}@{place}"), &path);
        match blocking(|| Database::open_postgres(&path, address, &opening())).err() {
            Some(Error::Refused { hint, .. }) => hint,
            Some(other) => panic!("{other}"),
            None => "",
        }
    };
    change(&path, &format!("CREATE ROLE {user} LOGIN"));
    assert!(open().contains("CREATE SCHEMA"));
    change(&path, &format!("CREATE SCHEMA \"{schema}\""));
    assert!(open().contains("GRANT USAGE, CREATE ON SCHEMA"));
    change(&path, &format!("GRANT USAGE ON SCHEMA \"{schema}\" TO {user}"));
    assert!(open().contains("GRANT USAGE, CREATE ON SCHEMA"));
    change(&path, &format!("GRANT CREATE ON SCHEMA \"{schema}\" TO {user}"));
    assert_eq!(open(), "");
}

#[test]
fn one_whose_lock_was_taken_meanwhile_steps_down() {
    if server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [path, elsewhere] = ["a.db", "b.db"].map(|name| folder.path().join(name));
    let database = open(&path);
    block(async {
        let trial = new_trial(&database, true).await;
        // The other one gets the lock between the end of the session and the next change.
        assert_eq!(end_sessions(&path, WRITER), 1);
        let other = blocking(|| Database::open_postgres(&elsewhere, address(&path), &opening())).unwrap();
        let refused = database.report_metrics(report(trial, 1, "training", 1, json!({"a": 1}))).await.unwrap_err();
        assert!(matches!(refused, Error::SteppedDown(_)), "{refused}");
        assert!(database.ended().await.contains("another master"));
        drop(database);
        other.report_metrics(report(trial, 1, "training", 1, json!({"a": 1}))).await.unwrap();
    });
}

fn endpoint(name: &str) -> AdvertisedEndpoint {
    AdvertisedEndpoint {
        address: format!("http://{name}:1"),
        tasks_address: format!("http://{name}:2"),
        certificate: Some(vec![1, 2, 3]),
        peer_secret: format!("the secret of {name}"),
        settings: String::new(),
    }
}

/// Looks until something is so: sessions end a moment after they are told to.
fn look_until(candidate: &mut Candidate, wanted: impl Fn(&Leadership) -> bool) -> Leadership {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let look = blocking(|| candidate.look(None)).expect("the server answers");
        if wanted(&look) || Instant::now() > deadline {
            return look;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_of_several_masters_leads_and_the_next_takes_over() {
    if server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let [mut first, mut second] =
        ["first", "second"].map(|name| Candidate::new(&folder.path().join(name), address(&path), "test").unwrap());
    assert_eq!(blocking(|| first.look(None)).unwrap(), Leadership::Won);
    assert!(
        matches!(blocking(|| second.look(None)).unwrap(), Leadership::Nobody(_)),
        "it has the lock, and leads not yet"
    );
    let database = blocking(|| first.lead(&opening(), &endpoint("first"))).unwrap();
    match blocking(|| second.look(None)).unwrap() {
        Leadership::Leads(leader) => assert_eq!((leader.epoch, leader.endpoint), (1, endpoint("first"))),
        other => panic!("{other:?}"),
    }
    let trial = block(async {
        let trial = new_trial(&database, true).await;
        database.report_metrics(report(trial, 1, "training", 1, json!({"a": 1}))).await.unwrap();
        trial
    });

    // Its lease expires, whatever it believes, and its session is ended.
    change(
        &path,
        "CREATE FUNCTION stays() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN NEW.renewed_at = OLD.renewed_at; RETURN NEW; END $$",
    );
    change(&path, "CREATE TRIGGER stays BEFORE UPDATE ON leader FOR EACH ROW EXECUTE FUNCTION stays()");
    assert_eq!(look_until(&mut second, |look| *look == Leadership::Won), Leadership::Won);
    change(&path, "DROP TRIGGER stays ON leader");
    let other = blocking(|| second.lead(&opening(), &endpoint("second"))).unwrap();
    assert_eq!(other.epoch(), 2);
    block(async {
        let refused = database.report_metrics(report(trial, 1, "training", 2, json!({"a": 1}))).await.unwrap_err();
        assert!(matches!(refused, Error::SteppedDown(_)), "{refused}");
        assert!(!database.ended().await.is_empty());
        other.report_metrics(report(trial, 1, "training", 2, json!({"a": 1}))).await.unwrap();
    });
    drop(database);
    // One that ends in order is followed at once, also by a master that was away.
    let mut third = Candidate::new(&folder.path().join("third"), address(&path), "test").unwrap();
    assert!(matches!(blocking(|| third.look(None)).unwrap(), Leadership::Leads(leader) if leader.epoch == 2));
    assert!(matches!(blocking(|| third.look(Some("no folder"))).unwrap(), Leadership::Leads(_)));
    drop((other, second));
    assert_eq!(blocking(|| third.look(Some("no folder"))).unwrap(), Leadership::Nobody("no folder".to_owned()));
    assert_eq!(look_until(&mut third, |look| *look == Leadership::Won), Leadership::Won);
}

#[test]
fn a_master_that_is_alone_is_followed_by_nobody_and_never_ended() {
    if server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    let mut candidate = Candidate::new(&folder.path().join("other"), address(&path), "test").unwrap();
    match blocking(|| candidate.look(None)).unwrap() {
        Leadership::Nobody(why) => assert!(why.contains("without --advertise"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(database);
    assert_eq!(look_until(&mut candidate, |look| *look == Leadership::Won), Leadership::Won);
}

#[test]
fn what_failed_takes_nothing_else_of_its_transaction_back() {
    if server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcomes = runtime.block_on(async {
        let reports = (0..200).map(|step| {
            let database = database.clone();
            tokio::spawn(async move {
                let external_id = Some(format!("{}", step / 2));
                let name = if step % 3 == 0 { "no\0text".to_owned() } else { step.to_string() };
                let new = NewExperiment { external_id, name, ..experiment() };
                database.create_experiment(new, NOW).await.is_ok()
            })
        });
        let running: Vec<_> = reports.collect();
        let mut outcomes = Vec::new();
        for each in running {
            outcomes.push(each.await.unwrap());
        }
        outcomes
    });
    assert!(outcomes.iter().enumerate().all(|(step, stored)| *stored == (step % 3 != 0)), "{outcomes:?}");
    assert_eq!(number(&path, "SELECT COUNT(*) FROM experiments"), 100);
}

#[test]
fn a_text_that_is_a_number_is_looked_up_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder.path().join("a.db"));
    let unknown = block(database.model("7".to_owned()));
    assert!(matches!(unknown, Err(Error::NotFound { .. })), "{unknown:?}");
}

#[test]
fn texts_are_sorted_byte_by_byte_and_missing_values_count_as_the_smallest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    block(async {
        for name in ["b", "A", "a", "B", "Z_", "é"] {
            database.create_experiment(NewExperiment { name: name.into(), ..experiment() }, NOW).await.unwrap();
        }
        change(&path, "UPDATE experiments SET progress = 0.5 WHERE name = 'a'");
        for (sort, order, names) in [
            (ExperimentSort::Name, instep_api::pages::Order::Ascending, ["A", "B", "Z_", "a", "b", "é"]),
            (ExperimentSort::Progress, instep_api::pages::Order::Ascending, ["b", "A", "B", "Z_", "é", "a"]),
            (ExperimentSort::Progress, instep_api::pages::Order::Descending, ["a", "é", "Z_", "B", "A", "b"]),
        ] {
            let all = instep_api::pages::Slice::ALL;
            let (found, _) = database.experiments(ExperimentFilter::default(), sort, order, all, NOW).await.unwrap();
            assert_eq!(found.iter().map(|experiment| experiment.name.as_str()).collect::<Vec<_>>(), names);
        }
    });
}

#[test]
fn a_server_that_is_not_there_or_wants_another_password_is_named_with_a_hint() {
    let begin = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut cases =
        vec![(format!("postgres://ann:secret@127.0.0.1:{port}/x"), "refused", "check that the server runs")];
    if let Some(server) = server() {
        let (place, _) = server.rsplit_once('/').unwrap();
        cases.push((format!("{place}/nowhere"), "nowhere", "createdb"));
        let (_, place) = server.split_once('@').unwrap();
        cases.push((format!("postgres://locked:wrong@{place}"), "password authentication failed", "PGPASSWORD"));
    }
    for (text, why, hint) in cases {
        let address = PostgresAddress::parse(&text, None).unwrap();
        match blocking(|| Database::open_postgres(&folder.path().join("a"), address, &opening())).err().unwrap() {
            Error::Refused { place, why: found, hint: told, .. } => {
                assert!(found.contains(why) && told.contains(hint), "{found}: {told}");
                assert!(!place.contains("secret"), "{place}");
            }
            other => panic!("{text}: {other}"),
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "nobody waits for a server at the start");
}
