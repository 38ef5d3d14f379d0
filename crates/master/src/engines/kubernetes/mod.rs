//! Kubernetes, by its API: one Job for each allocation, whose pods are the allocation's agents.
//!
//! - `access`: where the API server is, and who we are there. `client`: the calls. `objects`: what we read of its answers.
//! - `settings`: what a pool says. `template`: pod templates, and what users may write there. `manifest`: what is asked for.
//! - `mirror`: Jobs and pods as they were a moment ago. `observed`: what they mean. `gangs`: half-placed ones.
//!
//! A Job is created suspended, then its Secret with the token, which it owns; then it is marked as ready and may start. A
//! master that is killed in between leaves a Job that does not count: it is adopted by the next submission of the same
//! allocation, which has the same name, or deleted after a while. All else is in Kubernetes, and read from there after a
//! restart.

mod access;
mod client;
mod gangs;
mod manifest;
mod mirror;
mod objects;
mod observed;
pub mod settings;
pub(crate) mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use instep_policy::engine::{JobId, Seen};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::options::{EngineOptions, EngineSettings};
use super::{Gang, ResourceManager};
use crate::sync::lock;
use access::Access;
use client::{Client, Error};
use gangs::{Action, Gangs, State};
pub(crate) use manifest::job_name;
use manifest::{ALLOCATION_ANNOTATION, Place, READY, RELEASED};
use mirror::Mirror;
use objects::{Job, Object, Pod};
use observed::{Observed, look};
use settings::KubernetesSettings;

/// For the first answer of an API server.
const FIRST_ANSWER: Duration = Duration::from_secs(20);
/// A Job that is not ready was given up by whoever made it. A submission takes at most three calls.
const GIVEN_UP: Duration = Duration::from_secs(120);
/// Between two looks at a pool, however often something changes; and however rarely.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Before further attempts to submit, if the server may take it then.
const RETRIES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// Between two attempts to read a kubeconfig.
const READ_AGAIN: Duration = Duration::from_secs(10);

/// A pool of a master that is Kubernetes'.
pub(crate) struct Kubernetes {
    pool: Arc<Pool>,
    keeper: JoinHandle<()>,
}

/// What it is, with what is known of its Jobs.
struct Pool {
    cluster: String,
    name: String,
    settings: KubernetesSettings,
    master: String,
    client: Mutex<Option<Client>>,
    jobs: Mirror<Job>,
    pods: Mirror<Pod>,
    changes: watch::Receiver<()>,
    /// Names of Jobs that are being made.
    submitting: Mutex<BTreeSet<String>>,
    /// Why pods of a Job, by its uid, were ended from outside: a pod that was preempted is gone soon.
    disrupted: Mutex<BTreeMap<String, String>>,
}

