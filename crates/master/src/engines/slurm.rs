//! Slurm, by its commands: `sbatch`, `squeue` and `scancel`.
//!
//! All jobs are those of the master's own account. The token of a job's agents goes into its environment, which only that
//! account and Slurm's own see; of the master's environment jobs get no more than what programs need to run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use instep_policy::engine::{JobId, Seen};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::options::{EngineOptions, EngineSettings, SlotType, SlurmSettings};
use super::slurm_output::{FORMAT, comment, listed, submitted};
use super::{Gang, ResourceManager};

/// What each of Slurm's commands may take: a controller under load answers after several attempts.
const PATIENCE: Duration = Duration::from_secs(60);
/// Characters of a complaint that people are shown.
const LONGEST_COMPLAINT: usize = 1000;
/// The signal by which agents hear of an end that comes near, as `sbatch` calls it; others ignore it.
const SIGNAL: &str = "URG";
/// Seconds from the first agent's end to that of the others.
const LEAVING: u32 = 10;
/// A notice takes no more than this part of a time limit: Slurm sends it up to a minute early.
const PART_OF_LIMIT: u32 = 4;
/// The master's variables that commands and jobs have, too.
const INHERITED: &[&str] =
    &["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "SLURM_CONF", "SLURM_CONF_SERVER", "TZ", "USER"];
/// What is needed of Slurm.
const COMMANDS: &[&str] = &["sbatch", "scancel", "squeue"];

/// Slurm's commands that are missing here.
pub(crate) fn missing_commands() -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    COMMANDS.iter().copied().filter(|name| !is_there(name)).collect()
}

/// The pools of a master that are Slurm's.
pub(crate) struct Slurm {
    cluster: String,
    address: String,
    binary: PathBuf,
    pools: BTreeMap<String, SlurmSettings>,
}

impl Slurm {
    pub(crate) fn new(cluster: &str, options: &EngineOptions) -> Slurm {
        let pool = |pool: &super::options::EnginePool| match &pool.engine {
            EngineSettings::Slurm(settings) => Some((pool.pool_name.clone(), settings.clone())),
            EngineSettings::Kubernetes(_) => None,
        };
        Slurm {
            cluster: cluster.to_owned(),
            address: options.address.clone(),
            binary: options.binary.clone(),
            pools: options.pools.iter().filter_map(pool).collect(),
        }
    }

    /// The words of `sbatch`, whose script comes by its input.
    fn words(&self, gang: &Gang, pool: &SlurmSettings) -> Vec<String> {
        let mut words = vec![
            "--parsable".to_owned(),
            "--no-requeue".to_owned(),
            format!("--job-name={}", gang.title),
            format!("--comment={}", comment(&self.cluster, &gang.allocation)),
            format!("--nodes={}", gang.nodes),
            format!("--ntasks={}", gang.nodes),
            "--ntasks-per-node=1".to_owned(),
            // Where the master runs, nodes may have no such folder.
            "--chdir=/".to_owned(),
            format!("--output={}", pool.output.as_deref().unwrap_or("/dev/null")),
            "--export=ALL".to_owned(),
        ];
        words.extend(pool.partition.as_ref().map(|partition| format!("--partition={partition}")));
        if gang.slots_per_node > 0 {
            let kind = gang.gpu_type.as_ref().or(pool.gpu_type.as_ref());
            words.push(match (pool.slot_type, kind) {
                (SlotType::Cuda, Some(kind)) => format!("--gres=gpu:{kind}:{}", gang.slots_per_node),
                (SlotType::Cuda, None) => format!("--gres=gpu:{}", gang.slots_per_node),
                (SlotType::Cpu, _) => format!("--cpus-per-task={}", gang.slots_per_node),
            });
        }
        let given = || pool.options.iter().chain(&gang.arguments);
        let limit = given().rev().find_map(|word| word.strip_prefix("--time=")).and_then(seconds);
        let notice = limit.map_or(pool.notice, |limit| pool.notice.min(limit / PART_OF_LIMIT));
        if notice > 0 {
            // To all processes of the agents' step: to the batch shell alone, somebody would have to pass it on.
            words.push(format!("--signal={SIGNAL}@{notice}"));
        }
        words.extend(given().cloned());
        if !gang.excluded.is_empty() {
            words.push(format!("--exclude={}", gang.excluded.join(",")));
        }
        words
    }

