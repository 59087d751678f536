//! Calls of another region's admin service: make a topic, or let it grow.
//!
//! Regions that share a control link bring partition counts over by it; this is for those that do not.
//! Invariants: time and size of the answer are bounded; a token leaves only if the entry names one.
//! Failure: a sentence that says what was asked and answered. An admin service by TLS is not called.
//! Must never know: links.

use meridian_client::Credentials;
use meridian_policy::ClusterData;
use meridian_replicator::TopicMaker;
use meridian_topic::api::BoxFuture;
use meridian_types::TopicName;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// It is there already.
const CONFLICT: u16 = 409;
/// Largest answer that is looked at.
const MAX_ANSWER_BYTES: u64 = 16 << 10;

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
    let answer = tokio::time::timeout(limit, send("GET", &host, path, None, "")).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())))
}

impl RemoteAdmin {
    async fn call(&self, method: &str, path: &str, body: &str) -> Result<u16, String> {
        let url = self.cluster.service_url.as_deref().filter(|url| !url.is_empty());
        let url = url.ok_or("the entry of the cluster has no serviceUrl, so the topic can't be made there")?;
        let (host, token) = (authority(url)?, bearer(&self.cluster));
        let answer = tokio::time::timeout(CALL_LIMIT, send(method, &host, path, token.as_deref(), body)).await;
        let status = answer.unwrap_or_else(|_| Err(format!("no answer within {} s", CALL_LIMIT.as_secs())));
        match status.map_err(|error| format!("{method} http://{host}{path}: {error}"))? {
            // There already is as good as made: shapes are compared after it.
            done @ (200..300 | CONFLICT) => Ok(done),
            other => Err(format!("{method} http://{host}{path}: answered {other}")),
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

/// The first `host:port` of an address.
fn authority(url: &str) -> Result<String, String> {
    let rest = url.strip_prefix("http://").ok_or("the admin service of the cluster is reached by TLS only")?;
    let hosts = rest.split('/').next().unwrap_or_default();
    let first = hosts.split(',').next().filter(|host| !host.is_empty());
    let first = first.ok_or_else(|| format!("serviceUrl {url} names no host"))?;
    Ok(if first.contains(':') { first.to_owned() } else { format!("{first}:80") })
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

async fn send(method: &str, host: &str, path: &str, bearer: Option<&str>, body: &str) -> Result<u16, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(host).await.map_err(text)?;
    let authorization = bearer.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n{authorization}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await.map_err(text)?;
    status_of(&answer).ok_or_else(|| "the answer is not HTTP".to_owned())
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
        assert!(authority("https://east:8443").is_err());
        assert!(authority("http:///").is_err());
        let topic = TopicName::parse("persistent://t/n/a b").unwrap();
        assert_eq!(path_of(&topic), "/admin/v2/persistent/t/n/a%20b");
        assert_eq!(status_of(b"HTTP/1.1 409 Conflict\r\nA: b\r\n\r\n"), Some(409));
        assert_eq!(status_of(b"nonsense"), None);
    }
}
