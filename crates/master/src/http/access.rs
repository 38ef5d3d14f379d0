//! Who may call a route, and about which thing: what the table of routes says, and guards and handlers ask.

/// Who may call a route, with which kind of token: a login's, a task's or an agent's.
///
/// Tasks speak for their owners, and for less: they read, make things, and change what is their own. What
/// administrators may do, the tasks of administrators may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody, without a token.
    Open,
    /// Everybody on this machine, and users.
    LocalOrUser,
    /// Users and their tasks, about a thing: nothing is changed. With roles, those who see the thing.
    Read(Thing),
    /// Users and their tasks: something new is made, which belongs to the user. With roles, where the user may: the
    /// handler asks [`Call::may_make`](super::call::Call).
    Make,
    /// Users who have logged in, about themselves.
    Login,
    /// Users who have logged in and, with roles, may give roles where the body says: the handler asks.
    Share,
    /// Whose thing it is, and administrators; the task that it belongs to.
    Change(Thing),
    /// Users who administrate and have logged in.
    Administrator,
    /// Agents by a token of their own, those of an engine's job by their allocation's, and users who administrate and have
    /// logged in.
    Agent,
    /// Users and their tasks, by a token in a header: what a task serves. Whoever has none is let through: browsers that want
    /// a page are sent to where the pages of tasks are, and the handler passes on what is for everybody.
    Proxy,
    /// Browsers with a key for the task's pages, or a ticket for one: the handler asks for it. No token counts.
    TaskKey,
}

/// What is read or changed, and where its name is: in the path, unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thing {
    /// The cluster and its users, which everybody who has logged in may know; never changed.
    Common,
    /// What the master logs: everybody's who has logged in, but with roles it tells of what not everybody sees, and is for
    /// administrators.
    Log,
    /// Things that the query names, or all: the handler leaves out what the caller may not see. It has to ask, or
    /// nothing is answered.
    Several,
    Experiment,
    ExternalExperiment,
    Trial,
    Allocation,
    Checkpoint,
    /// A command or a TensorBoard.
    Command,
    /// A trial's task, or one of those.
    Task,
    Model,
    ModelVersion,
    Workspace,
    Project,
    Template,
    /// Oneself; never by a task.
    User,
    /// Several, or one that the body names: the handler asks [`Call::may_change`](super::call::Call) for each.
    InBody,
}