    /// The batch script: one agent on each node, all of which end with the first. They leave together, some with an exit code,
    /// so each has a moment to tidy up.
    fn script(&self, gang: &Gang, pool: &SlurmSettings) -> String {
        let instep = pool.instep.as_deref().map_or(self.binary.as_path(), Path::new).to_string_lossy();
        let master = pool.master_url.as_deref().unwrap_or(&self.address);
        let mut agent = vec![instep.into_owned(), "agent".to_owned()];
        agent.push(format!("--for={}", gang.allocation));
        agent.push(format!("--master={master}"));
        if pool.slot_type == SlotType::Cpu || gang.slots_per_node == 0 {
            agent.push(format!("--slots={}", gang.slots_per_node));
        }
        agent.extend(pool.agent_options.iter().cloned());
        let agent: Vec<String> = agent.iter().map(|word| quoted(word)).collect();
        let nodes = gang.nodes;
        format!(
            "#!/bin/sh\nexec srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none --export=ALL \
             --kill-on-bad-exit=0 --wait={LEAVING} {}\n",
            agent.join(" ")
        )
    }

    /// Runs one of Slurm's commands to its end; gives what it printed.
    async fn run(&self, words: &[String], input: &str, more: &[(&str, &str)]) -> Result<String, String> {
        let (program, words) = words.split_first().ok_or("there is no command")?;
        let inherited = INHERITED.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        let inherited: Vec<(&str, OsString)> = inherited.collect();
        let failed = |error: std::io::Error| format!("cannot run {program}: {error}");
        let mut child = Command::new(program)
            .args(words)
            .env_clear()
            .envs(inherited)
            .envs(more.iter().copied())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let talk = async {
            if let Some(mut stdin) = stdin {
                // One that does not read its input says why.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            child.wait_with_output().await
        };
        let timeout = tokio::time::timeout(PATIENCE, talk).await;
        let output = timeout.map_err(|_| format!("{program} took longer than {} s", PATIENCE.as_secs()))?;
        let output = output.map_err(failed)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.trim().chars().filter(|letter| *letter == '\n' || !letter.is_control()).collect();
        let said: String = said.replace('\n', "; ").chars().take(LONGEST_COMPLAINT).collect();
        Err(if said.is_empty() { format!("{program} failed ({})", output.status) } else { said })
    }
}

impl ResourceManager for Slurm {
    async fn submit(&self, gang: &Gang) -> Result<JobId, String> {
        let pool = self.pools.get(&gang.pool).ok_or_else(|| format!("pool {} is not Slurm's", gang.pool))?;
        let mut words = vec!["sbatch".to_owned()];
        words.extend(self.words(gang, pool));
        let mut variables = vec![("INSTEP_AGENT_TOKEN", gang.token.as_str())];
        variables.extend(pool.master_cert_file.as_deref().map(|file| ("INSTEP_MASTER_CERT_FILE", file)));
        let output = self.run(&words, &self.script(gang, pool), &variables).await?;
        submitted(&output).ok_or_else(|| format!("sbatch did not say the number of the job: {}", output.trim()))
    }

    async fn cancel(&self, jobs: &[JobId]) -> Result<(), String> {
        let mut words = vec!["scancel".to_owned(), "--quiet".to_owned()];
        words.extend(jobs.iter().map(ToString::to_string));
        self.run(&words, "", &[]).await.map(drop)
    }

