//! What Determined's launchers for DeepSpeed and Horovod need to start programs on the other machines of a trial.
//!
//! On every machine they start `/usr/sbin/sshd` as the task's user, with a configuration that they expect in
//! `/run/determined/ssh`; the first machine then runs `ssh` (DeepSpeed by `pdsh`), which is told neither a key nor a user.
//! So a trial on several machines finds there
//!
//! | file | for |
//! |---|---|
//! | `id_ed25519`, `authorized_keys` | both sides: one pair of keys for all shares of the allocation, made by the master |
//! | `sshd_config` | the server: that key alone, and no more than to run programs |
//! | `config`, `known_hosts` | the client: for the addresses of the trial alone; `/etc/ssh/ssh_config` includes it in the task's view |
//!
//! The paths are fixed in Determined's package, so this needs a mount namespace. OpenSSH and `pdsh` are the machine's own:
//! [`lacking`] says what is not installed.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use instep_api::link::{Entrypoint, SshKeys};

use super::environment::{Variables, find_program};
use super::master::Rendezvous;
use super::view::View;
use super::{interface, mounts};
use crate::folder::OpenedTaskFolder;

/// What Determined's launchers start; the path is fixed there.
const SERVER: &str = "/usr/sbin/sshd";
/// What clients of the machine read.
const CLIENTS: &str = "/etc/ssh/ssh_config";
/// Where root's server locks up the part of it that talks to strangers. Installing it is what makes it on some systems,
/// starting the machine's own server on others.
const EMPTY: &str = "/run/sshd";
/// What runs the lines that come. DeepSpeed 0.19 quotes variables that Determined has quoted already: bash complains about
/// what becomes of them and goes on, other shells end.
const SHELL: &str = "/bin/bash";
const FOLDER: &str = "/run/determined/ssh";

/// Lets the task's `ssh` find its configuration, and its server start as root. With the rights of the agent, in the task's
/// mount namespace.
pub fn show(share: &OpenedTaskFolder, as_root: bool) -> io::Result<()> {
    if as_root && Path::new(SERVER).exists() && !Path::new(EMPTY).exists() {
        fs::DirBuilder::new().mode(0o755).create(EMPTY)?;
    }
    let clients = Path::new(CLIENTS);
    let Ok(own) = fs::read_to_string(clients) else { return Ok(()) };
    let file = share.put("ssh_config", format!("Include {FOLDER}/config\n{own}").as_bytes())?;
    mounts::bind(&mounts::by_number(&file), clients)
}

/// The part of a trial that files are written for.
pub struct Part<'a> {
    /// Of the allocation.
    pub keys: &'a SshKeys,
    /// Who takes part.
    pub rendezvous: &'a Rendezvous,
    /// Of all servers.
    pub port: &'a str,
}

/// Writes the files, as the task's user.
pub fn write(folder: &Path, part: &Part<'_>) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(folder)?;
    let (addresses, key) = (addresses(part.rendezvous), part.keys.public.trim_end());
    let known = addresses.iter().map(|address| format!("[{address}]:{} {key}\n", part.port)).collect();
    let files = [
        ("id_ed25519", part.keys.private.clone()),
        ("authorized_keys", format!("{key}\n")),
        ("sshd_config", server(part)),
        ("config", client(&addresses)),
        ("known_hosts", known),
    ];
    files.iter().try_for_each(|(name, content)| {
        let file = fs::File::options().create_new(true).write(true).mode(0o600).open(folder.join(name));
        file.and_then(|mut file| file.write_all(content.as_bytes()))
    })
}

/// Those that can stand in a file of OpenSSH's. All do that machines have.
fn addresses(rendezvous: &Rendezvous) -> Vec<&str> {
    let plain = |address: &&String| {
        !address.is_empty() && address.chars().all(|sign| sign.is_ascii_alphanumeric() || ".:-_%".contains(sign))
    };
    rendezvous.addresses.iter().filter(plain).map(String::as_str).collect()
}

