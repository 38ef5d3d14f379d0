//! How the API server is reached and who we are there: a pod's own service account, or a kubeconfig.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A kubeconfig, a token or a certificate is shorter.
const LONGEST_FILE: u64 = 1 << 20;

/// An API server, what proves that it is the right one, and what we show it.
#[derive(Clone)]
pub(crate) struct Access {
    pub host: String,
    pub port: u16,
    pub tls: Arc<ClientConfig>,
    pub name: ServerName<'static>,
    pub token: Token,
    /// Where our Jobs go unless the pool says.
    pub namespace: String,
}

impl std::fmt::Debug for Access {
    /// Without the token.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "https://{}:{} (namespace {})", self.host, self.port, self.namespace)
    }
}

/// What says who we are, besides a certificate.
#[derive(Clone)]
pub(crate) enum Token {
    None,
    Text(String),
    /// Read again for every request: Kubernetes replaces it every hour.
    File(PathBuf),
}

/// An API server that cannot be spoken with as configured.
#[derive(Debug, thiserror::Error)]
#[error("{what}\nhint: {hint}")]
pub(crate) struct AccessError {
    what: String,
    hint: &'static str,
}

const KUBECONFIG_HINT: &str = "kubectl --kubeconfig FILE config view --minify --flatten shows what is in it";

fn wrong(what: impl Into<String>) -> AccessError {
    AccessError { what: what.into(), hint: KUBECONFIG_HINT }
}

impl Access {
    /// The service account of the pod that we are in. `variable` reads the environment.
    pub(crate) fn in_cluster(variable: impl Fn(&str) -> Option<String>) -> Result<Access, AccessError> {
        Access::of_service_account(variable, Path::new(SERVICE_ACCOUNT))
    }

    fn of_service_account(variable: impl Fn(&str) -> Option<String>, folder: &Path) -> Result<Access, AccessError> {
        let hint =
            "set `kubeconfig` of the pool to a file; without one the master must be a pod with a service account";
        let failed = |what: String| AccessError { what, hint };
        let named = |name: &str| {
            variable(name)
                .filter(|text| !text.is_empty())
                .ok_or_else(|| failed(format!("this is no pod of Kubernetes: {name} is not set")))
        };
        let host = named("KUBERNETES_SERVICE_HOST")?;
        let port = named("KUBERNETES_SERVICE_PORT")?;
        let port = port.parse().map_err(|_| failed(format!("KUBERNETES_SERVICE_PORT is no port: {port}")))?;
        let authority = read(&folder.join("ca.crt")).map_err(failed)?;
        let token = folder.join("token");
        read(&token).map_err(failed)?;
        let namespace = read(&folder.join("namespace")).map_err(failed)?;
        let namespace = String::from_utf8_lossy(&namespace).trim().to_owned();
        let tls = tls(&authority, None).map_err(|error| failed(error.what))?;
        let name = server_name(&host).map_err(|error| failed(error.what))?;
        Ok(Access { host, port, tls, name, token: Token::File(token), namespace })
    }

    /// The current context of a kubeconfig, or the one that is named.
    pub(crate) fn kubeconfig(path: &Path, context: Option<&str>) -> Result<Access, AccessError> {
        let text = read(path).map_err(wrong)?;
        let text = String::from_utf8(text).map_err(|_| wrong(format!("{} is no text", path.display())))?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        Access::of_kubeconfig(&text, folder, context)
            .map_err(|error| AccessError { what: format!("{}: {}", path.display(), error.what), ..error })
    }

    /// Paths in it count from `folder`.
    fn of_kubeconfig(text: &str, folder: &Path, context: Option<&str>) -> Result<Access, AccessError> {
        let config: Config =
            serde_saphyr::from_str(text).map_err(|error| wrong(format!("is no kubeconfig: {error}")))?;
        let name = context.or(config.current_context.as_deref()).unwrap_or_default();
        let context = config.contexts.into_iter().find(|entry| entry.name == name).map(|entry| entry.context);
        let context = context.ok_or_else(|| wrong(format!("there is no context `{name}`")))?;
        let cluster = config.clusters.into_iter().find(|entry| entry.name == context.cluster);
        let cluster = cluster.ok_or_else(|| wrong(format!("there is no cluster `{}`", context.cluster)))?.cluster;
        let user = config.users.into_iter().find(|entry| entry.name == context.user);
        let user = user.ok_or_else(|| wrong(format!("there is no user `{}`", context.user)))?.user;
        if let Some(refused) = cluster.refused().or(user.refused()) {
            return Err(refused);
        }
        let (host, port) = address(&cluster.server)?;
        let authority = data_or_file("certificate-authority", &cluster.authority_data, &cluster.authority, folder)?;
        let authority = authority.ok_or_else(|| {
            wrong("the cluster has no certificate-authority: the server's certificate could not be checked")
        })?;
        let certificate = data_or_file("client-certificate", &user.certificate_data, &user.certificate, folder)?;
        let key = data_or_file("client-key", &user.key_data, &user.key, folder)?;
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(wrong("client-certificate and client-key belong together, and one is missing")),
        };
        let token = match (user.token, user.token_file) {
            // As kubectl: the file wins.
            (_, Some(file)) => Token::File(folder.join(file)),
            (Some(token), None) => Token::Text(token),
            (None, None) => Token::None,
        };
        if identity.is_none() && matches!(token, Token::None) {
            return Err(wrong(format!("user `{}` has neither a token nor a client certificate", context.user)));
        }
        let tls = tls(&authority, identity)?;
        let name = server_name(cluster.server_name.as_deref().unwrap_or(&host))?;
        let namespace = context.namespace.unwrap_or_else(|| "default".to_owned());
        Ok(Access { host, port, tls, name, token, namespace })
    }
}

