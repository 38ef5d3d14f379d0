//! A copy of objects in the API server, kept by listing them once and watching what changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::client::{Client, Error, Selection};
use super::objects::{Object, WatchEvent};
use crate::sync::lock;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What we have made ourselves counts for this long without having been watched.
const UNSEEN: Duration = Duration::from_secs(60);

/// Objects as they were a moment ago. Cheap to clone.
pub(crate) struct Mirror<T> {
    copy: Arc<Mutex<Copy<T>>>,
    changed: watch::Sender<()>,
}

impl<T> Clone for Mirror<T> {
    fn clone(&self) -> Mirror<T> {
        Mirror { copy: Arc::clone(&self.copy), changed: self.changed.clone() }
    }
}

/// What is known, without I/O.
struct Copy<T> {
    objects: BTreeMap<String, T>,
    /// Made by us, and not yet watched.
    made: BTreeMap<String, (T, Instant)>,
    /// From which version on is to be watched; none if everything must be listed.
    version: Option<String>,
    /// Why the copy is not kept at present.
    trouble: Option<String>,
    is_complete: bool,
}

impl<T: Object> Copy<T> {
    fn new() -> Copy<T> {
        Copy { objects: BTreeMap::new(), made: BTreeMap::new(), version: None, trouble: None, is_complete: false }
    }

    fn listed(&mut self, objects: Vec<T>, version: String, now: Instant) {
        self.objects = objects.into_iter().map(|object| (object.metadata().name.clone(), object)).collect();
        self.made.retain(|name, (made, since)| {
            let is_seen = self.objects.get(name).is_some_and(|object| !is_older(object, made));
            !is_seen && now.duration_since(*since) < UNSEEN
        });
        self.version = Some(version);
        self.trouble = None;
        self.is_complete = true;
    }

    /// `false` if the watch is over.
    fn happened(&mut self, event: WatchEvent<T>) -> bool {
        let is_deletion = matches!(event, WatchEvent::Deleted(_));
        match event {
            WatchEvent::Put(object) | WatchEvent::Deleted(object) => {
                let metadata = object.metadata();
                let name = metadata.name.clone();
                self.version = Some(metadata.resource_version.clone());
                // What happened before we made it is not news.
                self.made.retain(|made, (newer, _)| *made != name || (!is_deletion && is_older(&object, newer)));
                match is_deletion {
                    true => drop(self.objects.remove(&name)),
                    false => drop(self.objects.insert(name, object)),
                }
                true
            }
            WatchEvent::Bookmark(version) => {
                self.version = Some(version);
                true
            }
            WatchEvent::Error(status) => {
                // Whatever it is, a list says more.
                tracing::debug!(code = status.code, message = status.message, "a watch of Kubernetes has ended");
                self.version = None;
                false
            }
        }
    }

    fn all(&self, now: Instant) -> Vec<T> {
        self.filter(now, |_| true)
    }

    fn filter(&self, now: Instant, is_wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let made = self.made.iter().filter(|(_, (_, since))| now.duration_since(*since) < UNSEEN);
        let made: BTreeMap<&String, &T> = made.map(|(name, (object, _))| (name, object)).collect();
        let watched = self.objects.iter().filter(|(name, _)| !made.contains_key(name));
        let all = watched.map(|(_, object)| object).chain(made.values().copied());
        all.filter(|object| is_wanted(object)).cloned().collect()
    }
}

/// Whether an object is an earlier state than another of the same name. Versions are numbers that grow, as far as anybody has
/// seen; of others nothing is known, and what comes later counts.
fn is_older<T: Object>(object: &T, than: &T) -> bool {
    let version = |object: &T| object.metadata().resource_version.parse::<u64>().ok();
    matches!((version(object), version(than)), (Some(one), Some(other)) if one < other)
}

impl<T: Object> Mirror<T> {
    pub(crate) fn new(changed: watch::Sender<()>) -> Mirror<T> {
        Mirror { copy: Arc::new(Mutex::new(Copy::new())), changed }
    }

    /// All objects; or why they are not known.
    pub(crate) fn all(&self) -> Result<Vec<T>, String> {
        let copy = lock(&self.copy);
        match &copy.trouble {
            Some(why) => Err(why.clone()),
            None if !copy.is_complete => Err("it has not answered yet".to_owned()),
            None => Ok(copy.all(Instant::now())),
        }
    }

    /// Waits until it is known for the first time what there is, or why not.
    pub(crate) async fn first(&self) {
        let mut changes = self.changed.subscribe();
        let is_waiting = || {
            let copy = lock(&self.copy);
            !copy.is_complete && copy.trouble.is_none()
        };
        while is_waiting() && changes.changed().await.is_ok() {}
    }

    /// It cannot be kept at all at present.
    pub(crate) fn fail(&self, why: &str) {
        lock(&self.copy).trouble = Some(why.to_owned());
        self.changed.send_replace(());
    }

