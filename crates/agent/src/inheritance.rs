//! Which variables of the agent's environment its tasks inherit: those on a list, and those that the administrator adds.
//!
//! An agent's environment may hold anything, its own token among it, and every user's tasks see what they inherit. So a
//! variable that nobody thought of stays behind.

use std::ffi::{OsStr, OsString};

/// What tasks need in order to run as they would by hand. `*` stands for any end of a name.
const INHERITED: [&str; 71] = [
    "ALL_PROXY",
    "C_INCLUDE_PATH",
    "CC",
    "COLORTERM",
    "CONDA_*",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "CUDA_*",
    "CURL_CA_BUNDLE",
    "CXX",
    "FI_*",
    "FTP_PROXY",
    "GLOO_*",
    "GOMP_*",
    "HF_*",
    "HOME",
    "HOSTNAME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "INSTEP_*",
    "JAX_*",
    "KMP_*",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LIBRARY_PATH",
    "LOGNAME",
    "MKL_*",
    "MPLBACKEND",
    "MPLCONFIGDIR",
    "NCCL_*",
    "NO_COLOR",
    "NO_PROXY",
    "NUMEXPR_*",
    "NVIDIA_*",
    "OMP_*",
    "OPENBLAS_*",
    "PATH",
    "PIP_*",
    "PKG_CONFIG_PATH",
    "PYTHON*",
    "PYTORCH_*",
    "REQUESTS_CA_BUNDLE",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TF_*",
    "TOKENIZERS_PARALLELISM",
    "TORCHINDUCTOR_*",
    "TORCH_*",
    "TRANSFORMERS_*",
    "TRITON_*",
    "TZ",
    "TZDIR",
    "UCX_*",
    "USER",
    "UV_*",
    "VECLIB_*",
    "VIRTUAL_ENV",
    "XDG_*",
    "XLA_*",
    "all_proxy",
    "ftp_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Parts of names that a pattern of the list does not match: what they hold is usually secret.
const SECRET: [&str; 5] = ["TOKEN", "PASSWORD", "SECRET", "CREDENTIAL", "KEY"];

/// What no task takes from the agent, whatever is allowed: the agent's own secrets and settings, another task's, a service
/// manager's.
const KEPT_BACK: [&str; 13] = [
    "DET_",
    "INSTEP_AGENT",
    "INSTEP_MASTER",
    "INSTEP_USER",
    "INSTEP_PASSWORD",
    "INSTEP_SECRET",
    "INSTEP_SHARE",
    "PET_",
    "LISTEN_",
    "NOTIFY_SOCKET",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    // The master's, if it was started in the same shell.
    "PGPASSWORD",
];

/// Whether a variable is never inherited.
pub fn is_kept_back(name: &OsStr) -> bool {
    KEPT_BACK.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// What of an environment tasks inherit. `more` are names that the administrator adds; `*` stands for any end.
pub fn inherited(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    more: &[String],
) -> Vec<(OsString, OsString)> {
    environment.into_iter().filter(|(name, _)| is_inherited(name, more)).collect()
}

fn is_inherited(name: &OsStr, more: &[String]) -> bool {
    let listed = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(_) => matches(pattern, name) && !looks_secret(name),
        None => matches(pattern, name),
    };
    !is_kept_back(name) && (INHERITED.iter().any(listed) || more.iter().any(|pattern| matches(pattern, name)))
}

fn matches(pattern: &str, name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix.as_bytes()),
        None => name == pattern.as_bytes(),
    }
}

fn looks_secret(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_ascii_uppercase();
    SECRET.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_inherit_what_is_listed_and_what_is_added() {
        let more = ["AWS_*".to_owned(), "HF_TOKEN".to_owned(), "INSTEP_AGENT_TOKEN".to_owned(), "DET_*".to_owned()];
        let cases = [
            ("PATH", true),
            ("PATHS", false),
            ("LC_ALL", true),
            ("OMP_NUM_THREADS", true),
            ("http_proxy", true),
            ("INSTEP_SOCKET_IFNAME", true),
            ("INSTEP_AGENT_TOKEN", false),
            ("INSTEP_SECRET", false),
            ("DET_USER", false),
            ("UV_INDEX_MINE_PASSWORD", false),
            ("UV_CACHE_DIR", true),
            ("HF_HOME", true),
            ("HF_TOKEN", true),
            ("AWS_SECRET_ACCESS_KEY", true),
            ("DATABASE_URL", false),
            ("PGPASSWORD", false),
            ("", false),
        ];
        for (name, expected) in cases {
            assert_eq!(is_inherited(OsStr::new(name), &more), expected, "{name}");
        }
        assert!(!is_inherited(OsStr::new("HF_TOKEN"), &[]));
        assert!(is_inherited(OsStr::new("ANYTHING"), &["*".to_owned()]));
        for kept in ["INSTEP_AGENT_TOKEN", "PGPASSWORD"] {
            assert!(!is_inherited(OsStr::new(kept), &["*".to_owned()]));
        }
    }
}