impl Token {
    /// What a request shows, if anything.
    pub(crate) fn read(&self) -> Result<Option<String>, String> {
        match self {
            Token::None => Ok(None),
            Token::Text(text) => Ok(Some(text.clone())),
            Token::File(path) => {
                let text = String::from_utf8(read(path)?).map_err(|_| format!("{} is no text", path.display()))?;
                Ok(Some(text.trim().to_owned()))
            }
        }
    }
}

/// What we read of a kubeconfig.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Config {
    current_context: Option<String>,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    #[serde(rename = "certificate-authority")]
    authority: Option<PathBuf>,
    #[serde(rename = "certificate-authority-data")]
    authority_data: Option<String>,
    #[serde(rename = "tls-server-name")]
    server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    #[serde(rename = "client-certificate")]
    certificate: Option<PathBuf>,
    #[serde(rename = "client-certificate-data")]
    certificate_data: Option<String>,
    #[serde(rename = "client-key")]
    key: Option<PathBuf>,
    #[serde(rename = "client-key-data")]
    key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    exec: Option<serde_json::Value>,
    auth_provider: Option<serde_json::Value>,
    #[serde(rename = "as")]
    impersonated: Option<String>,
}

impl Cluster {
    /// What would have the master speak with a server that it cannot be sure of, or by a way that it does not know.
    fn refused(&self) -> Option<AccessError> {
        if self.insecure_skip_tls_verify {
            let hint = "give the cluster's certificate-authority instead";
            return Some(AccessError { what: "insecure-skip-tls-verify is refused".to_owned(), hint });
        }
        self.proxy_url.as_ref().map(|_| wrong("proxy-url is not supported"))
    }
}

impl User {
    /// Ways to log in that we do not have.
    fn refused(&self) -> Option<AccessError> {
        let hint = "make a service account and its token: docs/guides/kubernetes.md says how";
        let refused = |what: &str| Some(AccessError { what: format!("{what} is not supported"), hint });
        match self {
            User { exec: Some(_), .. } => refused("`exec`, a program that makes tokens,"),
            User { auth_provider: Some(_), .. } => refused("`auth-provider`"),
            User { username: Some(_), .. } => refused("a username with a password"),
            User { impersonated: Some(_), .. } => refused("`as`, impersonation,"),
            _ => None,
        }
    }
}

/// Host and port of `https://host:port`.
fn address(server: &str) -> Result<(String, u16), AccessError> {
    let uri: hyper::Uri = server.parse().map_err(|_| wrong(format!("server `{server}` is no URL")))?;
    let has_path = !matches!(uri.path(), "" | "/");
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(host)) if !has_path && !host.is_empty() => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Ok((host.to_owned(), uri.port_u16().unwrap_or(443)))
        }
        (Some("https"), _) if has_path => Err(wrong(format!("server `{server}` has a path, which is not supported"))),
        _ => Err(wrong(format!("server `{server}` must be https://HOST:PORT"))),
    }
}

fn server_name(host: &str) -> Result<ServerName<'static>, AccessError> {
    ServerName::try_from(host.to_owned()).map_err(|_| wrong(format!("`{host}` is neither a name nor an address")))
}

fn tls(authority: &[u8], identity: Option<(Vec<u8>, Vec<u8>)>) -> Result<Arc<ClientConfig>, AccessError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("certificate-authority", authority)? {
        roots.add(certificate).map_err(|error| wrong(format!("certificate-authority: {error}")))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates("client-certificate", &certificate)?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| wrong(format!("client-key: {error}")))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| wrong(format!("client-certificate: {error}")))?
        }
    };
    Ok(Arc::new(config))
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| wrong(format!("{what}: {error}")))?;
    if found.is_empty() {
        return Err(wrong(format!("{what} has no certificate")));
    }
    Ok(found)
}