    /// We have made this: it counts from now on, though no watch has shown it.
    pub(crate) fn made(&self, object: T) {
        let name = object.metadata().name.clone();
        lock(&self.copy).made.insert(name, (object, Instant::now()));
        self.changed.send_replace(());
    }

    /// We have deleted this.
    pub(crate) fn forget(&self, name: &str) {
        lock(&self.copy).made.remove(name);
    }

    /// Those of the objects that are wanted, as far as they are known.
    pub(crate) fn filter(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<T> {
        lock(&self.copy).filter(Instant::now(), is_wanted)
    }

    /// Keeps the copy for ever. `heard` is told of every object that changes, first: it may be gone when somebody looks.
    pub(crate) async fn keep(self, client: Client, selection: Selection, heard: impl Fn(&T)) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.follow(&client, &selection, &heard).await {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    // A server that ends watches at once must not be asked for ever more.
                    tokio::time::sleep(FIRST_PAUSE).await;
                }
                Err(error) => {
                    let first = lock(&self.copy).trouble.replace(error.to_string()).is_none();
                    match first {
                        true => tracing::warn!(%error, kind = T::PLURAL, "cannot watch Kubernetes; retrying"),
                        false => tracing::debug!(%error, kind = T::PLURAL, "still cannot watch Kubernetes"),
                    }
                    if error.is_expired() {
                        lock(&self.copy).version = None;
                    }
                    tokio::time::sleep(error.retry_after().unwrap_or(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            self.changed.send_replace(());
        }
    }

    /// Lists if there is nothing to go on from, then watches until that ends.
    async fn follow(&self, client: &Client, selection: &Selection, heard: &impl Fn(&T)) -> Result<(), Error> {
        let known = lock(&self.copy).version.clone();
        let version = match known {
            Some(version) => version,
            None => {
                let (objects, version) = client.list::<T>(selection).await?;
                lock(&self.copy).listed(objects, version.clone(), Instant::now());
                self.changed.send_replace(());
                version
            }
        };
        let mut watch = client.watch::<T>(selection, &version).await?;
        lock(&self.copy).trouble = None;
        while let Some(event) = watch.next().await? {
            if let WatchEvent::Put(object) = &event {
                heard(object);
            }
            let goes_on = lock(&self.copy).happened(event);
            self.changed.send_replace(());
            if !goes_on {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::{Metadata, Pod, Status};
    use super::*;

    fn pod(name: &str, version: u32) -> Pod {
        let metadata = Metadata { name: name.to_owned(), resource_version: version.to_string(), ..Metadata::default() };
        Pod { metadata, ..Pod::default() }
    }

    fn names(copy: &Copy<Pod>, now: Instant) -> Vec<String> {
        let mut names: Vec<String> = copy.all(now).into_iter().map(|pod| pod.metadata.name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_copy_follows_what_happens() {
        let (mut copy, now) = (Copy::new(), Instant::now());
        copy.listed(vec![pod("a", 1), pod("b", 2)], "5".to_owned(), now);
        assert!(copy.happened(WatchEvent::Put(pod("c", 6))));
        assert!(copy.happened(WatchEvent::Deleted(pod("a", 7))));
        assert_eq!((names(&copy, now), copy.version.as_deref()), (vec!["b".to_owned(), "c".to_owned()], Some("7")));
        assert!(copy.happened(WatchEvent::Bookmark("9".to_owned())));
        assert_eq!(copy.version.as_deref(), Some("9"));
        let expired = Status { code: 410, ..Status::default() };
        assert!(!copy.happened(WatchEvent::Error(expired)));
        assert_eq!(
            (copy.version.as_deref(), names(&copy, now).len()),
            (None, 2),
            "it is listed anew, and known until then"
        );
    }

    #[test]
    fn what_we_made_counts_before_it_is_watched_and_not_after_it_is_gone() {
        let (mut copy, now) = (Copy::new(), Instant::now());
        copy.made.insert("m".to_owned(), (pod("m", 8), now));
        // This list was made before it.
        copy.listed(Vec::new(), "7".to_owned(), now);
        assert_eq!(names(&copy, now), ["m"]);
        assert!(copy.happened(WatchEvent::Put(pod("m", 8))));
        assert!(copy.happened(WatchEvent::Deleted(pod("m", 9))));
        assert!(names(&copy, now).is_empty());
        copy.made.insert("c".to_owned(), (pod("c", 12), now));
        assert!(copy.happened(WatchEvent::Put(pod("c", 11))), "as it was before we changed it");
        let shown = copy.all(now);
        assert_eq!((shown.len(), shown[0].metadata.resource_version.as_str()), (1, "12"));
        assert!(copy.happened(WatchEvent::Put(pod("c", 13))) && copy.made.is_empty());
        assert!(copy.happened(WatchEvent::Deleted(pod("c", 14))));
        copy.made.insert("n".to_owned(), (pod("n", 10), now));
        assert!(names(&copy, now + UNSEEN).is_empty(), "somebody else has deleted it before we looked");
    }
}