fn server(part: &Part<'_>) -> String {
    let own = part.rendezvous.addresses.get(part.rendezvous.rank);
    let own = own.and_then(|own| interface::of_address(own).map(|name| (own, name)));
    let listen = own.map(|(own, name)| format!("ListenAddress {own}\nSetEnv {}={name}\n", interface::VARIABLE));
    let listen = listen.unwrap_or_default();
    let command = match Path::new(SHELL).exists() {
        true => format!("ForceCommand exec {SHELL} -c \"$SSH_ORIGINAL_COMMAND\"\n"),
        false => String::new(),
    };
    format!(
        "{listen}\
         HostKey {FOLDER}/id_ed25519\n\
         AuthorizedKeysFile {FOLDER}/authorized_keys\n\
         AuthenticationMethods publickey\n\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         PermitRootLogin prohibit-password\n\
         StrictModes no\n\
         UsePAM no\n\
         PidFile none\n\
         DisableForwarding yes\n\
         PrintMotd no\n\
         MaxStartups 1000\n\
         LoginGraceTime 30\n\
         ClientAliveInterval 30\n\
         {command}"
    )
}

fn client(addresses: &[&str]) -> String {
    if addresses.is_empty() {
        return String::new();
    }
    let hosts = addresses.join(" ");
    format!(
        "Host {hosts}\n\
         \x20   IdentityFile {FOLDER}/id_ed25519\n\
         \x20   IdentitiesOnly yes\n\
         \x20   UserKnownHostsFile {FOLDER}/known_hosts\n\
         \x20   GlobalKnownHostsFile /dev/null\n\
         \x20   ServerAliveInterval 30\n"
    )
}

/// Whether an entrypoint names a launcher that passes the variables of the first machine on to all: those that only hold there
/// are not to be among them. [`interface::VARIABLE`] is set by the servers instead, each with its own.
pub fn passes_variables_on(entrypoint: &Entrypoint) -> bool {
    Launcher::of(entrypoint).is_some()
}

/// One of Determined's launchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Launcher {
    DeepSpeed,
    Horovod,
}

impl Launcher {
    fn of(entrypoint: &Entrypoint) -> Option<Launcher> {
        let names = |word: &str| match word {
            "determined.launch.deepspeed" => Some(Launcher::DeepSpeed),
            "determined.launch.horovod" => Some(Launcher::Horovod),
            _ => None,
        };
        match entrypoint {
            Entrypoint::Shell(line) => line.split_whitespace().find_map(names),
            Entrypoint::Arguments(words) => words.iter().find_map(|word| names(word)),
            Entrypoint::Own { .. } => None,
        }
    }

    fn module(self) -> &'static str {
        match self {
            Launcher::DeepSpeed => "determined.launch.deepspeed",
            Launcher::Horovod => "determined.launch.horovod",
        }
    }
}

/// What this machine lacks for the launcher that an entrypoint names, with what to do about it. The launcher itself would
/// end with an exception that names a file.
pub fn lacking(entrypoint: &Entrypoint, view: &View, rendezvous: &Rendezvous, variables: &Variables) -> Option<String> {
    let launcher = Launcher::of(entrypoint)?;
    let found = |program: &str| find_program(program, variables, &view.run).is_some();
    let facts = Facts {
        machines: rendezvous.addresses.len(),
        slots: rendezvous.slots.iter().sum(),
        first: rendezvous.rank == 0,
        fixed_paths: view.shim.is_none(),
        server: Path::new(SERVER).exists(),
        client: found("ssh"),
        pdsh: found("pdsh"),
        horovodrun: found("horovodrun"),
    };
    let (what, hint) = facts.lacking(launcher)?;
    Some(format!("{} {what}\nhint: {hint}", launcher.module()))
}

/// What the answer depends on.
#[derive(Debug, Clone, Copy)]
struct Facts {
    machines: usize,
    slots: u32,
    /// Whether this is the machine that starts the others' programs.
    first: bool,
    fixed_paths: bool,
    server: bool,
    client: bool,
    pdsh: bool,
    horovodrun: bool,
}

impl Facts {
    fn lacking(self, launcher: Launcher) -> Option<(&'static str, &'static str)> {
        const OTHERWISE: &str = "install it on the agents' machines, or use determined.launch.torch_distributed";
        if launcher == Launcher::Horovod && self.slots > 1 && self.first && !self.horovodrun {
            let hint = "pip install horovod there, or use determined.launch.torch_distributed or `instep run`";
            return Some(("starts `horovodrun`, which the Python of tasks on this agent does not have", hint));
        }
        if self.machines < 2 {
            return None;
        }
        if !self.fixed_paths {
            let hint = "run the agent as root or allow user namespaces, or use determined.launch.torch_distributed";
            return Some(("looks into /run/determined/ssh on several machines, which needs a mount namespace", hint));
        }
        if !self.server {
            let hint = "apt-get install openssh-server, or use determined.launch.torch_distributed or `instep run`";
            return Some(("starts /usr/sbin/sshd on several machines, which is not installed on this one", hint));
        }
        match launcher {
            _ if !self.first => None,
            _ if !self.client => Some(("starts `ssh`, which is not installed on this machine", OTHERWISE)),
            Launcher::DeepSpeed if !self.pdsh => {
                Some(("starts `pdsh` on several machines, which is not installed on this one", OTHERWISE))
            }
            Launcher::DeepSpeed | Launcher::Horovod => None,
        }
    }
}

