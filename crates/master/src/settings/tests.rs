//! Settings of all sources together, and what they mean.

use std::path::PathBuf;

use super::{Assignments, Settings, SettingsError};
use crate::encryption::Encryption;

fn gather(file: &str, variables: &[(&str, &str)], flags: Assignments) -> Result<Settings, SettingsError> {
    let environment = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
    Settings::gather(Some(("m.yaml".into(), file)), environment, flags, Some("/data".into()))
}

#[test]
fn later_sources_win_and_every_value_knows_its_own() {
    let file = "port: 1\nhost: 127.0.0.2\nallow_hosts: [a, b]\n";
    let variables = [("INSTEP_MASTER_PORT", "2"), ("INSTEP_MASTER_ALLOW_HOSTS", "c, d"), ("INSTEP_MASTER_DB", "")];
    let settings = gather(file, &variables, vec![("port", vec!["3".into()])]).unwrap();
    let shown: Vec<String> =
        settings.rows().iter().map(|(name, value, origin)| format!("{name}={value} ({origin})")).collect();
    for expected in [
        "host=127.0.0.2 (m.yaml)",
        "port=3 (--port)",
        "db=/data/instep/master.db (default)",
        "allow_hosts=c, d (INSTEP_MASTER_ALLOW_HOSTS)",
    ] {
        assert!(shown.iter().any(|line| line == expected), "{expected} in {shown:?}");
    }
    let options = settings.options().unwrap();
    assert_eq!((options.port, options.allowed_hosts.len()), (3, 2));
}

#[test]
fn wrong_settings_are_explained_with_their_place() {
    let cases = [
        ("prot: 1", "unknown key `prot` in m.yaml", "did you mean `port`?"),
        ("zzz: 1", "unknown key `zzz`", "the keys are host"),
        ("port: 70000", "`port` in m.yaml: `70000` is not a port", "instep master --help"),
        ("port: [1]", "`port` in m.yaml must be a single value", ""),
        ("allow_hosts: {a: 1}", "`allow_hosts` in m.yaml must be a single value", ""),
        ("tls: {crt: x}", "unknown key `tls.crt` in m.yaml", "did you mean `tls.cert`?"),
        ("tls: 1", "`tls` in m.yaml must be a map of keys", ""),
        ("log: {format: xml}", "`log.format` in m.yaml: `xml` is not one of text, json", ""),
        ("session_hours: 0", "`0` is not a number of hours", ""),
        ("proxy_url: example.org", "`proxy_url` in m.yaml: `example.org` is not an address such as https://", ""),
        ("[1]", "not a map", "YAML"),
        ("a: [", "cannot read m.yaml", "YAML"),
    ];
    for (file, what, hint) in cases {
        let error = gather(file, &[], vec![]).unwrap_err();
        assert!(error.to_string().contains(what) && error.hint().contains(hint), "{file}: {error} {}", error.hint());
    }
    let error = gather("", &[("INSTEP_MASTER_PORT", "x")], vec![]).unwrap_err();
    assert_eq!(error.to_string(), "INSTEP_MASTER_PORT: `x` is not a port, 0 to 65535");
    assert!(gather("# nothing\n", &[], vec![]).is_ok() && gather("port:\n", &[], vec![]).is_ok());
}

#[test]
fn a_database_is_a_file_or_in_postgresql() {
    for (db, what) in [
        ("postgresql+psycopg2://ann:s3cret@db/x", "at postgresql+psycopg2://ann:********@db/x"),
        ("mysql://db/x", "at mysql://db/x"),
        ("POSTGRES://ann:a?s3cret@db/x", "@"),
    ] {
        let error = gather("", &[("INSTEP_MASTER_DB", db)], vec![]).unwrap().options().unwrap_err();
        let told = error.to_string();
        assert!(told.contains(what) && !told.contains("s3cret") && !error.hint().is_empty(), "{told}");
    }
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().display().to_string();
    let settings = gather("", &[], vec![("db", vec![shown.clone()])]).unwrap();
    let error = settings.options().unwrap_err();
    assert_eq!(error.to_string(), format!("the database {shown} is a folder"));
    assert_eq!(error.hint(), format!("name a file in it: --db {shown}/instep.db"));
    let options = gather("db: Postgres://ann@db/x", &[], vec![]).unwrap().options().unwrap();
    assert_eq!(options.shown_database(), "ann@db:5432/x, schema instep");
    let refused = gather("", &[], vec![("db", vec!["POSTGRES://ann:s3cret@db/x".into()])]).unwrap_err();
    assert!(refused.to_string().contains("list of processes") && !refused.to_string().contains("s3cret"));
}

