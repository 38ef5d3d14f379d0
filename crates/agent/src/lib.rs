//! Lends a machine's slots to a master, and runs what it is given.
//!
//! | module | part |
//! |---|---|
//! | [`agent`] | `instep agent`: speaks with the master, starts and stops tasks |
//! | [`task`] | `instep task`: prepares and supervises one allocation's share, and outlives its agent |
//! | [`order`] | what an agent writes down for a task |
//! | [`folder`] | where agent and task meet: files, and locks that say who lives |
//! | [`cgroup`] | how much of the machine a task may take |
//! | [`inheritance`] | which variables of the agent its tasks get |
//! | [`lines`] | how output becomes records of the log |
//!
//! Agent and task share no memory and no pipe: everything between them is a file in the share's folder, so either may
//! be killed at any line and the other goes on.
//!
//! Promises:
//!
//! 1. A share is started at most once, whoever is killed when: its folder appears complete or not at all, and only one
//!    process ever takes the step from ordered to running ([`folder::ShareFolder::claim`]).
//! 2. A share has ended when its guardian and its supervisor have, whatever a file says; then `exit.json` says how, and
//!    nothing of it runs any more.
//! 3. However a task ends, so does everything that it started.
//! 4. On an agent of root a task of another user can neither read nor write what agent and guardian say to each other.
//! 5. The agent's thread never waits for a task.
//! 6. A task that has heard nothing of the master for the reconnect window ends by itself.

pub mod agent;
pub mod cgroup;
pub mod folder;
pub mod inheritance;
pub mod lines;
pub mod order;
pub mod task;