/// Where the files are in a view; `None` without a mount namespace.
pub fn folder(view: &View) -> Option<PathBuf> {
    view.shim.is_none().then(|| view.run.join("ssh"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn rendezvous() -> Rendezvous {
        let addresses = ["127.0.0.1", "fd00::2", "node 3\nHost *"].map(str::to_owned).to_vec();
        Rendezvous { addresses, rank: 0, slots: vec![1, 1, 1] }
    }

    #[test]
    fn a_share_finds_its_keys_and_nobody_else_does() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("ssh");
        let keys = SshKeys { private: "secret\n".to_owned(), public: "ssh-ed25519 AAAA\n".to_owned() };
        let part = Part { keys: &keys, rendezvous: &rendezvous(), port: "12350" };
        write(&folder, &part).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("id_ed25519"))), (0o700, 0o600));
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read("id_ed25519"), "secret\n");
        assert_eq!(read("known_hosts"), "[127.0.0.1]:12350 ssh-ed25519 AAAA\n[fd00::2]:12350 ssh-ed25519 AAAA\n");
        assert!(read("config").starts_with("Host 127.0.0.1 fd00::2\n"), "{}", read("config"));
        assert!(
            read("sshd_config").starts_with("ListenAddress 127.0.0.1\nSetEnv GLOO_SOCKET_IFNAME=lo\n"),
            "{}",
            read("sshd_config")
        );
    }

    #[test]
    fn a_server_that_is_known_by_an_address_of_another_machine_listens_everywhere() {
        let keys = SshKeys { private: String::new(), public: String::new() };
        let elsewhere = Rendezvous { addresses: vec!["192.0.2.1".to_owned(), "127.0.0.1".to_owned()], ..rendezvous() };
        let text = server(&Part { keys: &keys, rendezvous: &elsewhere, port: "1" });
        assert!(!text.contains("ListenAddress"), "{text}");
    }

    #[test]
    fn what_a_launcher_lacks_is_named() {
        let shell = |text: &str| Launcher::of(&Entrypoint::Shell(text.to_owned()));
        let words = ["python3", "-m", "determined.launch.horovod", "train.py"].map(str::to_owned).to_vec();
        assert_eq!(shell("python3 -m determined.launch.deepspeed python3 x.py"), Some(Launcher::DeepSpeed));
        assert_eq!(Launcher::of(&Entrypoint::Arguments(words)), Some(Launcher::Horovod));
        assert_eq!(shell("python3 -m determined.launch.torch_distributed x.py"), None);
        let all = Facts {
            machines: 2,
            slots: 2,
            first: true,
            fixed_paths: true,
            server: true,
            client: true,
            pdsh: true,
            horovodrun: true,
        };
        let (deepspeed, horovod) = (Launcher::DeepSpeed, Launcher::Horovod);
        let cases = [
            (deepspeed, all, None),
            (deepspeed, Facts { horovodrun: false, ..all }, None),
            (deepspeed, Facts { fixed_paths: false, ..all }, Some("mount namespace")),
            (deepspeed, Facts { server: false, ..all }, Some("/usr/sbin/sshd")),
            (deepspeed, Facts { client: false, ..all }, Some("`ssh`")),
            (deepspeed, Facts { pdsh: false, ..all }, Some("`pdsh`")),
            (deepspeed, Facts { pdsh: false, first: false, ..all }, None),
            (deepspeed, Facts { machines: 1, pdsh: false, server: false, ..all }, None),
            (horovod, Facts { pdsh: false, ..all }, None),
            (horovod, Facts { machines: 1, horovodrun: false, ..all }, Some("`horovodrun`")),
            (horovod, Facts { machines: 1, slots: 1, horovodrun: false, ..all }, None),
        ];
        for (launcher, facts, expected) in cases {
            let found = facts.lacking(launcher).map(|(what, _)| what);
            assert_eq!(found.is_some(), expected.is_some(), "{launcher:?} {facts:?}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{found:?}");
        }
    }
}