    async fn list(&self) -> Result<Vec<Seen>, String> {
        let words = ["squeue", "--noheader", "--me", "--states=all", &format!("--format={FORMAT}")];
        let output = self.run(&words.map(str::to_owned), "", &[]).await?;
        Ok(listed(&self.cluster, &output))
    }
}

/// A limit as `sbatch --time` takes it; `None` if it is none, or no limit.
fn seconds(text: &str) -> Option<u32> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse().ok()?, clock),
        None => (0, text),
    };
    let fields: Vec<u32> = clock.split(':').map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match (text.contains('-'), fields.as_slice()) {
        (true, [hours]) => (*hours, 0, 0),
        (true, [hours, minutes]) => (*hours, *minutes, 0),
        (false, [minutes]) => (0, *minutes, 0),
        (false, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let hours = 24_u32.checked_mul(days)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    minutes.checked_mul(60)?.checked_add(seconds).filter(|limit| *limit > 0)
}

/// A word as the shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slurm(settings: &str) -> Slurm {
        let text = format!("[{{pool_name: gpu, engine: {{type: slurm, slots_per_node: 4, {settings}}}}}]");
        let pools = super::super::options::read_pools(&text).unwrap();
        let options = EngineOptions { pools, address: "http://m:8080".to_owned(), binary: "/opt/instep".into() };
        Slurm::new("c", &options)
    }

    fn gang() -> Gang {
        Gang {
            allocation: "5.t.1".to_owned(),
            title: "instep trial 7".to_owned(),
            user: "ada".to_owned(),
            container: super::super::Container::default(),
            pool: "gpu".to_owned(),
            nodes: 2,
            slots_per_node: 4,
            gpu_type: None,
            arguments: vec!["--time=60".to_owned()],
            excluded: vec!["n3".to_owned()],
            token: "secret".to_owned(),
        }
    }

    #[test]
    fn a_job_has_what_pool_and_task_say_and_no_token_in_its_words() {
        let slurm = slurm("partition: a, gpu_type: h100, options: [--account=x], output: /shared/%j.out");
        let pool = &slurm.pools["gpu"];
        let (words, script) = (slurm.words(&gang(), pool).join(" "), slurm.script(&gang(), pool));
        for expected in [
            "--comment=instep:c:5.t.1",
            "--nodes=2 --ntasks=2 --ntasks-per-node=1",
            "--output=/shared/%j.out",
            "--partition=a --gres=gpu:h100:4 --signal=URG@60 --account=x --time=60 --exclude=n3",
        ] {
            assert!(words.contains(expected), "{expected} in {words}");
        }
        assert!(script.ends_with("'/opt/instep' 'agent' '--for=5.t.1' '--master=http://m:8080'\n"), "{script}");
        assert!(!words.contains("secret") && !script.contains("secret"));
    }

    #[test]
    fn a_notice_comes_before_the_end_of_a_job_and_leaves_time_before_it() {
        let said = |settings: &str, arguments: &[&str]| {
            let slurm = slurm(settings);
            let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
            let words = slurm.words(&Gang { arguments, ..gang() }, &slurm.pools["gpu"]);
            words.into_iter().find_map(|word| word.strip_prefix("--signal=").map(str::to_owned))
        };
        let cases: [(&str, &[&str], Option<&str>); 6] = [
            ("partition: a", &[], Some("URG@60")),
            ("notice: 0", &["--time=60"], None),
            ("notice: 600", &["--time=1-0"], Some("URG@600")),
            ("notice: 600", &["--time=1-0", "--time=20"], Some("URG@300")),
            ("notice: 600, options: ['--time=10:00:00']", &["--time=1"], Some("URG@15")),
            ("notice: 600, options: ['--time=10:00']", &[], Some("URG@150")),
        ];
        for (settings, arguments, expected) in cases {
            assert_eq!(said(settings, arguments).as_deref(), expected, "{settings} {arguments:?}");
        }
    }

    #[test]
    fn limits_are_read_as_sbatch_reads_them() {
        for (text, expected) in [
            ("90", Some(5400)),
            ("1:30", Some(90)),
            ("1:00:30", Some(3630)),
            ("2-0", Some(172_800)),
            ("2-1:30", Some(178_200)),
            ("1-0:0:1", Some(86_401)),
            ("0", None),
            ("UNLIMITED", None),
            ("-1", None),
            ("4294967295-4294967295", None),
            ("1:2:3:4", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn slots_may_be_processors_and_words_reach_the_agent_as_they_are() {
        let slurm = slurm("slot_type: cpu, instep: '/it''s/instep', agent_options: ['--python=$(id)']");
        let pool = &slurm.pools["gpu"];
        let words = slurm.words(&gang(), pool).join(" ");
        assert!(words.contains("--output=/dev/null") && words.contains("--cpus-per-task=4"), "{words}");
        assert!(!words.contains("--gres"), "{words}");
        let script = slurm.script(&gang(), pool);
        assert!(
            script.contains(r"'/it'\''s/instep' 'agent'") && script.contains("'--slots=4' '--python=$(id)'"),
            "{script}"
        );
        let none = slurm.script(&Gang { slots_per_node: 0, ..gang() }, pool);
        assert!(none.contains("'--slots=0'"), "{none}");
    }
}
