//! The few admin calls that introduce regions to each other.
//!
//! Role: one request per connection over HTTP/1.1 to a child on this machine.
//! Failure: an answer that is not expected is an error with the call, its status and its text.

use crate::cli::Failure;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long one call may take.
const LIMIT: Duration = Duration::from_secs(20);
/// Most bytes of an answer that are read.
const ANSWER_BYTES: u64 = 64 << 10;

/// The admin API of one region.
pub struct Admin {
    region: &'static str,
    port: u16,
}

impl Admin {
    /// The API of `region` at `port` of this machine.
    pub fn new(region: &'static str, port: u16) -> Self {
        Self { region, port }
    }

    /// Makes something; false if it is there already.
    ///
    /// # Errors
    /// It was refused.
    pub async fn put_new(&self, path: &str, body: &Value) -> Result<bool, Failure> {
        match self.call("PUT", path, body).await? {
            (409, _) => Ok(false),
            answer => self.good("PUT", path, answer).map(|()| true),
        }
    }

    /// Changes something.
    ///
    /// # Errors
    /// It was refused.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(), Failure> {
        let answer = self.call("POST", path, body).await?;
        self.good("POST", path, answer)
    }

    fn good(&self, method: &str, path: &str, (status, text): (u16, String)) -> Result<(), Failure> {
        match status {
            200..=299 => Ok(()),
            _ => Err(format!("region {}: {method} {path} was answered by {status}: {text}", self.region).into()),
        }
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Result<(u16, String), Failure> {
        let exchange = self.exchange(method, path, body.to_string());
        let answer = tokio::time::timeout(LIMIT, exchange)
            .await
            .map_err(|_| format!("region {}: {method} {path} was not answered in {LIMIT:?}", self.region))??;
        let (head, text) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| format!("region {}: {method} {path}: not an HTTP answer", self.region))?;
        Ok((status, text.to_owned()))
    }

    async fn exchange(&self, method: &str, path: &str, body: String) -> Result<String, Failure> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost:{}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}
