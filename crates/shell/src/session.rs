//! What one channel asks for: a program, the user's shell or files, with or without a terminal.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, User, geteuid};
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::gate::Gate;
use super::terminal::{Size, Terminal};

/// How long a program that has ended may have left output in a pipe that others hold: no longer than this in silence.
const SILENCE: Duration = Duration::from_millis(100);
/// Bytes that are read at a time.
const CHUNK: usize = 32 << 10;
/// The stream of errors, as the protocol numbers it.
const STDERR: u32 = 1;

/// What sessions find around them.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// The variables of the task.
    pub variables: BTreeMap<OsString, OsString>,
    /// This program, which serves files too.
    pub program: PathBuf,
}

/// What a client wants before it says what is to run.
#[derive(Default)]
struct Asked {
    terminal: Option<(String, Size)>,
    variables: Vec<(String, String)>,
}

enum Program {
    /// The user's shell.
    Shell,
    /// A line for it.
    Line(Vec<u8>),
    /// Files.
    Sftp,
}

/// What runs.
struct Running {
    child: Child,
    group: Pid,
    terminal: Option<Terminal>,
    input: mpsc::UnboundedSender<bytes::Bytes>,
    outputs: Vec<JoinHandle<()>>,
    exited: watch::Sender<bool>,
}

/// Serves a channel to its end.
pub(crate) async fn run(channel: Channel<Msg>, handle: Handle, gate: Arc<Gate>, around: Arc<Surroundings>) {
    let (mut read, write) = channel.split();
    let id = write.id();
    let Some((program, asked)) = question(&mut read, &handle, &write).await else { return };
    match start(&program, &asked, &around, &write, &gate) {
        Ok(running) => {
            let _ = handle.channel_success(id).await;
            attend(running, &mut read, &write, &handle, &gate).await;
        }
        Err(error) => {
            let _ = handle.channel_success(id).await;
            let said = format!("cannot start a program in this shell: {error}\r\n");
            let _ = write.extended_data_bytes(STDERR, said.into_bytes()).await;
            let _ = write.exit_status(126).await;
        }
    }
    let _ = write.eof().await;
    let _ = write.close().await;
}

/// Hears what is to run; `None` if the client goes before it says.
async fn question(
    read: &mut ChannelReadHalf,
    handle: &Handle,
    write: &ChannelWriteHalf<Msg>,
) -> Option<(Program, Asked)> {
    let id = write.id();
    let mut asked = Asked::default();
    loop {
        let granted = match read.wait().await? {
            ChannelMsg::RequestShell { .. } => return Some((Program::Shell, asked)),
            ChannelMsg::Exec { command, .. } => return Some((Program::Line(command), asked)),
            ChannelMsg::RequestSubsystem { name, .. } if name == "sftp" => return Some((Program::Sftp, asked)),
            ChannelMsg::RequestPty { term, col_width, row_height, pix_width, pix_height, .. } => {
                let size = Size { columns: col_width, rows: row_height, width: pix_width, height: pix_height };
                asked.terminal = Some((term, size));
                true
            }
            ChannelMsg::SetEnv { variable_name, variable_value, .. } => {
                let granted = may_be_set(&variable_name, &variable_value) && asked.variables.len() < 100;
                if granted {
                    asked.variables.push((variable_name, variable_value));
                }
                granted
            }
            ChannelMsg::RequestSubsystem { .. } | ChannelMsg::RequestX11 { .. } | ChannelMsg::AgentForward { .. } => {
                false
            }
            ChannelMsg::Close => return None,
            _ => continue,
        };
        let _ = if granted { handle.channel_success(id).await } else { handle.channel_failure(id).await };
    }
}

/// Which variables a client may set: those that say how text is shown, as OpenSSH's server has it.
fn may_be_set(name: &str, value: &str) -> bool {
    let plain = !name.contains(['=', '\0']) && !value.contains('\0');
    plain && (["LANG", "COLORTERM", "NO_COLOR"].contains(&name) || name.starts_with("LC_"))
}

