//! Calls of the admin API of a region.
//!
//! Role: one request per connection over HTTP/1.1, by TLS where the address says so.
//! Invariants: time and size of an answer are bounded; the token is sent to the given address only.
//! Failure: an answer that is not expected is an error with the call, its status and its reason.

use crate::cli::Failure;
use meridian_client::TlsSettings;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long one call may take: a planned switch or an apply waits for its end.
const LIMIT: Duration = Duration::from_secs(90);
/// Most bytes of an answer that are read.
const ANSWER_BYTES: u64 = 16 << 20;

/// The admin API of one region.
pub struct Admin {
    /// What it is called in errors.
    name: String,
    host: String,
    tls: Option<TlsSettings>,
    token: Option<String>,
}

impl Admin {
    /// The API of `region` at `port` of this machine.
    pub fn new(region: &str, port: u16) -> Self {
        let (name, host) = (format!("region {region}"), format!("127.0.0.1:{port}"));
        Self { name, host, tls: None, token: None }
    }

    /// The API at an address, `http://HOST:PORT` or `https://HOST:PORT`.
    ///
    /// # Errors
    /// It is neither.
    pub fn at(url: &str, tls: TlsSettings, token: Option<String>) -> Result<Self, Failure> {
        let (tls, rest, port) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (None, rest, 80),
            (_, Some(rest)) => (Some(tls), rest, 443),
            _ => return Err(format!("--url {url}: expected http://HOST:PORT or https://HOST:PORT").into()),
        };
        let host = rest.split('/').next().unwrap_or_default();
        if host.is_empty() {
            return Err(format!("--url {url}: names no host").into());
        }
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") };
        Ok(Self { name: url.to_owned(), host, tls, token })
    }

    /// Makes something; false if it is there already.
    ///
    /// # Errors
    /// It was refused.
    pub async fn put_new(&self, path: &str, body: &Value) -> Result<bool, Failure> {
        match self.call("PUT", path, body).await? {
            (409, _) => Ok(false),
            answer => self.good("PUT", path, answer).map(|_| true),
        }
    }

    /// Changes something; the answer, null if there is none.
    ///
    /// # Errors
    /// It was refused.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let answer = self.call("POST", path, body).await?;
        self.good("POST", path, answer)
    }

    /// Sets something; the answer, null if there is none.
    ///
    /// # Errors
    /// It was refused.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let answer = self.call("PUT", path, body).await?;
        self.good("PUT", path, answer)
    }

    /// Sets something to what the bytes say; the answer.
    ///
    /// # Errors
    /// It was refused.
    pub async fn put_bytes(&self, path: &str, body: Vec<u8>) -> Result<Value, Failure> {
        let answer = self.send("PUT", path, body).await?;
        self.good("PUT", path, answer)
    }

    /// Reads something.
    ///
    /// # Errors
    /// It was refused.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        let answer = self.call("GET", path, &Value::Null).await?;
        self.good("GET", path, answer)
    }

    /// Takes something away.
    ///
    /// # Errors
    /// It was refused.
    pub async fn delete(&self, path: &str) -> Result<(), Failure> {
        let answer = self.call("DELETE", path, &Value::Null).await?;
        self.good("DELETE", path, answer).map(drop)
    }

    /// Makes any call; the answer, a text if it is no JSON, null if there is none.
    ///
    /// # Errors
    /// It was refused.
    pub async fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, Failure> {
        let answer = self.call(method, path, body).await?;
        let text = answer.1.clone();
        match self.good(method, path, answer)? {
            Value::Null if !text.is_empty() && text != "null" => Ok(Value::from(text)),
            value => Ok(value),
        }
    }

    fn good(&self, method: &str, path: &str, (status, text): (u16, String)) -> Result<Value, Failure> {
        match status {
            200..=299 => Ok(serde_json::from_str(&text).unwrap_or_default()),
            _ => {
                let reason = serde_json::from_str::<Value>(&text).ok();
                let reason = reason.as_ref().and_then(|value| value["reason"].as_str()).unwrap_or(&text);
                Err(format!("{}: {method} {path} was answered by {status}: {reason}", self.name).into())
            }
        }
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Result<(u16, String), Failure> {
        self.send(method, path, if body.is_null() { Vec::new() } else { body.to_string().into_bytes() }).await
    }

    async fn send(&self, method: &str, path: &str, body: Vec<u8>) -> Result<(u16, String), Failure> {
        let exchange = self.exchange(method, path, body);
        let answer = tokio::time::timeout(LIMIT, exchange)
            .await
            .map_err(|_| format!("{}: {method} {path} was not answered in {LIMIT:?}", self.name))?
            .map_err(|error| format!("{}: {method} {path}: {error}", self.name))?;
        let (head, text) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| format!("{}: {method} {path}: not an HTTP answer", self.name))?;
        Ok((status, text.to_owned()))
    }

    async fn exchange(&self, method: &str, path: &str, body: Vec<u8>) -> Result<String, Failure> {
        let stream = TcpStream::connect(&self.host).await?;
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        // HTTP/1.0: the answer comes in one piece.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: {}\r\ncontent-type: application/json\r\n{token}content-length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        let request = [head.into_bytes(), body].concat();
        match &self.tls {
            None => converse(stream, request).await,
            Some(settings) => {
                let name = self.host.rsplit_once(':').map_or(self.host.as_str(), |(host, _)| host);
                converse(settings.connect(stream, name).await?, request).await
            }
        }
    }
}

async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: Vec<u8>) -> Result<String, Failure> {
    stream.write_all(&request).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
