//! Calls of another region's admin service: make a topic, or let it grow.
//!
//! Regions that share a region link bring partition counts over by it; this is for those that do not.
//! Invariants: time and size of the answer are bounded; a token leaves only if the entry names one.
//! Failure: a sentence that says what was asked and answered.
//! Must never know: links.

use meridian_client::Credentials;
use meridian_identity::tls::{ClientFiles, client_config};
use meridian_policy::ClusterData;
use meridian_replicator::TopicMaker;
use meridian_topic::api::BoxFuture;
use meridian_types::TopicName;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// It is there already.
const CONFLICT: u16 = 409;
/// Largest answer that is looked at.
const MAX_ANSWER_BYTES: u64 = 16 << 10;
/// Largest answer of which the body is wanted.
const MAX_JSON_BYTES: u64 = 16 << 20;

/// The admin service of another region.
#[derive(Clone)]
pub struct RemoteAdmin {
    cluster: Arc<ClusterData>,
}

impl RemoteAdmin {
    /// By the region's entry.
    pub fn new(cluster: Arc<ClusterData>) -> Self {
        Self { cluster }
    }
}

/// The status that a web service answers to a plain call.
pub async fn status_at(url: &str, path: &str, limit: Duration) -> Result<u16, String> {
    let host = authority(url)?;
    if url.starts_with("https://") {
        return Err(format!("{url} is reached by TLS, and nothing is said to check it against"));
    }
    let call = async {
        let stream = TcpStream::connect(&host).await.map_err(|error| error.to_string())?;
        send(stream, &request("GET", &host, path, None, "")).await
    };
    let answer = tokio::time::timeout(limit, call).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())))
}

/// What a web service answers to a posted JSON text: status and body.
///
/// # Errors
/// It did not answer in time, or not in HTTP.
pub(crate) async fn post_at(
    url: &str,
    path: &str,
    authorization: &str,
    body: &str,
    limit: Duration,
) -> Result<(u16, Vec<u8>), String> {
    let host = authority(url)?;
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\nAuthorization: {authorization}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let call = async {
        let stream = TcpStream::connect(&host).await.map_err(|error| error.to_string())?;
        let answer = exchange(stream, &request, MAX_JSON_BYTES).await?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|end| end + 4);
        let status = status_of(&answer).zip(end);
        let (status, end) = status.ok_or_else(|| "the answer is not HTTP".to_owned())?;
        Ok((status, answer[end..].to_vec()))
    };
    let answer = tokio::time::timeout(limit, call).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())))
}

impl RemoteAdmin {
    async fn call(&self, method: &str, path: &str, body: &str) -> Result<u16, String> {
        let (url, is_tls) = address_of(&self.cluster)?;
        let (host, token) = (authority(url)?, bearer(&self.cluster));
        let call = async {
            let text = |error: std::io::Error| error.to_string();
            let request = request(method, &host, path, token.as_deref(), body);
            match is_tls {
                false => send(TcpStream::connect(&host).await.map_err(text)?, &request).await,
                true => send(secured(&self.cluster, &host).await?, &request).await,
            }
        };
        let answer = tokio::time::timeout(CALL_LIMIT, call).await;
        let status = answer.unwrap_or_else(|_| Err(format!("no answer within {} s", CALL_LIMIT.as_secs())));
        let scheme = if is_tls { "https" } else { "http" };
        match status.map_err(|error| format!("{method} {scheme}://{host}{path}: {error}"))? {
            // There already is as good as made: shapes are compared after it.
            done @ (200..300 | CONFLICT) => Ok(done),
            other => Err(format!("{method} {scheme}://{host}{path}: answered {other}")),
        }
    }

    async fn make_now(&self, topic: &TopicName, partitions: u32) -> Result<(), String> {
        let path = path_of(topic);
        if partitions == 0 {
            return self.call("PUT", &path, "{}").await.map(drop);
        }
        let (path, count) = (format!("{path}/partitions"), partitions.to_string());
        if self.call("PUT", &path, &count).await? == CONFLICT {
            // It may have fewer partitions; if it is of another kind, the comparison says so.
            if let Err(error) = self.call("POST", &path, &count).await {
                tracing::debug!(%topic, partitions, error, "a topic in another region does not grow");
            }
        }
        Ok(())
    }
}

impl TopicMaker for RemoteAdmin {
    fn make(&self, topic: &TopicName, partitions: u32) -> BoxFuture<'static, Result<(), String>> {
        let (admin, topic) = (self.clone(), topic.clone());
        Box::pin(async move { admin.make_now(&topic, partitions).await })
    }
}