/// The user's shell.
fn shell(variables: &BTreeMap<OsString, OsString>) -> PathBuf {
    let runs = |path: &PathBuf| path.is_absolute() && path.is_file();
    let of_account = || User::from_uid(geteuid()).ok().flatten().map(|user| user.shell);
    let usual = || ["/bin/bash", "/bin/sh"].map(PathBuf::from).into_iter().find(runs);
    // An account that nobody logs in to has a shell that says so.
    let is_one = |path: &PathBuf| runs(path) && !path.ends_with("nologin") && !path.ends_with("false");
    let own = variables.get(OsStr::new("SHELL")).map(PathBuf::from).filter(is_one);
    own.or_else(|| of_account().filter(is_one)).or_else(usual).unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

fn command(program: &Program, around: &Surroundings) -> Command {
    let shell = shell(&around.variables);
    let mut command = match program {
        // Not as a login shell: /etc/profile would set another PATH than the task's.
        Program::Shell => Command::new(&shell),
        Program::Line(line) => {
            let mut command = Command::new(&shell);
            command.arg("-c").arg(OsString::from_vec(line.clone()));
            command
        }
        Program::Sftp => {
            let mut command = Command::new(&around.program);
            command.arg("sftp-server");
            command
        }
    };
    command.env_clear().envs(&around.variables).env("SHELL", shell);
    command
}

fn start(
    program: &Program,
    asked: &Asked,
    around: &Surroundings,
    write: &ChannelWriteHalf<Msg>,
    gate: &Arc<Gate>,
) -> io::Result<Running> {
    let mut command = command(program, around);
    command.envs(asked.variables.iter().map(|(name, value)| (name, value)));
    let (exited, sees_exit) = watch::channel(false);
    let (input, queue) = mpsc::unbounded_channel();
    let mut outputs = Vec::new();
    if let Some((term, size)) = &asked.terminal {
        command.env("TERM", if term.is_empty() || term.contains('\0') { "dumb" } else { term });
        let terminal = Terminal::open(*size, &mut command)?;
        let (reader, writer) = terminal.streams()?;
        let child = tokio::process::Command::from(command).spawn()?;
        // The end of the client's input is not the end of a terminal.
        tokio::spawn(feed(queue, Some(writer), Arc::clone(gate)));
        outputs.push(tokio::spawn(drain(reader, write.make_writer(), sees_exit, Arc::clone(gate))));
        return Ok(Running { group: group_of(&child)?, child, terminal: Some(terminal), input, outputs, exited });
    }
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command).spawn()?;
    tokio::spawn(feed(queue, child.stdin.take(), Arc::clone(gate)));
    if let Some(output) = child.stdout.take() {
        outputs.push(tokio::spawn(drain(output, write.make_writer(), sees_exit.clone(), Arc::clone(gate))));
    }
    if let Some(errors) = child.stderr.take() {
        outputs.push(tokio::spawn(drain(errors, write.make_writer_ext(Some(STDERR)), sees_exit, Arc::clone(gate))));
    }
    Ok(Running { group: group_of(&child)?, child, terminal: None, input, outputs, exited })
}

/// A program leads a group of its own.
fn group_of(child: &Child) -> io::Result<Pid> {
    let pid = child.id().ok_or_else(|| io::Error::other("it has ended already"))?;
    Ok(Pid::from_raw(pid.cast_signed()))
}

/// Takes what the client says while a program runs, and says how it ended.
async fn attend(
    mut running: Running,
    read: &mut ChannelReadHalf,
    write: &ChannelWriteHalf<Msg>,
    handle: &Handle,
    gate: &Gate,
) {
    let mut input = Some(running.input);
    let mut status = None;
    loop {
        let drained = status.is_some() && running.outputs.iter().all(JoinHandle::is_finished);
        if drained {
            break;
        }
        tokio::select! {
            ended = running.child.wait(), if status.is_none() => {
                status = Some(ended);
                let _ = running.exited.send(true);
            }
            () = tokio::time::sleep(SILENCE / 4), if status.is_some() => {}
            message = read.wait() => match message {
                Some(ChannelMsg::Data { data }) => {
                    gate.enter(data.len());
                    let unsent = match &input {
                        Some(input) => input.send(data).err().map(|unsent| unsent.0),
                        None => Some(data),
                    };
                    gate.leave(unsent.map_or(0, |data| data.len()));
                }
                Some(ChannelMsg::Eof) => input = None,
                Some(ChannelMsg::WindowChange { col_width, row_height, pix_width, pix_height }) => {
                    let size = Size { columns: col_width, rows: row_height, width: pix_width, height: pix_height };
                    // A terminal without a program needs no size.
                    let _ = running.terminal.as_ref().map(|terminal| terminal.resize(size));
                }
                Some(ChannelMsg::Signal { signal }) => {
                    let _ = number_of(&signal).map(|signal| killpg(running.group, signal));
                }
                None | Some(ChannelMsg::Close) => {
                    running.outputs.iter().for_each(JoinHandle::abort);
                    hang_up(&running.group, status.is_none());
                    // Reaped by the runtime, whenever it ends.
                    return;
                }
                Some(_) => {}
            },
        }
    }
    if let Some(Ok(status)) = status {
        say_end(status, write, handle).await;
    }
}