#[test]
fn several_masters_need_a_server_and_an_address_that_stays() {
    let options = |file: &str| gather(file, &[], vec![]).unwrap().options();
    let db = "db: postgres://ann@db/x\n";
    let file = format!("{db}advertise: http://a:8080/\ncheckpoints: /c\nstorage_roots: [/d]");
    let options_of_several = options(&file).unwrap();
    assert_eq!(options_of_several.advertise.as_deref(), Some("http://a:8080"));
    assert_eq!(options_of_several.shared_folders, [PathBuf::from("/c"), PathBuf::from("/d")]);
    assert_eq!(options(db).unwrap().advertise, None);
    for (file, what) in [
        ("advertise: http://a:8080".to_owned(), "a file has one master"),
        (format!("{db}advertise: http://a:8080\nport: 0"), "another port after each start"),
        (format!("{db}advertise: http://0.0.0.0:8080"), "every machine's own address"),
        (format!("{db}advertise: 'http://[::]:8080'"), "every machine's own address"),
        (format!("{db}advertise: https://a:8080"), "not how this master serves"),
        (format!("{db}advertise: http://a:8080\ntls: {{self_signed: true}}"), "not how this master serves"),
    ] {
        let error = options(&file).unwrap_err();
        assert!(error.to_string().contains(what) && !error.hint().is_empty(), "{file}: {error}");
    }
    assert!(gather("advertise: a:8080", &[], vec![]).is_err());
}

#[test]
fn a_certificate_needs_its_key() {
    let options = |file| gather(file, &[], vec![]).unwrap().options();
    assert_eq!(options("").unwrap().encryption, None);
    assert_eq!(options("tls: {self_signed: true}").unwrap().encryption, Some(Encryption::SelfSigned));
    let files = Encryption::Files { certificate: "c".into(), key: "k".into() };
    assert_eq!(options("tls: {cert: c, key: k}").unwrap().encryption, Some(files));
    for wrong in ["tls: {cert: c}", "tls: {key: k}", "tls: {cert: c, key: k, self_signed: true}"] {
        assert!(options(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_pages_of_tasks_have_a_port_of_their_own() {
    let options = |file: &str| gather(file, &[], vec![]).unwrap().options();
    assert_eq!(options("").unwrap().proxy_port, None);
    assert_eq!(options("proxy_port: 0\nport: 0").unwrap().proxy_port, Some(0));
    assert_eq!(
        options("proxy_url: https://tasks.example.org/").unwrap().proxy_url.unwrap(),
        "https://tasks.example.org"
    );
    let error = options("proxy_port: 8080").unwrap_err();
    assert!(error.to_string().contains("own port 8080") && error.hint().contains("--proxy-port"), "{error}");
    let hosts = "port: 443\nallow_hosts: [m.example.org]\nproxy_url: ";
    for (before, url) in [
        ("proxy_url: ", "http://127.0.0.1:8080"),
        ("proxy_url: ", "http://LOCALHOST:8080/"),
        ("host: 10.0.0.1\nproxy_url: ", "http://10.0.0.1:8080"),
        (hosts, "https://m.example.org"),
    ] {
        let error = options(&format!("{before}{url}")).unwrap_err();
        let said = error.to_string().contains("own address http") && error.hint().contains("--proxy-url");
        assert!(said, "{url}: {error} {}", error.hint());
    }
    for other in ["https://t.example.org", "https://m.example.org:8443"] {
        assert!(options(&format!("{hosts}{other}")).is_ok(), "{other}");
    }
}