/// The admin service, and whether it is reached by TLS: if the entry asks for it, or has no other.
fn address_of(cluster: &ClusterData) -> Result<(&str, bool), String> {
    let set = |url: &'_ Option<String>| url.as_deref().filter(|url| !url.is_empty()).map(str::to_owned).is_some();
    let (plain, tls) = (set(&cluster.service_url), set(&cluster.service_url_tls));
    match (tls && (cluster.broker_client_tls_enabled || !plain), plain) {
        (true, _) => Ok((cluster.service_url_tls.as_deref().unwrap_or_default(), true)),
        (false, true) => Ok((cluster.service_url.as_deref().unwrap_or_default(), false)),
        (false, false) => {
            Err("the entry of the cluster has no serviceUrl, so the topic can't be made there".to_owned())
        }
    }
}

/// A connection whose server was checked against the authorities of the entry.
async fn secured(cluster: &ClusterData, host: &str) -> Result<TlsStream<TcpStream>, String> {
    let file = |path: &Option<String>| path.clone().unwrap_or_default();
    let files = ClientFiles {
        trust: file(&cluster.broker_client_trust_certs_file_path),
        certificate: file(&cluster.broker_client_certificate_file_path),
        key: file(&cluster.broker_client_key_file_path),
        ..ClientFiles::default()
    };
    if files.trust.is_empty() {
        let text = "its admin service is reached by TLS, and the entry names no brokerClientTrustCertsFilePath to check it against";
        return Err(text.to_owned());
    }
    let config = tokio::task::spawn_blocking(move || client_config("brokerClientTrustCertsFilePath", &files)).await;
    let config = config.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).to_owned();
    let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
    let stream = TcpStream::connect(host).await.map_err(|error| error.to_string())?;
    TlsConnector::from(config).connect(name, stream).await.map_err(|error| error.to_string())
}

/// The first `host:port` of an address.
fn authority(url: &str) -> Result<String, String> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("serviceUrl {url} is no address"))?;
    let port = if scheme == "https" { 443 } else { 80 };
    let hosts = rest.split('/').next().unwrap_or_default();
    let first = hosts.split(',').next().filter(|host| !host.is_empty());
    let first = first.ok_or_else(|| format!("serviceUrl {url} names no host"))?;
    Ok(if first.contains(':') { first.to_owned() } else { format!("{first}:{port}") })
}

fn path_of(topic: &TopicName) -> String {
    let local: String = topic
        .local()
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    format!("/admin/v2/{}/{}/{local}", topic.domain().as_str(), topic.namespace())
}

fn bearer(cluster: &ClusterData) -> Option<String> {
    let plugin = cluster.authentication_plugin.as_deref()?;
    match Credentials::parse(plugin, cluster.authentication_parameters.as_deref().unwrap_or_default()) {
        Ok(Credentials::Token(token)) => Some(token),
        Ok(Credentials::TokenFile(path)) => Some(std::fs::read_to_string(path).ok()?.trim().to_owned()),
        _ => None,
    }
}

fn request(method: &str, host: &str, path: &str, bearer: Option<&str>, body: &str) -> String {
    let authorization = bearer.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    format!(
        "{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n{authorization}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn send(stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Result<u16, String> {
    let answer = exchange(stream, request, MAX_ANSWER_BYTES).await?;
    status_of(&answer).ok_or_else(|| "the answer is not HTTP".to_owned())
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
    max_bytes: u64,
) -> Result<Vec<u8>, String> {
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    match stream.take(max_bytes).read_to_end(&mut answer).await {
        Ok(_) => {}
        // Over TLS many servers close without a good-bye.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        Err(error) => return Err(error.to_string()),
    }
    Ok(answer)
}

fn status_of(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_answers_are_read() {
        assert_eq!(authority("http://east:8080/").unwrap(), "east:8080");
        assert_eq!(authority("http://a:1,b:2").unwrap(), "a:1");
        assert_eq!(authority("http://east").unwrap(), "east:80");
        assert_eq!(authority("https://east").unwrap(), "east:443");
        assert!(authority("east").is_err());
        let plain = ClusterData { service_url: Some("http://e:1".into()), ..ClusterData::default() };
        assert_eq!(address_of(&plain), Ok(("http://e:1", false)));
        let both = ClusterData { service_url_tls: Some("https://e:2".into()), ..plain.clone() };
        assert_eq!(address_of(&both), Ok(("http://e:1", false)));
        let asked = ClusterData { broker_client_tls_enabled: true, ..both.clone() };
        assert_eq!(address_of(&asked), Ok(("https://e:2", true)));
        let only = ClusterData { service_url: None, ..both };
        assert_eq!(address_of(&only), Ok(("https://e:2", true)));
        assert!(address_of(&ClusterData::default()).is_err());
        assert!(authority("http:///").is_err());
        let topic = TopicName::parse("persistent://t/n/a b").unwrap();
        assert_eq!(path_of(&topic), "/admin/v2/persistent/t/n/a%20b");
        assert_eq!(status_of(b"HTTP/1.1 409 Conflict\r\nA: b\r\n\r\n"), Some(409));
        assert_eq!(status_of(b"nonsense"), None);
    }
}