/// Whoever wants to live on after the client has gone takes care of that, with `nohup` or `tmux`.
fn hang_up(group: &Pid, runs: bool) {
    if runs {
        for signal in [Signal::SIGHUP, Signal::SIGCONT] {
            let _ = killpg(*group, signal);
        }
    }
}

async fn say_end(status: ExitStatus, write: &ChannelWriteHalf<Msg>, handle: &Handle) {
    let signal = status.signal().and_then(|signal| Signal::try_from(signal).ok());
    let _ = match (status.code(), signal) {
        (Some(code), _) => write.exit_status(code.cast_unsigned()).await.map_err(|_| ()),
        (None, Some(signal)) => {
            let name = Sig::Custom(signal.as_str().trim_start_matches("SIG").to_owned());
            handle.exit_signal_request(write.id(), name, status.core_dumped(), String::new(), String::new()).await
        }
        (None, None) => write.exit_status(1).await.map_err(|_| ()),
    };
}

fn number_of(signal: &Sig) -> Option<Signal> {
    Some(match signal {
        Sig::ABRT => Signal::SIGABRT,
        Sig::ALRM => Signal::SIGALRM,
        Sig::FPE => Signal::SIGFPE,
        Sig::HUP => Signal::SIGHUP,
        Sig::ILL => Signal::SIGILL,
        Sig::INT => Signal::SIGINT,
        Sig::KILL => Signal::SIGKILL,
        Sig::PIPE => Signal::SIGPIPE,
        Sig::QUIT => Signal::SIGQUIT,
        Sig::SEGV => Signal::SIGSEGV,
        Sig::TERM => Signal::SIGTERM,
        Sig::USR1 => Signal::SIGUSR1,
        Sig::Custom(_) => return None,
    })
}

/// Gives a program its input, and ends it when there is no more. What a program that has ended does not take is dropped.
pub(crate) async fn feed(
    mut queue: mpsc::UnboundedReceiver<bytes::Bytes>,
    mut writer: Option<impl AsyncWrite + Unpin>,
    gate: Arc<Gate>,
) {
    while let Some(data) = queue.recv().await {
        if let Some(open) = &mut writer
            && open.write_all(&data).await.is_err()
        {
            writer = None;
        }
        gate.leave(data.len());
    }
    if let Some(mut writer) = writer {
        let _ = writer.shutdown().await;
    }
}

/// Passes output on, to its end; after the program's end for as long as something comes.
pub(crate) async fn drain(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    mut exited: watch::Receiver<bool>,
    gate: Arc<Gate>,
) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let silence = async {
            // A sender that is gone is a session that is over.
            let _ = exited.wait_for(|exited| *exited).await;
            tokio::time::sleep(SILENCE).await;
        };
        let read = tokio::select! {
            biased;
            read = reader.read(&mut buffer) => read,
            () = silence => return,
        };
        // A terminal whose program has ended answers with an error.
        let Ok(count @ 1..) = read else { return };
        if gate.send(&mut writer, &buffer[..count]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_set_what_is_about_text_alone() {
        for (name, value, may) in [
            ("LANG", "C.UTF-8", true),
            ("LC_ALL", "C", true),
            ("PATH", "/tmp", false),
            ("LD_PRELOAD", "x", false),
            ("LC_=", "C", false),
            ("LANG", "a\0b", false),
        ] {
            assert_eq!(may_be_set(name, value), may, "{name}={value:?}");
        }
    }

    #[test]
    fn a_shell_that_is_none_is_not_used() {
        let of = |path: &str| shell(&BTreeMap::from([("SHELL".into(), path.into())]));
        assert_eq!(of("/bin/sh"), PathBuf::from("/bin/sh"));
        for path in ["/usr/sbin/nologin", "/bin/false", "relative", "/not/there"] {
            assert!(!of(path).ends_with("nologin") && !of(path).ends_with("false") && of(path).is_file(), "{path}");
        }
    }
}
