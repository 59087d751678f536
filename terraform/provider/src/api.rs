//! A region's admin API: one call at a time over connections that are kept.
//!
//! Invariants: a call ends within [`LIMIT`]; at most [`KEPT`] idle connections; the token goes to the configured address
//! and to the brokers that it redirects to, nowhere else.
//! Failure: [`ApiError`]; what may be repeated (somebody else was changing the same record, a region that is not ready) is
//! repeated until [`PATIENCE`] is over.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use meridian_client::TlsSettings;
use parking_lot::Mutex;
use serde_json::Value as Json;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How long one call may take: a planned switch or an apply waits for its end.
const LIMIT: Duration = Duration::from_secs(100);
/// Idle connections that are kept.
const KEPT: usize = 16;
/// How long a call is repeated that others were in the way of.
const PATIENCE: Duration = Duration::from_secs(30);
/// First pause before a repetition; doubled each time.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest answer.
const ANSWER_BYTES: usize = 64 << 20;
/// Most redirects that are followed.
const REDIRECTS: usize = 5;

/// How the region is reached.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: String,
    /// Shown as a bearer token.
    pub token: Option<String>,
    /// For https.
    pub tls: TlsSettings,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The region refused it.
    #[error("{call} was answered by {status}: {reason}")]
    Refused {
        /// Method and path.
        call: String,
        /// The status.
        status: u16,
        /// Why.
        reason: String,
        /// Path in the document and problem, if a document was refused.
        problems: Vec<(String, String)>,
    },
    /// The region could not be asked.
    #[error("{call}: {problem}")]
    Unreachable {
        /// Method and path.
        call: String,
        /// What happened.
        problem: String,
    },
}

impl ApiError {
    /// There is no such thing.
    pub fn is_absent(&self) -> bool {
        matches!(self, ApiError::Refused { status: 404, .. })
    }

    fn may_be_repeated(&self) -> bool {
        match self {
            ApiError::Refused { status, reason, .. } => {
                *status == 503
                    || (*status == 409 && reason.contains("being changed by others"))
                    // What names it is gone elsewhere, and that is still on its way from there.
                    || (*status == 412 && reason.contains("is in use"))
            }
            ApiError::Unreachable { .. } => false,
        }
    }
}

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body, `null` if there is none.
    pub body: Json,
}

/// The API of one region.
pub struct Api {
    address: Address,
    secure: bool,
    host: String,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    own: tokio::sync::OnceCell<String>,
}

impl Api {
    /// The API at an address; nothing is asked yet.
    ///
    /// # Errors
    /// The address is none, in words.
    pub fn new(address: Address) -> Result<Self, String> {
        let (secure, host) = parse(&address.url)?;
        Ok(Self { address, secure, host, idle: Mutex::default(), own: Default::default() })
    }

