//! The SSH server of a shell: one key opens it, one user owns everything in it, and nothing of it needs root.
//!
//! ```text
//! ssh ── ProxyCommand ── websocket ──▶ master ── TCP ──▶ instep sshd ──┬─▶ a program, or the user's shell
//!                                                                     ├─▶ instep sftp-server: files
//!                                                                     ╰─▶ a port that the task can reach
//! ```
//!
//! The task's supervisor starts `instep sshd` as the entrypoint of a shell, as the task's own user and in its view of the
//! machine. So a session has exactly the rights, the variables and the folder that a command would have.
//!
//! - [`server`] listens, and lets in whoever has the key.
//! - `session` runs what one channel asks for; `terminal` is what it runs in, if it wants one.
//! - `forward` connects a channel to a port.
//! - `gate` bounds what is read ahead of a program that does not take its input.
//! - [`sftp`] serves files over standard input and output: `protocol` has the packets, `files` does what they ask.
//!
//! Deliberately absent: passwords, other users, agents and ports that are forwarded back, X11.

mod forward;
mod gate;
pub mod server;
mod session;
pub mod sftp;
mod terminal;