/// What `NAME-data` holds in base64, or else the file `NAME`.
fn data_or_file(
    name: &str,
    data: &Option<String>,
    file: &Option<PathBuf>,
    folder: &Path,
) -> Result<Option<Vec<u8>>, AccessError> {
    match (data.as_deref().filter(|data| !data.is_empty()), file) {
        (Some(data), _) => {
            let bytes = STANDARD.decode(data.trim()).map_err(|_| wrong(format!("{name}-data is no base64")))?;
            Ok(Some(bytes))
        }
        (None, Some(file)) => read(&folder.join(file)).map(Some).map_err(wrong),
        (None, None) => Ok(None),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(format!("{} is longer than {LONGEST_FILE} bytes", path.display()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn certificate() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["kubernetes".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\npreferences: {{}}\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u, namespace: n}}}}]\n"
        )
    }

    #[test]
    fn a_kubeconfig_says_where_and_who() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = certificate();
        std::fs::write(folder.path().join("ca.pem"), &certificate).unwrap();
        std::fs::write(folder.path().join("token"), "rotated\n").unwrap();
        let data = STANDARD.encode(&certificate);
        let here = "server: 'https://10.0.0.1:6443'";
        let with_data = kubeconfig(&format!("{here}, certificate-authority-data: {data}"), "token: t");
        let access = Access::of_kubeconfig(&with_data, folder.path(), None).unwrap();
        assert_eq!((access.host.as_str(), access.port, access.namespace.as_str()), ("10.0.0.1", 6443, "n"));
        assert_eq!(access.token.read().unwrap().as_deref(), Some("t"));
        let with_files = kubeconfig("server: 'https://[::1]', certificate-authority: ca.pem", "tokenFile: token");
        let access = Access::of_kubeconfig(&with_files, folder.path(), Some("c")).unwrap();
        assert_eq!((access.host.as_str(), access.port), ("::1", 443));
        assert_eq!(access.token.read().unwrap().as_deref(), Some("rotated"));
        std::fs::write(folder.path().join("token"), "newer").unwrap();
        assert_eq!(access.token.read().unwrap().as_deref(), Some("newer"), "it is read again");
        let identity = format!("client-certificate-data: {data}, client-key-data: {}", STANDARD.encode(key));
        let by_certificate = kubeconfig(&format!("{here}, certificate-authority: ca.pem"), &identity);
        assert!(Access::of_kubeconfig(&by_certificate, folder.path(), None).is_ok());
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        let data = STANDARD.encode(certificate().0);
        let sure = format!("server: 'https://h', certificate-authority-data: {data}");
        let cases = [
            (kubeconfig("server: 'http://h'", "token: t"), "must be https://HOST:PORT"),
            (kubeconfig("server: 'https://h/k8s/clusters/c'", "token: t"), "has a path"),
            (kubeconfig("server: 'https://h'", "token: t"), "no certificate-authority"),
            (kubeconfig(&format!("{sure}, insecure-skip-tls-verify: true"), "token: t"), "insecure-skip-tls-verify"),
            (kubeconfig(&format!("{sure}, proxy-url: 'http://p'"), "token: t"), "proxy-url"),
            (kubeconfig(&sure, "exec: {command: aws}"), "`exec`"),
            (kubeconfig(&sure, "username: a, password: b"), "a username"),
            (kubeconfig(&sure, ""), "neither a token nor"),
            (kubeconfig(&sure, &format!("client-certificate-data: {data}")), "belong together"),
            (kubeconfig("server: 'https://h', certificate-authority: none.pem", "token: t"), "cannot read"),
            (kubeconfig(&sure, "token: t").replace("current-context: c", "current-context: d"), "no context `d`"),
            ("[".to_owned(), "is no kubeconfig"),
        ];
        for (text, part) in cases {
            let error = Access::of_kubeconfig(&text, Path::new("/nowhere"), None).unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_pod_finds_its_service_account() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("ca.crt", certificate().0.as_str()), ("token", "t"), ("namespace", "training\n")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let variable = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("10.96.0.1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        };
        let access = Access::of_service_account(variable, folder.path()).unwrap();
        assert_eq!((access.port, access.namespace.as_str()), (443, "training"));
        let error = Access::of_service_account(|_| None, folder.path()).unwrap_err().to_string();
        assert!(error.contains("KUBERNETES_SERVICE_HOST is not set") && error.contains("hint: "), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,300}", cluster in "\\PC{0,80}", user in "\\PC{0,80}") {
            let _ = Access::of_kubeconfig(&text, Path::new("/nowhere"), None);
            let _ = Access::of_kubeconfig(&kubeconfig(&cluster, &user), Path::new("/nowhere"), None);
        }
    }
}