    /// The name of the region, asked once.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn own_region(&self) -> Result<String, ApiError> {
        let ask = async || {
            let answer = self.call(Method::GET, "/admin/v2/meridian/region-link", None).await?;
            Ok(answer.body["region"].as_str().unwrap_or_default().to_owned())
        };
        self.own.get_or_try_init(ask).await.cloned()
    }

    /// Reads; `None` if there is nothing.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn get(&self, path: &str) -> Result<Option<Json>, ApiError> {
        match self.call(Method::GET, path, None).await {
            Ok(answer) => Ok(Some(answer.body)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes; what is gone already is deleted.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn delete(&self, path: &str) -> Result<(), ApiError> {
        match self.call(Method::DELETE, path, None).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_absent() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Calls, again while others are in the way.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn call(&self, method: Method, path: &str, body: Option<&Json>) -> Result<Answer, ApiError> {
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let (until, mut pause) = (Instant::now() + PATIENCE, PAUSE);
        loop {
            match self.once(&method, path, body.clone()).await {
                Err(error) if error.may_be_repeated() && Instant::now() + pause < until => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                outcome => return outcome,
            }
        }
    }

    async fn once(&self, method: &Method, path: &str, body: Bytes) -> Result<Answer, ApiError> {
        let call = format!("{method} {path}");
        let failed = |problem: String| ApiError::Unreachable { call: call.clone(), problem };
        let exchange = self.followed(method, path, body);
        let (status, text) = match tokio::time::timeout(LIMIT, exchange).await {
            Ok(outcome) => outcome.map_err(failed)?,
            Err(_) => return Err(failed(format!("{} did not answer in {LIMIT:?}", self.address.url))),
        };
        let body: Json = serde_json::from_slice(&text).unwrap_or_default();
        if status.is_success() {
            return Ok(Answer { status: status.as_u16(), body });
        }
        let reason = body["reason"].as_str().map_or_else(|| String::from_utf8_lossy(&text).into_owned(), str::to_owned);
        let problem = |one: &Json| Some((one["path"].as_str()?.to_owned(), one["problem"].as_str()?.to_owned()));
        let problems = body["problems"].as_array().into_iter().flatten().filter_map(problem).collect();
        Err(ApiError::Refused { call, status: status.as_u16(), reason, problems })
    }

    /// Follows redirects to the broker that has to answer.
    async fn followed(&self, method: &Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), String> {
        let (mut response, mut elsewhere) = (self.at_home(method, path, body.clone()).await?, None);
        for _ in 0..REDIRECTS {
            let location = response.headers().get(hyper::header::LOCATION).and_then(|value| value.to_str().ok());
            let Some(location) = location.filter(|_| response.status() == StatusCode::TEMPORARY_REDIRECT) else {
                break;
            };
            let (secure, host) = parse(location)?;
            let path = location.splitn(4, '/').nth(3).map_or_else(|| "/".to_owned(), |rest| format!("/{rest}"));
            let mut sender = self.dial(secure, &host).await?;
            response = self.send(&mut sender, &host, method, &path, body.clone()).await?;
            elsewhere = Some(sender);
        }
        let (status, body) = (response.status(), Limited::new(response.into_body(), ANSWER_BYTES).collect().await);
        drop(elsewhere);
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    }

    async fn at_home(&self, method: &Method, path: &str, body: Bytes) -> Result<Response<Incoming>, String> {
        loop {
            let kept = self.idle.lock().pop();
            let was_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.dial(self.secure, &self.host).await?,
            };
            // What was kept may have been closed meanwhile.
            if sender.ready().await.is_err() {
                if was_kept {
                    continue;
                }
                return Err(format!("{} closed the connection", self.address.url));
            }
            let response = self.send(&mut sender, &self.host, method, path, body.clone()).await?;
            let mut idle = self.idle.lock();
            if idle.len() < KEPT {
                idle.push(sender);
            }
            return Ok(response);
        }
    }

    async fn send(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        host: &str,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder().method(method).uri(path).header(hyper::header::HOST, host);
        request = request.header(hyper::header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.address.token {
            request = request.header(hyper::header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        sender.send_request(request).await.map_err(|error| format!("{host}: {error}"))
    }

    async fn dial(&self, secure: bool, host: &str) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(host).await.map_err(|error| format!("can't connect to {host}: {error}"))?;
        let _ = stream.set_nodelay(true);
        let failed = |error: hyper::Error| format!("{host}: {error}");
        if secure {
            let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
            let stream = self.address.tls.connect(stream, name).await.map_err(|error| error.to_string())?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(failed)?;
            tokio::spawn(connection);
            return Ok(sender);
        }
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(failed)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// Whether by TLS, and `HOST:PORT`.
fn parse(url: &str) -> Result<(bool, String), String> {
    let (secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Err(format!("is \"{url}\", expected http://HOST:PORT or https://HOST:PORT")),
    };
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() {
        return Err(format!("is \"{url}\", which names no host"));
    }
    let port = if secure { 443 } else { 80 };
    let whole = if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") };
    Ok((secure, whole))
}

/// A name as a part of a path or a query.
pub fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names() {
        assert_eq!(parse("http://a:8080"), Ok((false, "a:8080".to_owned())));
        assert_eq!(parse("https://a/x"), Ok((true, "a:443".to_owned())));
        assert!(parse("a:8080").is_err() && parse("http://").is_err());
        assert_eq!(encoded("persistent://t/n/a b"), "persistent%3A%2F%2Ft%2Fn%2Fa%20b");
    }
}