impl Kubernetes {
    /// Begins to watch a pool. `look` is called when something has changed.
    pub(crate) fn start(
        cluster: &str,
        pool: &str,
        options: &EngineOptions,
        look: impl Fn() + Send + 'static,
    ) -> Option<Kubernetes> {
        let found = options.pools.iter().find(|found| found.pool_name == pool)?;
        let EngineSettings::Kubernetes(settings) = &found.engine else { return None };
        let pool = Arc::new(Pool::new(cluster, pool.to_owned(), (**settings).clone(), &options.address));
        let keeper = tokio::spawn(Arc::clone(&pool).keep(look));
        Some(Kubernetes { pool, keeper })
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl ResourceManager for Kubernetes {
    async fn submit(&self, gang: &Gang) -> Result<JobId, String> {
        self.pool.submit(gang).await
    }

    async fn cancel(&self, jobs: &[JobId]) -> Result<(), String> {
        let mut failed = Vec::new();
        for JobId(name) in jobs {
            failed.extend(self.pool.delete(name).await.err());
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    async fn list(&self) -> Result<Vec<Seen>, String> {
        // It takes as long as it takes: what is not known then is not known.
        let _ = tokio::time::timeout(FIRST_ANSWER, self.pool.jobs.first()).await;
        let _ = tokio::time::timeout(FIRST_ANSWER, self.pool.pods.first()).await;
        let mut found: Vec<(String, Seen)> = Vec::new();
        for (job, observed) in self.pool.look()? {
            let allocation = job.metadata.annotations.get(ALLOCATION_ANNOTATION).cloned().unwrap_or_default();
            let seen = Seen { job: JobId(job.metadata.name), allocation, phase: observed.phase };
            found.push((job.metadata.creation_timestamp, seen));
        }
        found.sort_by(|(one, seen), (other, others)| (one, &seen.job).cmp(&(other, &others.job)));
        Ok(found.into_iter().map(|(_, seen)| seen).collect())
    }
}

impl Pool {
    fn new(cluster: &str, name: String, settings: KubernetesSettings, address: &str) -> Pool {
        let (changed, changes) = watch::channel(());
        Pool {
            cluster: cluster.to_owned(),
            master: settings.master_url.clone().unwrap_or_else(|| address.to_owned()),
            jobs: Mirror::new(changed.clone()),
            pods: Mirror::new(changed),
            client: Mutex::new(None),
            submitting: Mutex::new(BTreeSet::new()),
            disrupted: Mutex::new(BTreeMap::new()),
            changes,
            settings,
            name,
        }
    }

    fn place(&self) -> Place<'_> {
        Place { cluster: &self.cluster, pool: &self.name, settings: &self.settings, master: &self.master }
    }

    /// The client, from the files that say how: read until they can be.
    fn client(&self) -> Result<Client, String> {
        let mut client = lock(&self.client);
        if client.is_none() {
            let access = match &self.settings.kubeconfig {
                Some(file) => Access::kubeconfig(file, self.settings.context.as_deref()),
                None => Access::in_cluster(|name| std::env::var(name).ok()),
            };
            *client = Some(Client::new(access.map_err(|error| error.to_string())?));
        }
        client.clone().ok_or_else(|| "there is no client".to_owned())
    }

    fn namespace<'a>(&'a self, client: &'a Client) -> &'a str {
        self.settings.namespace.as_deref().unwrap_or(&client.access().namespace)
    }

    /// Creates the Job and its Secret, or finds those of an earlier attempt.
    async fn submit(&self, gang: &Gang) -> Result<JobId, String> {
        if let Some(what) = gang.container.objection(&self.settings) {
            return Err(what);
        }
        let client = self.client()?;
        let name = job_name(&self.cluster, &gang.allocation);
        lock(&self.submitting).insert(name.clone());
        let mut made = self.make(&client, gang, &name).await;
        for pause in RETRIES {
            let Err(error) = &made else { break };
            if !error.is_retryable() {
                break;
            }
            tokio::time::sleep(error.retry_after().unwrap_or(pause)).await;
            made = self.make(&client, gang, &name).await;
        }
        lock(&self.submitting).remove(&name);
        let job = made.map_err(|error| error.to_string())?;
        self.jobs.made(job);
        Ok(JobId(name))
    }

    async fn make(&self, client: &Client, gang: &Gang, name: &str) -> Result<Job, Error> {
        let namespace = self.namespace(client);
        let job = match client.create(Job::GROUP, Job::PLURAL, namespace, &manifest::job(self.place(), gang)).await {
            Err(error) if error.already_exists() => self.adopt(client.get(namespace, name).await?, gang)?,
            made => made?,
        };
        let secret = manifest::secret(self.place(), &job.metadata, gang);
        let made = async {
            let made = client.create::<Value>("api/v1", "secrets", namespace, &secret).await;
            if made.as_ref().is_err_and(Error::already_exists) {
                // Of an earlier attempt, whose token nobody remembers.
                client.delete("api/v1", "secrets", namespace, name).await?;
                client.create::<Value>("api/v1", "secrets", namespace, &secret).await?;
            } else {
                made?;
            }
            client.patch(namespace, name, &manifest::ready(&self.settings)).await
        };
        let made = made.await;
        if made.is_err() {
            // It would never start. If this fails, too, it is deleted later: it does not count.
            let _ = client.delete(Job::GROUP, Job::PLURAL, namespace, name).await;
        }
        made
    }

    /// A Job that has the name already: ours, or somebody else's.
    fn adopt(&self, job: Job, gang: &Gang) -> Result<Job, Error> {
        let refused = |why: &str| {
            let why = format!("there is a Job {} already, {why}", job.metadata.name);
            Err(Error::Unreadable { what: "create a job".to_owned(), why })
        };
        if job.metadata.annotations.get(ALLOCATION_ANNOTATION) != Some(&gang.allocation) {
            return refused("which is not of this allocation");
        }
        if job.metadata.deletion_timestamp.is_some() {
            return refused("which is being deleted");
        }
        Ok(job)
    }

    async fn delete(&self, name: &str) -> Result<(), String> {
        let client = self.client()?;
        self.jobs.forget(name);
        match client.delete(Job::GROUP, Job::PLURAL, self.namespace(&client), name).await {
            Err(error) if !error.is_not_found() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// All Jobs that count, with what they and their pods mean.
    fn look(&self) -> Result<Vec<(Job, Observed)>, String> {
        let jobs = self.jobs.all()?;
        let mut pods: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in self.pods.all()? {
            pods.entry(owner(&pod).to_owned()).or_default().push(pod);
        }
        let ready = jobs.into_iter().filter(|job| job.metadata.annotations.contains_key(READY));
        let mut disrupted = lock(&self.disrupted);
        let known = std::mem::take(&mut *disrupted);
        let seen = ready.map(|job| {
            let uid = &job.metadata.uid;
            let pods: Vec<&Pod> = pods.get(uid).into_iter().flatten().collect();
            let known = known.get(uid).map(String::as_str);
            let observed = look(&job, &pods, self.settings.queue.as_deref(), known);
            disrupted.extend(observed.disrupted.clone().map(|why| (uid.clone(), why)));
            (job, observed)
        });
        Ok(seen.collect())
    }

    /// Remembers why a pod ends, should somebody else end it.
    fn note_disruption(&self, pod: &Pod) {
        let uid = owner(pod);
        if !observed::is_being_ended(pod) || lock(&self.disrupted).contains_key(uid) {
            return;
        }
        let others = self.pods.filter(|other| owner(other) == uid && other.metadata.name != pod.metadata.name);
        let [job] = &self.jobs.filter(|job| job.metadata.uid == uid)[..] else { return };
        let pods: Vec<&Pod> = others.iter().chain([pod]).collect();
        if let Some(why) = observed::disrupted(job, &pods) {
            lock(&self.disrupted).insert(uid.to_owned(), why);
        }
    }

    /// Keeps the copies, and has half-placed gangs give their nodes back, until it is aborted.
    async fn keep(self: Arc<Pool>, look: impl Fn() + Send + 'static) {
        let client = loop {
            match self.client() {
                Ok(client) => break client,
                Err(why) => {
                    tracing::warn!(pool = self.name, why, "cannot speak with Kubernetes; retrying");
                    self.jobs.fail(&why);
                    self.pods.fail(&why);
                    tokio::time::sleep(READ_AGAIN).await;
                }
            }
        };
        let (access, namespace) = (client.access(), self.namespace(&client));
        tracing::info!(pool = self.name, server = access.host, port = access.port, namespace, "a pool of Kubernetes");
        let selection = manifest::selection(&self.cluster, &self.name, namespace);
        tokio::join!(
            self.jobs.clone().keep(client.clone(), selection.clone(), |_| {}),
            self.pods.clone().keep(client.clone(), selection, |pod| self.note_disruption(pod)),
            self.tend(&client, look),
        );
    }

    async fn tend(&self, client: &Client, look: impl Fn()) {
        let mut gangs = Gangs::new(self.settings.patience());
        let mut unready: BTreeMap<String, Instant> = BTreeMap::new();
        let mut changes = self.changes.clone();
        loop {
            let pause = gangs.until_next(Instant::now()).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
            // An error means that nobody changes anything any more, and the time-out is as good.
            let _ = tokio::time::timeout(pause.max(SHORTEST_PAUSE), changes.changed()).await;
            look();
            self.decide(client, &mut gangs).await;
            self.sweep(client, &mut unready).await;
            tokio::time::sleep(SHORTEST_PAUSE).await;
        }
    }

    /// Has gangs give back what they cannot use, and try again.
    async fn decide(&self, client: &Client, gangs: &mut Gangs) {
        let Ok(seen) = self.look() else { return };
        // Kueue does it by itself.
        if self.settings.queue.is_some() {
            return;
        }
        let seen: Vec<gangs::Gang> = seen.iter().map(|(job, observed)| gang_of(job, observed)).collect();
        for action in gangs.decide(&seen, Instant::now()) {
            let (name, change) = match &action {
                Action::Release { name, times } => {
                    tracing::info!(job = name, times, "a gang found too few nodes, and gives back those it has");
                    (name, manifest::release(*times))
                }
                Action::Resume { name } => (name, manifest::resume()),
            };
            if let Err(error) = client.patch::<Job>(self.namespace(client), name, &change).await {
                // What is seen next says whether it is still to be done.
                tracing::warn!(job = name, %error, "cannot have a gang give back its nodes, or try again");
            }
        }
    }

    /// Deletes Jobs whose submission was given up.
    async fn sweep(&self, client: &Client, unready: &mut BTreeMap<String, Instant>) {
        let Ok(jobs) = self.jobs.all() else { return };
        let now = Instant::now();
        let names: BTreeSet<String> = jobs
            .into_iter()
            .filter(|job| !job.metadata.annotations.contains_key(READY))
            .map(|job| job.metadata.name)
            .filter(|name| !lock(&self.submitting).contains(name))
            .collect();
        unready.retain(|name, _| names.contains(name));
        for name in names {
            let since = *unready.entry(name.clone()).or_insert(now);
            if now.duration_since(since) >= GIVEN_UP {
                tracing::info!(job = name, "deleting a Job whose submission was given up");
                if let Err(error) = client.delete(Job::GROUP, Job::PLURAL, self.namespace(client), &name).await {
                    tracing::warn!(job = name, %error, "cannot delete it");
                }
            }
        }
    }
}

/// The uid of the Job that has made a pod. Two Jobs of the same name, one after the other, have different pods.
fn owner(pod: &Pod) -> &str {
    pod.metadata.labels.get("batch.kubernetes.io/controller-uid").map_or("", String::as_str)
}

fn gang_of(job: &Job, observed: &Observed) -> gangs::Gang {
    let released = job.metadata.annotations.get(RELEASED).and_then(|times| times.parse().ok());
    let state = match released {
        _ if observed.is_incomplete() => State::Incomplete,
        Some(_) if observed.suspended && observed.pods == 0 => State::Released,
        _ => State::Other,
    };
    gangs::Gang {
        name: job.metadata.name.clone(),
        created: job.metadata.creation_timestamp.clone(),
        released: released.unwrap_or(0),
        state,
    }
}
